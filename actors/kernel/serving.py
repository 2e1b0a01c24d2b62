"""Streams served here: what every actor that answers Opens has in common.

``Serving`` keeps the table of streams by home and number, applies cancels, credit and request
items, sends Accept, items and the end. The role above (``EngineActor``, or ``Actor`` for ask and
stream) decides when a stream starts and runs its handler through ``pump``.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.pump import Pump, engine_error
from actors.kernel.role import Role
from actors.kernel.served import Key, Served
from actors.kernel.tombstones import Tombstones
from actors.messages import (
    Accept,
    Credit,
    End,
    Feed,
    FeedEnd,
    FeedItem,
    Items,
    Kill,
    Open,
    Stop,
)
from actors.metrics import Counters
from transport.bus.address import Address
from transport.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    to_wire,
)
from transport.wire import stream as machine

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime


#: Bytes of the last items that travel inside the End.
_WITH_END: Final = 4096
_NONE: Final[list[bytes]] = []


class Serving:
    """All streams that one runtime serves."""

    def __init__(self, runtime: Runtime, role: Role, counters: Counters) -> None:
        self.runtime = runtime
        self.role = role
        self.counters = counters
        settings = runtime.settings
        self.window_items = settings.window_items
        self.window_bytes = settings.window_bytes
        self.streams: dict[Key, Served] = {}
        self._dirty: list[Served] = []
        self._unaccepted: list[Served] = []
        self._tombstones = Tombstones()
        #: Why no stream begins any more, once this actor stops.
        self._shut = ""
        #: Handlers that ``shut`` has cancelled; they may take their time.
        self.ending: list[asyncio.Task[None]] = []
        self.pump = Pump(self)
        self._loop = asyncio.get_running_loop()
        runtime.on(Open, self.open)
        runtime.on(Credit, self._credit)
        runtime.on(Stop, self._stop)
        runtime.on(Kill, self._kill)
        runtime.on(Feed, self._feed)
        runtime.on(FeedItem, self._feed_item)
        runtime.on(FeedEnd, self._feed_end)
        runtime.port.before_flush.append(self._collect)

    def open(self, sender: int, m: Open) -> None:
        """Take in an Open; a router hands on those that are meant for itself."""
        key = (m.home.incarnation, m.stream)
        if key in self.streams:
            raise RemoteProtocolError(f"stream {m.stream} of {m.home} was opened twice")
        deadline = None if m.remaining is None else time.monotonic() + m.remaining
        stream = Served(self, m, self.role.make_context(m, deadline))
        self.streams[key] = stream
        self.role.came(stream)
        self.counters.requests += stream.counted
        stream.context.when_cancelled = lambda _: self._cancelled(stream)
        peers = self.runtime.peers
        peers.note(m.home)
        if not peers.watch(m.home) and not peers.again(m.home):
            # Its Open came behind the news of its death, by way of a router: nobody waits for it.
            stream.context.kill(f"the caller {m.home} died")
            return
        if self._shut:
            stream.taken = True  # nobody was told that we hold its frames
            self.end(stream, ConnectionLost(f"{m.target}: {self._shut}", sent="no"))
            return
        try:
            self.runtime.attach(m.segments, key[0])
            self.runtime.expect(m.handles)
        except CallHomeError as error:
            stream.taken = True  # nobody was told that we hold its frames
            self.end(stream, error)
            return
        if m.handles:
            self.accept(stream)  # at once: the home must know who holds its frames
        tomb = self._tombstones.take(*key, time.monotonic())
        if tomb is not None and tomb.kill:
            stream.context.kill(tomb.reason)  # it never starts
            return
        if tomb is not None:
            stream.context.stop(tomb.reason)
            return
        if m.handles and self.runtime.adopting.waits(stream, partial(self._begin, stream)):
            return
        self._begin(stream)

    def _begin(self, stream: Served) -> None:
        """The request can be read."""
        if stream.key not in self.streams:
            return
        self.runtime.plan_tick()
        self.role.begin(stream)
        if stream.key in self.streams:
            # Two turns later, so that a handler that ends at once needs no Accept at all.
            if not self._unaccepted:
                self._loop.call_soon(self._loop.call_soon, self._accept_late)
            self._unaccepted.append(stream)

    def _accept_late(self) -> None:
        waiting, self._unaccepted = self._unaccepted, []
        for stream in waiting:
            if stream.key in self.streams:
                self.accept(stream)

    def accept(self, stream: Served) -> None:
        """Tell the home its peer, once, before anything else of the stream."""
        if stream.accepted or not stream.state.waiting:
            return
        stream.state.feed(machine.ACCEPT, LocalProtocolError)
        self._send_accept(stream)

    def _send_accept(self, stream: Served) -> None:
        stream.accepted = True
        feed = (self.window_items, self.window_bytes) if stream.open.many else (0, 0)
        accept, port = Accept(stream.key[1], self.runtime.address, *feed), self.runtime.port
        # Where the home does not read it must not wait behind others' items: should we be killed,
        # the home would know nobody whose death ends the stream.
        port.send(stream.home, accept, control=port.backlog(stream.home) > 0)

    def mark(self, stream: Served) -> None:
        """The stream has items for this tick's batch."""
        self._dirty.append(stream)
        if stream.accepted:
            self.runtime.port.plan_flush()
        # Otherwise _accept_late is on its way, unless the End comes first: both flush.

    def collect(self, stream: Served) -> None:
        """Queue a stream's gathered items now, so that what follows stays behind them."""
        if stream.batch:
            self.accept(stream)
            self._send_batch(stream)

    def _send_batch(self, stream: Served) -> None:
        batch = stream.batch
        if not batch:
            return
        stream.batch = []
        size = sum(map(len, batch))
        if not stream.state.response_open:
            return  # killed meanwhile; plain bytes hold no leases
        self.runtime.port.send(stream.home, Items(stream.key[1], stream.seq, batch), size=size)
        self._count_batch(stream, batch, size)

    def _count_batch(self, stream: Served, batch: list[bytes], size: int) -> None:
        stream.state.feed(machine.DATA, LocalProtocolError)
        stream.seq += len(batch)
        if stream.counted:
            self.counters.items += len(batch)
            self.counters.bytes += size

    def _collect(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for stream in dirty:
                self.collect(stream)

    def _credit(self, sender: int, m: Credit) -> None:
        stream = self.streams.get((sender, m.stream))
        if stream is not None:
            stream.credit.grant(m.items, m.bytes)
            waiter = stream.credit_waiter
            if waiter is not None and stream.credit.open and not waiter.done():
                stream.credit_waiter = None
                self.pump.turns.queue(waiter)

    def _feed(self, sender: int, m: Feed) -> None:
        payloads = m.payloads
        stream = self._fed(sender, m.stream, m.first, len(payloads), sum(map(len, payloads)))
        if stream is not None:
            stream.feed_queue.extend(payloads)
            stream.wake_feed()

    def _feed_item(self, sender: int, m: FeedItem) -> None:
        stream = self._fed(sender, m.stream, m.seq, 1, m.size)
        if stream is None:
            self.runtime.drop(m.handles)
            return
        try:
            self.runtime.expect(m.handles)
        except RemoteProtocolError as error:
            self.break_feed(stream, error)  # counted already: without it the request is not whole
            return
        stream.feed_queue.append((m.payload, m.handles, m.size))
        stream.wake_feed()

    def _fed(self, sender: int, number: int, first: int, count: int, size: int) -> Served | None:
        stream = self.streams.get((sender, number))
        if stream is None or not stream.state.accepts(machine.FEED):
            return None  # the response has ended; the home learns that from its End
        if first != stream.feed_seq or not stream.feed_window.arrive(count, size):
            text = f"request item {first} of stream {number} is out of order or beyond its credit"
            self.break_feed(stream, RemoteProtocolError(text))
            return None
        stream.feed_seq += count
        return stream

    def _feed_end(self, sender: int, m: FeedEnd) -> None:
        stream = self.streams.get((sender, m.stream))
        if stream is None or not stream.state.accepts(machine.FEED_END):
            return
        if m.total != stream.feed_seq:
            text = f"the request was cut, {stream.feed_seq} of {m.total} items arrived"
            self.break_feed(stream, ConnectionLost(text))
            return
        stream.state.feed(machine.FEED_END, RemoteProtocolError)
        stream.feed_ended = True
        stream.wake_feed()

    def break_feed(self, stream: Served, error: CallHomeError) -> None:
        """A request that is not whole must not look complete: the handler gets the error, then a
        kill.
        """
        stream.verdict = error
        stream.feed_ended = False
        stream.context.kill(str(error))

    def _stop(self, sender: int, m: Stop) -> None:
        self._cancel(sender, m, kill=False)

    def _kill(self, sender: int, m: Kill) -> None:
        self._cancel(sender, m, kill=True)

    def _cancel(self, sender: int, m: Stop | Kill, kill: bool) -> None:
        stream, reason = self.streams.get((m.home, m.stream)), m.reason
        if stream is None:
            self._tombstones.put(m.home, m.stream, time.monotonic(), kill, reason)
            self.runtime.plan_tick()
            return
        if sender != m.home and (stream.router is None or sender != stream.router.incarnation):
            raise RemoteProtocolError(f"stream {m.stream} of {stream.home} is not the sender's")
        if kill:
            stream.context.kill(reason)
            if stream.key in self.streams:
                self.role.killed(stream)
        else:
            stream.context.stop(reason)

    def _cancelled(self, stream: Served) -> None:
        context = stream.context
        if stream.key not in self.streams:
            return
        signal = machine.KILL if context.killed else machine.STOP
        if not stream.state.stopped:
            self.counters.cancelled += 1
        stream.state.feed(signal, LocalProtocolError)
        if not stream.begun:
            # It waits in the role's queue, or its task for the loop's turn, and shall never start.
            # A task that is cancelled before its first line runs no ``finally``: it ends here. One
            # that was asked to finish has nothing more to say, which is a clean end.
            text = f"{stream.open.target}: {context.reason}, before it began"
            self.end(stream, Cancelled(text) if context.killed else None)
            if stream.task is not None:
                stream.task.cancel()
        elif context.killed and stream.task is not None:
            stream.batch.clear()
            self.drop_feed(stream)
            stream.wake_credit()
            if stream.task is not None:
                stream.task.cancel()

    def request(self, stream: Served) -> Any:
        """The request of a single-in stream, decoded once. Raises DecodeError and what handles
        raise.
        """
        stream.taken = True
        return self.runtime.decode(stream.open.payload, stream.open.handles, stream.codec)

    def drop_feed(self, stream: Served) -> None:
        """Give back what request items hold that nobody will take; a request that had ended with
        them has no clean end any more.
        """
        if stream.feed_queue:
            stream.feed_ended = False
        self.runtime.drop_items(stream.feed_queue)

    def end(self, stream: Served, error: BaseException | None = None) -> None:
        """The handler has ended, or the stream never starts: tell the home unless it killed the
        stream.
        """
        if self.streams.pop(stream.key, None) is None:
            return
        error = stream.verdict or error
        if error is not None:
            self.counters.failed(error)
        self.drop_feed(stream)
        if not stream.taken and stream.open.handles:
            self.runtime.adopting.drop(stream)
        told = None
        if error is not None:
            told = to_wire(error if isinstance(error, CallHomeError) else engine_error(error))
            stream.outcome = str(told[0])
        self.role.gone(stream)
        # No Accept for what ends at once, and no message of its own for the last few items; but
        # where the End has to wait: the router, which is told by another road, forgets us now.
        last = self._take_last(stream)
        if not stream.accepted and self.runtime.port.backlog(stream.home):
            self._send_accept(stream)
        if stream.state.response_open:
            stream.state.feed(machine.END if error is None else machine.FAIL, LocalProtocolError)
            self._send_end(stream, told, last)
        elif stream.verdict is not None:
            # The kill was ours, so the home does not know yet.
            self._send_end(stream, told, last)
        stream.wake_feed()
        stream.context.finish("the handler that made the call has ended")

    def _take_last(self, stream: Served) -> list[bytes]:
        """The items that leave with the End; more than a few bytes leave before it."""
        batch = stream.batch
        size = sum(map(len, batch))
        if size > _WITH_END or not stream.state.response_open:
            self._send_batch(stream)
            return _NONE
        if batch:
            stream.batch = []
            self._count_batch(stream, batch, size)
        return batch

    def _send_end(self, stream: Served, told: list[Any] | None, last: list[bytes]) -> None:
        message = End(stream.key[1], stream.seq, told, self.role.report(stream), last)
        size = (64 if told is None else 2048) + sum(map(len, last))
        self.runtime.port.send(stream.home, message, size=size)
        self.runtime.port.hurry()

    def shut(self, reason: str) -> None:
        """This actor stops: every home is told so, every handler is cancelled, no stream begins."""
        self._shut = reason
        for stream in list(self.streams.values()):
            self.end(stream, ConnectionLost(f"{stream.open.target}: {reason}"))
            stream.context.kill(reason)
            if stream.task is not None:
                stream.task.cancel()
                self.ending.append(stream.task)

    def down(self, address: Address, reason: str) -> None:
        """A home is gone: its streams are killed, their handlers end."""
        self._tombstones.forget(address.incarnation)
        for stream in [each for each in self.streams.values() if each.home == address]:
            stream.context.kill(f"the caller {address} died: {reason}")

    def busy(self) -> bool:
        """Whether anything here needs the coarse timer."""
        return bool(self.streams) or len(self._tombstones) > 0

    def check(self, now: float) -> None:
        """The coarse timer: deadlines expire here too, and tombstones crumble."""
        for stream in list(self.streams.values()):
            deadline = stream.context.deadline
            if deadline is not None and now >= deadline and not stream.context.killed:
                limit = stream.open.remaining or 0.0
                text = f"{stream.open.target}: no end within {round(limit, 3):g} s"
                stream.verdict = DeadlineExceeded(text)
                stream.context.kill("its deadline has passed")
        self._tombstones.crumble(now)
