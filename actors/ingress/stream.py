"""One stream that an ingress relays: what is the same for every requester."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from actors.config import Settings
from actors.errors import Overloaded, WorkerLost
from actors.ingress.arrival import Arrival
from actors.kernel.peers import GONE
from actors.messages import Accept, End, FeedCredit, Item, Items, Kill, Open, Record, Stop
from transport.bus.address import Address
from transport.errors import CallHomeError, PeerLost
from transport.wire.message import Message

if TYPE_CHECKING:
    from actors.ingress.streams import Streams


class Stream(ABC):
    """One request on its way to the engine that its path names, and what comes back.

    The classes below know the requester's side: ``actors.ingress.relay`` that of our own nodes,
    ``actors.ingress.foreign`` Dynamo's.
    """

    __slots__ = (
        "__weakref__",
        "accepted",
        "arrival",
        "cancelled",
        "carried",
        "counted",
        "due",
        "engine",
        "expects",
        "late",
        "number",
        "opened",
        "over",
        "placed",
        "record",
        "seq",
        "streams",
    )

    def __init__(
        self, streams: Streams, arrival: Arrival, record: Record, carried: dict[int, int]
    ) -> None:
        """``carried`` is where the streams of its requester are counted by their engine."""
        self.carried = carried
        #: Stands there: the engine has it, and has neither ended it nor sent an error item.
        self.counted = False
        self.streams = streams
        self.arrival = arrival
        self.record = record
        self.engine: Address = record.address
        self.opened = False
        #: Its request is on the way here, for an engine that is not asked before it is whole.
        self.expects = False
        self.accepted = False
        self.cancelled = False
        self.over = False
        #: Has one of the ingress's places; else it waits for one.
        self.placed = False
        #: Items that have come from the engine.
        self.seq = 0
        #: By the monotonic clock, for what comes before the engine, which has its own clock.
        self.due = _due(arrival, streams.runtime.settings)
        #: That was over, and who asks is to be told.
        self.late = False
        self.number = streams.enter(self)

    @abstractmethod
    def begin(self) -> None:
        """A place is free: go on towards the engine."""

    @abstractmethod
    def waits(self) -> None:
        """All places are taken, and it waits for one: ``begin`` follows."""

    @abstractmethod
    def accept(self, m: Accept) -> None:
        """The engine has the stream."""

    @abstractmethod
    def items(self, m: Items) -> None:
        """Items without handles."""

    @abstractmethod
    def item(self, m: Item) -> None:
        """An item with handles, which are ours to return."""

    @abstractmethod
    def end(self, m: End) -> None:
        """The engine's last word."""

    @abstractmethod
    def feed_credit(self, m: FeedCredit) -> None:
        """The engine has room for more request items."""

    def faulted(self) -> None:
        """The engine's next item is an error item: for whoever has sent it the stream is over."""
        if self.counted:
            self.count_out()

    def failed(self, error: CallHomeError) -> None:
        """The engine has ended the stream with an error."""
        self.streams.count_error(error)
        if isinstance(error, Overloaded):
            self.streams.refused(self.engine.incarnation)

    @abstractmethod
    def fail(self, error: CallHomeError) -> None:
        """Nothing more comes from the engine, if it was ever reached: tell the requester."""

    def open(self, codec: str, native: bool, payload: bytes) -> None:
        """Ask the engine. Raises WorkerLost for one that has died meanwhile, OutboxFull."""
        runtime = self.streams.runtime
        if not runtime.peers.watch(self.engine):
            raise self._died()
        message = self.opening(codec, native, payload, [])
        runtime.port.queue(self.engine, message, size=len(payload) + 128, bounded=True)
        runtime.port.hurry()
        self.has_opened()

    def check_alive(self) -> None:
        """Raise WorkerLost when the engine has died, or is found dead now."""
        if not self.streams.runtime.peers.watch(self.engine):
            raise self._died()

    def _died(self) -> WorkerLost:
        why = self.streams.runtime.peers.death(self.engine) or GONE
        return WorkerLost(f"{self.engine} died: {why}")

    def has_opened(self) -> None:
        """The engine hears of the stream, and minds its times from now on."""
        self.opened = self.counted = True
        streams, carried, engine = self.streams, self.carried, self.engine.incarnation
        streams.arrived(self)
        carried[engine] = carried.get(engine, 0) + 1
        if not streams.telling:
            streams.tell_loads()

    def count_out(self) -> None:
        """The engine has no more to do for the stream, or as good as that."""
        self.counted = False
        streams, carried, engine = self.streams, self.carried, self.engine.incarnation
        left = carried[engine] - 1
        if left:
            carried[engine] = left
        else:
            del carried[engine]
        if not streams.telling:
            streams.tell_loads()

    def opening(self, codec: str, native: bool, payload: bytes, handles: list[Any]) -> Open:
        """The Open for the engine."""
        runtime, arrival = self.streams.runtime, self.arrival
        return Open(
            self.number,
            runtime.address,
            self.record.endpoint,
            arrival.many,
            codec,
            native,
            payload,
            handles,
            [],
            arrival.window_items,
            arrival.window_bytes,
            arrival.remaining(),
            arrival.metadata,
            arrival.id,
        )

    def tell(self, message: Message, size: int = 64) -> None:
        """Send data of the request to the engine."""
        self.streams.runtime.port.send(self.engine, message, size=size)

    def control(self, message: Message) -> None:
        """Send control to the engine, past all data."""
        self.streams.runtime.port.send(self.engine, message, control=True)

    def stop(self, reason: str) -> None:
        """The requester asks the engine to finish."""
        self.count_cancel()
        self._cancel(Stop(self.streams.runtime.address.incarnation, self.number, reason))

    def kill(self, reason: str) -> None:
        """The requester is gone, or wants nothing more; the stream leaves the table."""
        if not self.over:
            self.count_cancel()
            self.drop(reason)

    def drop(self, reason: str) -> None:
        """As ``kill``, for what is no cancel of the requester's."""
        if self.leave():
            self._cancel(Kill(self.streams.runtime.address.incarnation, self.number, reason))

    def _cancel(self, message: Stop | Kill) -> None:
        if self.opened:
            port = self.streams.runtime.port
            # Until the engine has answered, a cancel follows its Open on the same lane.
            port.send(self.engine, message, control=self.accepted)
            port.flush()

    def count_cancel(self) -> None:
        """Count the stream as cancelled, however often and in how many ways it is."""
        if not self.cancelled:
            self.cancelled = True
            self.streams.counters.cancelled += 1

    def leave(self) -> bool:
        """The engine and this stream have nothing more to do with each other; False: known."""
        if self.over:
            return False
        self.over = True
        if self.counted:
            self.count_out()
        self.streams.left(self)
        return True

    def lost(self, reason: str) -> CallHomeError:
        """The error of a stream whose engine has died."""
        what = f"{self.record.endpoint}: {self.engine} died"
        if not self.accepted:
            return WorkerLost(f"{what} before it accepted the stream: {reason}")
        return PeerLost(f"{what} after {self.seq} items: {reason}")


def _due(arrival: Arrival, settings: Settings) -> float:
    if arrival.deadline is not None:
        return arrival.deadline
    limit = settings.call_timeout
    return math.inf if limit is None else time.monotonic() + limit
