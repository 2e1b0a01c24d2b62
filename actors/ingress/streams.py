"""The engine's side of all streams that an ingress relays: their table, and what engines say.

To an engine the ingress is a home like any other. Its relayed streams have numbers of their own
range, so that the streams that this actor opens for itself stay with the runtime's ``Home``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from actors.ingress.stream import Stream
from actors.kernel.runtime import Runtime
from actors.messages import Accept, End, Faulted, FeedCredit, Item, Items
from actors.metrics import Counters
from transport.bus.address import Address
from transport.callhome.flushes import Flushes
from transport.callhome.link import Net
from transport.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
    text_of,
)

#: Numbers of relayed streams begin here; ``Home`` counts from 1.
FIRST: Final = 1 << 31
#: Seconds for a dial where the settings have no limit.
DIAL: Final = 5.0


class Lingering(Protocol):
    """A stream whose socket waits for its requester to close it; ``closing``: until when."""

    number: int
    closing: float

    def settle(self) -> None:
        """It was waited for long enough."""


class Granting(Protocol):
    """A stream that holds back credit while its connection is full."""

    def grant(self) -> None:
        """Look again."""


class Streams:
    """All relayed streams of one ingress; takes from the runtime what engines say to them."""

    def __init__(
        self, runtime: Runtime, counters: Counters, tasks: asyncio.TaskGroup, net: Net
    ) -> None:
        self.runtime = runtime
        self.counters = counters
        self.tasks = tasks
        self.net = net
        self.table: dict[int, Stream] = {}
        #: Those of them that have not come to their engine yet.
        self.unopened: dict[int, Stream] = {}
        #: Bytes of their requests.
        self.unopened_bytes = 0
        #: Streams that are over but for their requester's last word.
        self.lingering: dict[int, Lingering] = {}
        #: Those whose requesters take more than this node lets wait for them.
        self.held: set[Granting] = set()
        self._running: set[asyncio.Task[None]] = set()
        #: Called with each stream that leaves the table: its place is free.
        self.when_left: Callable[[Stream], None] = lambda stream: None
        #: How many streams of Dynamo's requesters each engine has, by its incarnation.
        self.carried: dict[int, int] = {}
        #: Called when there are more or fewer streams at an engine, unless ``telling``: nobody
        #: follows the loads, or they will be looked at soon in any case.
        self.tell_loads: Callable[[], None] = lambda: None
        self.telling = True
        #: Called with the incarnation of an engine that has refused a stream for want of room.
        self.refused: Callable[[int], None] = lambda engine: None
        #: Collectors of what goes out with this tick's batch, and connections that leave with it.
        self._dirty: list[Callable[[], None]] = []
        self.flushes = Flushes(runtime.port.plan_flush, self.broken)
        self._next = FIRST
        self._own: dict[type, Callable[[int, Any], None]] = {}
        self._take(Accept, self._accept)
        self._take(Items, self._items)
        self._take(Item, self._item)
        self._take(End, self._end)
        self._take(FeedCredit, self._feed_credit)
        runtime.on(Faulted, self._faulted)
        runtime.when_down.append(self._down)
        runtime.port.before_flush.append(self._collect)

    def _take(self, kind: type[Any], handler: Callable[[int, Any], None]) -> None:
        self._own[kind] = self.runtime.handler(kind)
        self.runtime.on(kind, handler)

    def enter(self, stream: Stream) -> int:
        """A number for a new stream, which stands in the table from now on."""
        number = self._next
        self._next = number + 1
        self.table[number] = self.unopened[number] = stream
        self.unopened_bytes += stream.arrival.size
        self.runtime.plan_tick()
        return number

    def left(self, stream: Stream) -> None:
        """A stream is over; what still comes for it is answered by ``Home``, with Kill."""
        self.table.pop(stream.number, None)
        if not stream.opened:
            self.arrived(stream)
        self.when_left(stream)

    def arrived(self, stream: Stream) -> None:
        """A stream has come to its engine, or to its end."""
        if self.unopened.pop(stream.number, None) is not None:
            self.unopened_bytes -= stream.arrival.size

    def linger(self, stream: Lingering) -> None:
        """A stream has said its last and waits for its requester to close."""
        self.lingering[stream.number] = stream
        self.runtime.plan_tick()

    def hold(self, stream: Granting) -> None:
        """Its connection is full: look again with the next tick of the coarse timer."""
        self.held.add(stream)
        self.runtime.plan_tick()

    def start(
        self,
        dial: Coroutine[Any, Any, None],
        name: str,
        failed: Callable[[CallHomeError], None],
    ) -> None:
        """Run a dial in the actor's task group. What it did not expect is logged, and ends with
        ``failed`` whatever has waited for it, and nothing else.
        """

        async def run() -> None:
            try:
                await dial
            except Exception as error:
                text = f"{self.runtime.address.name} {name} failed"
                self.net.complain("ingress.dial_failed", text, error)
                failed(ConnectionLost(f"{name} failed: {type(error).__name__}: {text_of(error)}"))

        task = self.tasks.create_task(run(), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def begin(self, stream: Stream) -> None:
        """A stream has its place. If it fails over that, by whatever, it ends; it alone."""
        try:
            stream.begin()
        except Exception as error:
            self.fail(stream, self.broken(stream.record.endpoint, error))

    def fail(self, stream: Stream, error: CallHomeError) -> None:
        """End a stream with an error; one that cannot even do that is dropped."""
        try:
            stream.fail(error)
        except Exception as worse:
            self.broken(stream.record.endpoint, worse)
            stream.drop("it failed")

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.broken("one of its streams", error)

    def broken(self, what: str, error: Exception) -> CallHomeError:
        """Log what is our own fault; the error for whoever it hits."""
        name = self.runtime.address.name
        self.net.complain("ingress.failed", f"{name} failed on {what}", error)
        return LocalProtocolError(f"{name} failed: {type(error).__name__}: {text_of(error)}")

    def stop_dialling(self) -> None:
        """This ingress stops: nobody is called home any more."""
        for task in self._running:
            task.cancel()

    def check(self, now: float) -> bool:
        """The coarse timer: deadlines of what has not come to its engine; whether it goes on."""
        for stream in [each for each in self.unopened.values() if now >= each.due]:
            if stream.late:  # nobody could be told of it in time
                stream.drop("its time was over, and there is no way to its requester")
                continue
            stream.late = True
            stream.due = now + (self.runtime.settings.connect_timeout or DIAL) + DIAL
            text = f"{stream.record.endpoint}: its time was over before the engine had it"
            self.fail(stream, DeadlineExceeded(text))
        held, self.held = self.held, set()
        for waiting in held:
            self._guard(waiting.grant)
        for last in [each for each in self.lingering.values() if now >= each.closing]:
            self._guard(last.settle)
        return bool(self.unopened or self.lingering or self.held)

    def _find(self, sender: int, m: Any) -> Stream | None:
        stream = self.table.get(m.stream)
        if stream is None:
            self._own[type(m)](sender, m)
        elif sender != stream.engine.incarnation:
            raise RemoteProtocolError(f"stream {m.stream} is not served by the sender")
        return stream

    def _accept(self, sender: int, m: Accept) -> None:
        stream = self._find(sender, m)
        if stream is not None:
            stream.accepted = True
            stream.accept(m)

    def _items(self, sender: int, m: Items) -> None:
        # The hot path: no call that can be spared.
        stream = self.table.get(m.stream)
        if stream is None or sender != stream.engine.incarnation:
            self._find(sender, m)
            return
        stream.items(m)

    def _item(self, sender: int, m: Item) -> None:
        stream = self._find(sender, m)
        if stream is not None:
            stream.item(m)

    def _end(self, sender: int, m: End) -> None:
        # As above: of most streams there is nothing else.
        stream = self.table.get(m.stream)
        if stream is None or sender != stream.engine.incarnation:
            self._find(sender, m)
            return
        stream.end(m)

    def _feed_credit(self, sender: int, m: FeedCredit) -> None:
        stream = self._find(sender, m)
        if stream is not None:
            stream.feed_credit(m)

    def _faulted(self, sender: int, m: Faulted) -> None:
        stream = self.table.get(m.stream)
        if stream is not None and sender == stream.engine.incarnation:
            stream.faulted()

    def _collect(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for collect in dirty:
                self._guard(collect)
        if self.flushes.waiting:
            self.flushes.flush()

    def mark(self, collect: Callable[[], None]) -> None:
        """Call ``collect`` before this tick's messages leave."""
        self._dirty.append(collect)
        self.runtime.port.plan_flush()

    def _down(self, address: Address, reason: str) -> None:
        """An engine is gone, behind everything that it had sent."""
        for stream in [each for each in self.table.values() if each.engine == address]:
            # One that waits for a place or for its dial asks when it comes to it.
            if stream.opened or stream.expects:
                self.fail(stream, stream.lost(reason))

    def count(self, kind: str) -> None:
        """Count a failure by Dynamo's name for its kind."""
        errors = self.counters.errors
        errors[kind] = errors.get(kind, 0) + 1

    def complain(self, what: str, text: str) -> None:
        """Count something under a short name, and log it unless it was logged just now."""
        self.net.complain(what, f"{self.runtime.address.name} {text}")

    def count_error(self, error: CallHomeError) -> None:
        """Count what an engine, or the road to it, ended a stream with."""
        if isinstance(error, Cancelled):
            return  # counted where the cancel came from
        kind = "generate"
        if isinstance(error, DecodeError):
            kind = "deserialization"
        elif isinstance(error, PayloadError):
            kind = "serialization"
        self.count(kind)
