"""The seam between choosing a worker and reaching it: what a dispatch of one's own is written
against.

A router selects, books and learns how streams ended; a dispatch brings an Open to the chosen worker
and sees that the stream reaches its home. It does not return the stream: on this node items go
straight from worker to home, from other nodes the dispatch relays them.

``RouterSpec(dispatch="module:factory")`` names a function that takes a ``DispatchSeat`` and returns
a ``StreamingDispatch``; see ``examples/recording.py`` and docs/design/009.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from actors.messages import Open, Record
from transport.bus.address import Address
from transport.context import Context
from transport.errors import TooLarge

#: What a record says of an instance that a dispatch serves inside its router: ``Record.speaks``.
HOSTED: Final = "dispatch"


class StreamingDispatch(Protocol):
    """How streams reach workers: over the bus (``actors.router.local``), to nodes of ours
    (``actors.router.remote``), to Dynamo's workers (``actors.router.foreign``), or as you write it.

    All four are called on the router's loop and must not block. The callbacks come in the order in
    which discovery told it, what is known already at the beginning, and may repeat; what they raise
    is logged. The other two raise errors of ``actors.errors`` only, so that the router can tell a
    fault from a refusal; what is raised means that nothing has been sent.
    """

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """Bring a single-in stream to ``worker``. Raises ConnectionLost, EncodeError, OutboxFull,
        TooLarge.
        """

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """Bring a stream of requests to ``worker``. Raises what ``generate`` raises."""

    def on_instance_added(self, record: Record) -> None:
        """An instance can serve (again)."""

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """An instance gets no new streams; those that it has go on."""


class Hearing(Protocol):
    """What ``DispatchSeat.subscribe`` returns."""

    def cancel(self) -> None:
        """Hear no more. A second call does nothing."""


#: Answers a stream inside the router: the request (of a bidirectional stream an async iterator of
#: the request items) and the Context in, items out.
Handler = Callable[[Any, Context], AsyncIterator[Any]]


class DispatchSeat(Protocol):
    """What a router gives to the dispatch that its spec names. Everything belongs to the router's
    loop.
    """

    @property
    def router(self) -> Address:
        """The router."""

    @property
    def standard(self) -> StreamingDispatch:
        """What the router would use by itself; for whoever wants to add to it."""

    def record(
        self, endpoint: str, *, many: bool = False, capacity: int = 0, device: str = ""
    ) -> Record:
        """The record of a new instance that the dispatch itself serves. Raises SpecError for what
        is no endpoint.
        """

    def publish(self, record: Record) -> None:
        """This router may choose that instance from now on; nobody else hears of it. Again after
        ``withdraw``, or with another capacity.
        """

    def withdraw(self, record: Record, reason: str) -> None:
        """It gets no new streams; those that it has go on."""

    def serve(self, open: Open, worker: Record, handler: Handler) -> None:
        """Answer a stream with ``handler``, as a task of the router, which gives the permit back at
        its end. To be called inside ``generate``: of a stream that it keeps for later the router
        would not know whom to tell of a cancel.

        Credit, stop, kill and deadline are those of an engine's stream. An error of
        ``actors.errors`` that the handler raises goes to the home as it is, and is a fault of
        ``worker`` if it is one of the road; any other exception is the handler's, an EngineError.
        """

    def subscribe(self, dispatch: StreamingDispatch) -> Hearing:
        """``dispatch`` hears of instances: of all that are known before this returns, then of every
        event. For parts of a dispatch: the one that the factory returns hears without asking.
        """

    def when_stopped(self, close: Callable[[], None]) -> None:
        """``close`` is called when the router stops, for what a dispatch holds open."""


def too_large(open: Open, error: TooLarge) -> TooLarge:
    """The error of a request that does not fit into one message, as its sender can use it."""
    size, limit = error.details.get("size", ""), error.details.get("limit", "")
    if not size or not limit:
        return TooLarge(f"{open.target}: {error}", **error.details)
    metadata = sum(len(f"{name}{value}") for name, value in open.metadata.items())
    if 2 * metadata > int(size):
        what, less = f"a request with {metadata} bytes of metadata", "send less metadata"
    else:
        what, less = f"a request of {size} bytes", "send less"
    return TooLarge(
        f"{open.target}: {what}; {limit} may be sent to another node in one: raise max_message "
        f"(DYN_TCP_MAX_MESSAGE_SIZE) on both sides, or {less}",
        **error.details,
    )
