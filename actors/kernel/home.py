"""Streams at their home: opened here, answered here, whoever serves them.

``Home`` gives the numbers, sends the Opens, collects what comes back and tells each stream how it
ended. A stream leaves its table the moment its fate is known; what still arrives for it later is
answered with Kill, and the leases in it go back. The classes that users hold are in
``actors.kernel.calls``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from actors.kernel.between import Between
from actors.kernel.deaths import Deaths
from actors.kernel.opened import Limits, Opened
from actors.kernel.peers import GONE
from actors.messages import (
    Accept,
    Credit,
    End,
    Faulted,
    Feed,
    FeedCredit,
    Item,
    Items,
    Kill,
    Report,
    Route,
    Stop,
)
from transport.bus.address import Address
from transport.context import Context
from transport.errors import (
    AttachFailed,
    CallHomeError,
    Cancelled,
    ConnectionLost,
    EngineError,
    LocalProtocolError,
    PeerLost,
    RemoteProtocolError,
    read_error,
    shown,
)
from transport.payload import Encoded
from transport.wire import stream as machine
from transport.wire.codec import CODECS
from transport.wire.plain import PLAIN

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime


class Home:
    """All streams that one runtime has opened."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        settings = runtime.settings
        self.window_items = settings.window_items
        self.window_bytes = settings.window_bytes
        self.streams: dict[int, Opened] = {}
        self._next = 1
        self._by_id: dict[str, Opened] = {}
        self._dirty: list[Opened] = []
        #: Streams that a handler of this actor's mailbox opened, and may be waiting for.
        self.handler_streams = 0
        self.between = Between()
        #: By router, then by worker: what came home with an End and goes out with the next Open.
        self._reports: dict[int, dict[int, Report]] = {}
        runtime.on(Accept, self._accept)
        runtime.on(Items, self._items)
        runtime.on(Item, self._item)
        runtime.on(End, self._end)
        runtime.on(FeedCredit, self._feed_credit)
        self._deaths = Deaths(self)
        runtime.on(Faulted, _ignore)
        runtime.port.before_flush.append(self._collect)

    def open(
        self,
        via: Address,
        target: str,
        encoded: Encoded,
        *,
        many: bool,
        codec: str,
        native: bool,
        limits: Limits,
        context: Context,
        named: bool,
        route: Route | None = None,
        keep: int = 0,
    ) -> Opened:
        """Send an Open to ``via`` (a router, or the actor itself). ``keep`` is as in ``Opened``.

        Raises ConnectionLost when ``via`` is dead, LocalProtocolError when the caller's own request
        id is in flight already or this runtime has closed, OutboxFull when ``via`` does not read.
        """
        runtime = self.runtime
        runtime.check_open()
        if named and self.find(context.id) not in (None, context):
            raise LocalProtocolError(
                f"request id {context.id!r} is in flight on this client; wait for its end "
                "or choose another"
            )
        if not runtime.peers.watch(via):
            raise PeerLost(f"{via} is dead: {runtime.peers.death(via) or GONE}", sent="no")
        number = self._next
        self._next = number + 1
        stream = Opened(self, number, target, via, many, codec, context, limits)
        reports = self._reports.pop(via.incarnation, None)
        found = list(reports.values()) if reports else []
        message = stream.message(encoded, native, found, route)
        stream.keep = keep
        runtime.port.queue(via, message, size=encoded.carried + 128, bounded=True)
        if encoded.handles:
            runtime.links.requested(number, encoded.handles, via)
        self.streams[number] = stream
        if stream.in_handler:
            self.handler_streams += 1
            runtime.apply_hold()
        if named:
            self._by_id[context.id] = stream
            self.between.sent(context)
        context.when_cancelled = lambda _: self._cancelled(stream)
        if context.stopped:
            self._cancelled(stream)
        runtime.plan_tick()
        runtime.port.hurry()
        return stream

    def find(self, request_id: str) -> Context | None:
        """The context of the request in flight that the caller gave this id."""
        stream = self._by_id.get(request_id)
        if stream is not None:
            return stream.context
        return self.between.find(request_id)

    def busy(self) -> bool:
        """Whether anything here needs the coarse timer."""
        return bool(self.streams)

    def grant(self, stream: Opened) -> None:
        """Tell the peer how much more it may send; before Accept the grant waits for it."""
        if stream.peer is None or not stream.state.response_open:
            return
        if stream.window.items <= 0 or stream.window.bytes <= 0:
            stream.progress = time.monotonic()  # the gap limit runs only while the peer has credit
        items, size = stream.window.owed()
        self.runtime.port.send(stream.peer, Credit(stream.number, items, size), control=True)

    def _accept(self, sender: int, m: Accept) -> None:
        stream, peers = self.streams.get(m.stream), self.runtime.peers
        peers.note(m.peer)
        # Watched also for a stream that is forgotten: until it says otherwise, it holds our frames.
        if not peers.watch(m.peer) and (how := peers.death(m.peer)) is not None:
            # Its barrier was passed: nothing of it follows.
            self._deaths.came_back(m.stream, stream)
            if stream is not None:
                error = PeerLost(f"{m.peer} died: {how}", **stream.worker(m.peer))
                self.finish(stream, machine.LOST, error)
            return
        keep = stream is not None and stream.keep > 0
        self.runtime.links.accepted(m.stream, m.peer.incarnation, keep)
        if stream is None:
            self._kill_unknown(m.peer.incarnation, m.stream)
            return
        if stream.state.waiting or stream.peer is not None:  # else its items have overtaken it
            stream.state.feed(machine.ACCEPT, RemoteProtocolError)
        stream.peer = m.peer
        if m.codec:
            if m.codec not in CODECS and m.codec not in PLAIN:
                text = f"{stream.target}: its items come in codec {shown(m.codec)}, which is none"
                self._fail(stream, RemoteProtocolError(text))
                return
            stream.codec = m.codec
        stream.feed_credit.grant(m.feed_items, m.feed_bytes)
        if stream.many and not stream.state.request_open and stream.state.response_open:
            stream.tell_feed_end()
        stream.wake_feed()
        if stream.waiter is not None and stream.window.taken_items:
            self.grant(stream)

    def _kill_unknown(self, sender: int, number: int) -> None:
        peer = self.runtime.peers.find(sender)
        if peer is not None:
            own, text = self.runtime.address.incarnation, "its home has forgotten the stream"
            self.runtime.port.send(peer, Kill(own, number, text), control=True)

    def _arrived(
        self, sender: int, number: int, first: int, count: int, size: int
    ) -> Opened | None:
        stream = self.streams.get(number)
        if stream is None:
            self._kill_unknown(sender, number)
            return None
        if stream.peer is not None and sender != stream.peer.incarnation:
            raise RemoteProtocolError(
                f"items of stream {number} from somebody who does not serve it"
            )
        if first != stream.seq:
            self._fail(
                stream,
                RemoteProtocolError(
                    f"{stream.target}: item {first} arrived where {stream.seq} was due"
                ),
            )
            return None
        if not stream.window.arrive(count, size):
            self._fail(
                stream, RemoteProtocolError(f"{stream.target}: the engine sent beyond its credit")
            )
            return None
        stream.state.feed(machine.DATA, RemoteProtocolError)
        if stream.keep == 1:
            stream.keep = 0
            self.runtime.links.settled(number)
        stream.seq += count
        stream.progress = time.monotonic()
        return stream

    def _items(self, sender: int, m: Items) -> None:
        self._take(sender, m.stream, m.first, m.payloads)

    def _take(self, sender: int, number: int, first: int, payloads: list[bytes]) -> None:
        size = sum(map(len, payloads))
        stream = self._arrived(sender, number, first, len(payloads), size)
        if stream is not None:
            stream.queue.extend(payloads)
            stream.wake()

    def _item(self, sender: int, m: Item) -> None:
        stream = self._arrived(sender, m.stream, m.seq, 1, m.size)
        if stream is None:
            self.runtime.drop(m.handles)
            return
        try:
            self.runtime.expect(m.handles)
        except RemoteProtocolError as error:
            self._fail(stream, error)
            return
        stream.queue.append((m.payload, m.handles, m.size))
        stream.wake()

    def _end(self, sender: int, m: End) -> None:
        stream = self.streams.get(m.stream)
        error = None if m.error is None else read_error(m.error)
        if stream is None or error is None:
            self.runtime.links.refused(m.stream)  # no Accept came before: nobody holds its frames
        elif stream.keep or isinstance(error, AttachFailed):
            self.runtime.links.came_back(m.stream)
        else:
            self.runtime.links.refused(m.stream)
        if stream is None:
            return
        if stream.peer is not None and sender != stream.peer.incarnation:
            raise RemoteProtocolError(
                f"end of stream {m.stream} from somebody who does not serve it"
            )
        if m.report is not None:
            self._reports.setdefault(stream.via.incarnation, {})[sender] = m.report
        if m.last:
            self._take(sender, m.stream, m.total - len(m.last), m.last)
            if not stream.state.response_open:
                return  # they were not the items that were due, and the stream has failed
        if error is not None:
            if sender != stream.via.incarnation and type(error) is not EngineError:
                error.details.setdefault("instance", str(sender))  # who is not to get it again
            self.finish(stream, machine.FAIL, error)
        elif m.total != stream.seq:
            # A clean end needs every item before it: anything else is a cut, whoever made it.
            self._fail(
                stream,
                ConnectionLost(
                    f"{stream.target}: the stream was cut, {stream.seq} of {m.total} items arrived"
                ),
            )
        else:
            self.finish(stream, machine.END, None)

    def _feed_credit(self, sender: int, m: FeedCredit) -> None:
        stream = self.streams.get(m.stream)
        if stream is not None and stream.peer is not None and stream.peer.incarnation == sender:
            stream.feed_credit.grant(m.items, m.bytes)
            stream.wake_feed()

    def finish(self, stream: Opened, signal: int, error: CallHomeError | None) -> None:
        """The response has ended, well or badly; nothing more belongs to this number."""
        if not stream.state.accepts(signal):
            return
        stream.state.feed(signal, RemoteProtocolError)
        stream.error = stream.error or error
        if stream.error is None and stream.keep:
            self.runtime.links.settled(stream.number)
        self._forget(stream)

    def _forget(self, stream: Opened) -> None:
        self.streams.pop(stream.number, None)
        if stream.in_handler:
            stream.in_handler = False
            self.handler_streams -= 1
            self.runtime.apply_hold()
        stream.context.when_cancelled = None
        if self._by_id.get(stream.context.id) is stream:
            del self._by_id[stream.context.id]
            self.between.broke(stream)
        stream.feed_batch.clear()
        stream.context.unlink()
        stream.wake()
        stream.wake_feed()

    def fail(self, stream: Opened, error: CallHomeError) -> None:
        """The stream is broken from our side, which its reader or sender has found: what has
        arrived behind is not delivered.
        """
        self.runtime.drop_items(stream.queue)
        if stream.state.response_open:
            self._fail(stream, error)
        else:
            stream.error = error

    def _fail(self, stream: Opened, error: CallHomeError) -> None:
        """The stream is broken from our side: tell the peer, keep what has arrived for the
        consumer.
        """
        self._tell_cancel(
            stream, Kill(self.runtime.address.incarnation, stream.number, str(error)[:200])
        )
        self.finish(stream, machine.LOST, error)

    def _cancelled(self, stream: Opened) -> None:
        """The stream's context was stopped or killed here."""
        context = stream.context
        if stream.number not in self.streams:
            return
        kind = Kill if context.killed else Stop
        signal = machine.KILL if context.killed else machine.STOP
        if not stream.state.feed(signal, LocalProtocolError):
            return
        self._tell_cancel(
            stream, kind(self.runtime.address.incarnation, stream.number, context.reason)
        )
        if context.killed:
            self.runtime.drop_items(stream.queue)
            stream.error = stream.error or Cancelled(f"{stream.target}: {context.reason}")
            stream.settle()
            self._forget(stream)

    def _tell_cancel(self, stream: Opened, message: Stop | Kill) -> None:
        if stream.peer is None:
            self.runtime.port.send(stream.via, message)
        else:
            self.runtime.port.send(stream.peer, message, control=True)
        self.runtime.port.flush()  # a cancel does not wait for the tick's end

    def down(self, address: Address, reason: str) -> None:
        """A process is gone, behind everything that it had sent."""
        self._reports.pop(address.incarnation, None)
        self._deaths.down(address, reason)

    def check(self, now: float) -> None:
        """The coarse timer: end what has run out of time."""
        for stream in list(self.streams.values()):
            error = stream.expired(now)
            if error is not None:
                self._fail(stream, error)

    def close(self, reason: str) -> None:
        """Kill every stream: this runtime closes."""
        for context in [
            *self.between.contexts(),
            *(each.context for each in self.streams.values()),
        ]:
            context.kill(reason)

    def mark_feed(self, stream: Opened) -> None:
        """The stream has request items for this tick's batch."""
        self._dirty.append(stream)
        self.runtime.port.plan_flush()

    def collect_feed(self, stream: Opened) -> None:
        """Queue a stream's gathered request items now, so that what follows stays behind them."""
        batch = stream.feed_batch
        if batch and stream.peer is not None:
            stream.feed_batch = []
            message = Feed(stream.number, stream.feed_seq, batch)
            stream.feed_seq += len(batch)
            self.runtime.port.send(stream.peer, message, size=sum(map(len, batch)))

    def _collect(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for stream in dirty:
                self.collect_feed(stream)


def _ignore(sender: int, m: Faulted) -> None:
    """The error item itself follows, and is told to the reader."""
