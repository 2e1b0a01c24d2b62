"""One request as it is sent, and sent again when it has to be.

``Request`` is what a call sends; almost always that happens once. What is done after a failure is
the business of ``actors.kernel.attempts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from actors.kernel.attempts import Attempts
from actors.kernel.links import held
from actors.kernel.opened import Limits, Opened
from transport.bus.address import Address
from transport.context import Context
from transport.errors import AttachFailed, PeerLost
from transport.payload import Encoded, inline_kept

if TYPE_CHECKING:
    from actors.kernel.calls import Caller


class Request:
    """One request as it is sent, and sent again when it has to be."""

    __slots__ = (
        "attempts",
        "caller",
        "codec",
        "context",
        "encoded",
        "limits",
        "many",
        "named",
        "said_last",
        "target",
        "whole",
    )

    def __init__(
        self, caller: Caller, target: str, many: bool, codec: str, context: Context, named: bool
    ):
        self.caller = caller
        self.target = target
        self.many = many
        self.codec = codec
        self.context = context
        self.named = named
        self.encoded = Encoded(b"", [], 0)
        self.limits = Limits(None, None, None)
        #: Its answer is taken whole or not at all: another attempt begins from the start.
        self.whole = False
        self.attempts: Attempts | None = None
        #: The caller of a stream each way has ended its side.
        self.said_last = False

    def send(self) -> Opened:
        """Open the stream. What it raises leaves no frame behind."""
        caller, encoded, attempts = self.caller, self.encoded, self.attempts
        try:
            via = caller.route(self.target)
            while True:
                try:
                    return caller.runtime.home.open(
                        via,
                        self.target,
                        encoded,
                        many=self.many,
                        codec=self.codec,
                        native=True,
                        limits=self.limits,
                        context=self.context,
                        named=self.named,
                        route=None if attempts is None else attempts.route(),
                        keep=_keep(self) if encoded.handles else 0,
                    )
                except PeerLost as error:
                    via = self._living(via, error)
        except BaseException:
            for handle in held(encoded.handles):
                caller.runtime.memory.unexport(handle)
            self.context.unlink()
            raise

    def _living(self, dead: Address, error: PeerLost) -> Address:
        """Another router than the one that is dead: nothing has left for that. The caller's route
        gives them in turn; raises ``error`` when none is left.
        """
        caller, seen = self.caller, {dead.incarnation}
        while (via := caller.route(self.target)).incarnation not in seen:
            if caller.runtime.peers.watch(via):
                return via
            seen.add(via.incarnation)
        raise error

    async def again(self, stream: Opened, behind: Iterable[Opened] = ()) -> Opened | None:
        """The attempt after ``stream``, which has ended with an error; None when there is none: its
        error is then that of the request, and none says that the request is complete.

        ``behind``: streams whose items have come and were not taken, for who continues it.
        """
        if stream.after is not None or stream.settled:
            return stream.after
        if isinstance(stream.error, AttachFailed) and not stream.seq and self.encoded.handles:
            return self._again_in_line(stream)
        attempts = self.attempts
        if attempts is None:
            if not is_endpoint(self.target):  # only its caller knows what may be repeated
                stream.settle()
                return None
            attempts = self.attempts = Attempts(self)
        return await attempts.next(stream, behind)

    def _again_in_line(self, stream: Opened) -> Opened | None:
        """The stream opened once more with its bytes in line: the worker could not attach our
        memory.
        """
        if not self.bring_in_line(stream):
            stream.settle()
            return None
        self.link()
        stream.after = self.send()
        return stream.after

    def bring_in_line(self, stream: Opened) -> bool:
        """Take the request's frames back from a stream that has ended, as bytes in line; False when
        they are gone.
        """
        if held(self.encoded.handles):
            links = self.caller.runtime.links
            if not links.take_requests(stream.number):
                return False
            self.encoded = inline_kept(self.encoded, links.memory)
        return True

    def link(self) -> None:
        """Let the parent's cancels reach the stream; the end of an attempt has cut it off."""
        if self.caller.parent is not None:
            self.caller.parent.link(self.context)

    def give_up(self, stream: Opened) -> None:
        """Nobody will read the stream or send it again: give back what it holds for that."""
        self.caller.runtime.drop_items(stream.queue)
        stream.settle()


def is_endpoint(target: str) -> bool:
    """Whether it is served by workers, of which others may take what one has refused; messages of
    an actor have no dots, what nodes tell each other has an address.
    """
    return "." in target and "@" not in target


def _keep(request: Request) -> int:
    """How long the request's frames stay ours beside their borrower: to its first item, or end."""
    if not is_endpoint(request.target):
        return 0
    if limit_of(request):
        return 2
    return 1 if request.caller.runtime.settings.retry_limit else 0


def limit_of(request: Request) -> int:
    """How often the request's stream may be continued elsewhere."""
    attempts = request.attempts
    if attempts is not None:
        return attempts.session.migrations
    return request.caller.runtime.settings.migration_limit
