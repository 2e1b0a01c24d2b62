"""One request and its attempts: what is kept to send it again, and how a stream goes on elsewhere.

``Request`` is what a call sends; almost always that happens once. ``Attempts`` comes into being
with the first failure, or where the caller asks for something (``instance``, ``priority``, a
migration limit). What is to be done is decided by ``actors.session``; here it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.kept import Kept
from actors.kernel.links import held
from actors.kernel.opened import Limits, Opened
from actors.kernel.tokens import continue_tokens
from actors.messages import Route
from actors.session import (
    BROKEN,
    MIGRATE,
    PATIENCE,
    RAISE,
    RETRY,
    WAIT,
    Decision,
    Session,
    kind_of,
)
from transport.context import Context
from transport.errors import AttachFailed, CallHomeError, Cancelled, LocalProtocolError, text_of
from transport.payload import REQUEST, Encoded, inline_kept

if TYPE_CHECKING:
    from actors.kernel.calls import Caller

#: ``resume(request, delivered)``: the request for what is left of a stream; None: nothing is.
Resume = Callable[[Any, list[Any]], Any]
#: ``replay(sent, received)``: the request items with which a new worker is to begin.
Replay = Callable[[list[Any], list[Any]], Iterable[Any]]


#: Stands for the request of what is left when nothing is.
_COMPLETE: Final = Encoded(b"", [], 0)


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
        except BaseException:
            for handle in held(encoded.handles):
                caller.runtime.memory.unexport(handle)
            self.context.unlink()
            raise

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


class Attempts:
    """The attempts of one request: its session, and what is kept to go on elsewhere."""

    __slots__ = (
        "_moving",
        "_pending",
        "count",
        "delivered",
        "first",
        "instance",
        "priority",
        "replay",
        "resume",
        "sent",
        "session",
        "spoken",
    )

    def __init__(
        self,
        sent: Request,
        *,
        migrations: int | None = None,
        instance: int = 0,
        priority: int = 0,
        resume: Resume | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.sent = sent
        runtime = sent.caller.runtime
        settings = runtime.settings
        self.instance = instance
        self.priority = priority
        self.resume = resume
        self.replay = replay
        #: Attempts so far.
        self.count = 1
        if migrations is None:
            migrations = settings.migration_limit
        patience = PATIENCE if sent.limits.first is None else min(PATIENCE, sent.limits.first)
        self.session = Session(
            0 if instance else settings.retry_limit,
            0 if instance else migrations,
            resumable=sent.whole or resume is not None or replay is not None,
            patience=patience,
        )
        keeps = self.session.migrations > 0 and not sent.whole and self.session.resumable
        self.delivered = Kept(runtime) if keeps else None
        self.spoken = Kept(runtime) if keeps and replay is not None else None
        #: The request as it was at first, once it has been continued.
        self.first: Encoded | None = None
        self._pending: Decision | None = None
        #: A migration has been decided upon, and nothing has been sent for it yet.
        self._moving = False

    def route(self) -> Route | None:
        """What the router is asked for the next attempt."""
        avoid = self.session.avoid
        if not (self.instance or self.priority or avoid):
            return None
        return Route(self.instance, [[each, avoid[each]] for each in avoid], self.priority)

    async def next(self, stream: Opened, behind: Iterable[Opened]) -> Opened | None:
        """The attempt after ``stream``; see ``Request.again``."""
        error = stream.error
        assert error is not None
        decision = self._pending or self._decide(stream, error)
        while True:
            if decision.step == WAIT:
                self._pending = decision  # whoever is cancelled meanwhile leaves it to the next
                decision = await self._paused(decision)
                self._pending = None
            if decision.step == RAISE:
                stream.error = decision.error
                stream.settle()
                return None
            self._moving = self._moving or decision.step == MIGRATE
            try:
                if decision.step == MIGRATE and self._has_begun(stream):
                    replays = self._continue(stream, behind)
                    if replays is None and self.sent.encoded is _COMPLETE:
                        stream.error = None
                        stream.settle()
                        return None
                else:
                    replays = None
                return self._send(stream, replays)
            except CallHomeError as failure:
                # Its traceback would tie the stream to this frame and the user's.
                failure.with_traceback(None)
                decision = self.session.ended(failure, 0, stopped=self._stopped())

    def _has_begun(self, stream: Opened) -> bool:
        return not self.sent.whole and (self.session.delivered > 0 or stream.fed)

    def _decide(self, stream: Opened, error: CallHomeError) -> Decision:
        session = self.session
        kept = self.delivered
        if kept is not None and kept.full:
            session.resumable = False
        before = session.delivered
        decision = session.ended(
            error,
            stream.seq - stream.faulty,
            spoken=stream.fed,
            stopped=self._stopped(),
        )
        if decision.step != RAISE and not self.sent.bring_in_line(stream):
            return Decision(RAISE, error)
        if decision.step == RAISE and decision.error is not None and kind_of(error) <= BROKEN:
            return Decision(RAISE, self._with_reason(decision.error, before))
        return decision

    def _with_reason(self, error: CallHomeError, before: int) -> CallHomeError:
        """The error, with the reason for which nothing else was tried where that is not plain."""
        if self.instance and error.code != "worker.unavailable":
            why = f"it was for instance {self.instance} and no other"
        elif self.delivered is not None and self.delivered.full:
            limit = self.sent.caller.runtime.settings.migration_bytes
            why = f"its items are over migration_bytes ({limit}), so it could not be continued"
        else:
            return error
        told = type(error)(f"{error.message}; {why}", **error.details)
        told.__cause__ = error.__cause__
        return told

    def _stopped(self) -> str:
        context = self.sent.context
        return f"{self.sent.target}: {context.reason or 'stopped'}" if context.stopped else ""

    async def _paused(self, decision: Decision) -> Decision:
        """Wait until the request may be tried again, or give up."""
        sent, original = self.sent, self.session.original
        context = sent.context
        left = context.remaining()
        if left is not None and left <= decision.pause:
            return Decision(RAISE, original)
        home = sent.caller.runtime.home
        sent.link()
        home.between.pause(context, sent.named)
        try:
            async with asyncio.timeout(decision.pause):
                await context.wait_stopped()
        except TimeoutError:
            return Decision(RETRY)
        finally:
            home.between.resume(context)
            context.unlink()
        cancelled = Cancelled(self._stopped())
        cancelled.__cause__ = original
        return Decision(RAISE, cancelled)

    def _continue(self, stream: Opened, behind: Iterable[Opened]) -> Iterable[Any] | None:
        """Make the request of what is left; for a stream each way, the items to begin with.

        Raises LocalProtocolError for a function of the user's that does not do its part.
        """
        assert self.delivered is not None
        delivered = self.delivered.beside(behind)
        if delivered.full:
            raise LocalProtocolError(f"{self.sent.target}: its items are over migration_bytes")
        function = self.replay or self.resume
        try:
            if self.replay is not None:
                assert self.spoken is not None
                values = self.spoken.values(item=False)
                return iter(self.replay(values, delivered.values(item=True)))
            assert self.resume is not None
            self._resume(self.resume, delivered.values(item=True))
            return None
        except Exception as error:
            raise self._unable(function, error, stream) from error

    def _resume(self, resume: Resume, delivered: list[Any]) -> None:
        sent, runtime = self.sent, self.sent.caller.runtime
        if self.first is None:
            self.first = sent.encoded
        first = self.first
        request = runtime.decode(first.data, first.handles, sent.codec)
        new = resume(request, delivered)
        if new is None:
            sent.encoded = _COMPLETE
        else:
            encoded = runtime.encode(new, sent.codec, True, REQUEST)
            sent.encoded = inline_kept(encoded, runtime.memory)

    def _unable(self, function: Any, error: Exception, stream: Opened) -> LocalProtocolError:
        """What the caller is told when his function has not said how to go on."""
        broke = stream.failure()
        name = getattr(function, "__qualname__", None) or repr(function)[:100]
        kind = "replay" if self.replay is not None else "resume"
        if function is continue_tokens and isinstance(error, CallHomeError):
            how = str(error)
        else:
            how = f"{kind} function {name} failed: {type(error).__name__}: {text_of(error)}"
        if error.__cause__ is None and error.__context__ is None:
            error.__cause__ = broke
        return LocalProtocolError(f"{self.sent.target}: {how}; the stream had ended with: {broke}")

    def _send(self, stream: Opened, replays: Iterable[Any] | None) -> Opened:
        sent = self.sent
        sent.link()
        new = sent.send()
        self.count += 1
        sent.caller.runtime.home.between.count(self._moving, self._has_begun(stream))
        self._moving = False
        if replays is not None:
            new.replay, new.replay_ends = iter(replays), sent.said_last
        elif sent.many and sent.said_last:
            new.feed_end()
        stream.after = new
        return new
