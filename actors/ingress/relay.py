"""Streams of nodes of ours: relayed message by message, both ways, never decoded.

The requester's number stands in the messages on its connection, ours in those on the bus. Credit is
end to end, and so bounds what is under way here; what a home grants beyond this node's own windows
is held back while its connection is full.
"""

from __future__ import annotations

from typing import Any, Final

from actors.errors import WorkerLost
from actors.ingress.arrival import Arrival
from actors.ingress.connections import HomeConnection
from actors.ingress.stream import Stream
from actors.ingress.streams import Streams
from actors.kernel.bodies import LARGE, in_line, outgoing
from actors.kernel.lanes import Lane
from actors.messages import (
    Accept,
    Credit,
    End,
    Faulted,
    Feed,
    FeedCredit,
    FeedEnd,
    FeedItem,
    Item,
    ItemBody,
    Items,
    Kill,
    Open,
    Record,
    Stop,
)
from transport.errors import CallHomeError, RemoteProtocolError, read_error, to_wire
from transport.payload import Encoded
from transport.wire.message import Message

#: Bytes of the text of a cancel that are passed on.
_REASON: Final = 500


class RelayedStream(Stream):
    """One stream between a node of ours and an engine here."""

    __slots__ = (
        "_ahead_bytes",
        "_ahead_items",
        "_bodies",
        "_failure",
        "_lane",
        "_more_bytes",
        "_more_items",
        "_sent",
        "_takes",
        "connection",
        "remote",
    )

    def __init__(
        self,
        streams: Streams,
        arrival: Arrival,
        record: Record,
        connection: HomeConnection,
        remote: int,
        failure: CallHomeError | None = None,
    ) -> None:
        """``remote`` is the requester's number of the stream, ``failure`` what it is told instead
        of one.

        Raises RemoteProtocolError for a number that is in use.
        """
        self.remote = remote
        self.connection = connection
        connection.enter(self.remote, self)
        super().__init__(streams, arrival, record, connection.carried)
        self._failure = failure
        self._lane: Lane | None = None
        #: Items and bytes that the engine takes before it has to grant more.
        self._takes = (0, 0)
        #: Credit: what the engine has been granted in all, and what is held back from it.
        self._ahead_items, self._ahead_bytes = arrival.window_items, arrival.window_bytes
        self._more_items, self._more_bytes = arrival.more_items, arrival.more_bytes
        #: Bytes that have come from the engine, as ``seq`` counts its items.
        self._sent = 0
        #: Numbers of bodies that are on their way to the requester.
        self._bodies: set[int] | None = None

    # --- towards the engine

    def begin(self) -> None:
        if self.connection.mux is not None:
            self._go()

    def ready(self) -> None:
        """The connection is up: go on, if there is a place."""
        if self._failure is not None:
            self._refuse(self._failure)
        elif self.placed:
            self._go()

    def _go(self) -> None:
        if self._failure is not None:
            self._refuse(self._failure)
            return
        if self.connection.is_cancelled(self.remote, self):
            return
        if self.arrival.later:
            self.expects = True
        else:
            try:
                self.open(self.arrival.codec, True, self.arrival.payload)
            except CallHomeError as error:
                self.fail(error)
            self.arrival.payload = b""

    def waits(self) -> None:
        self.connection.is_cancelled(self.remote, self)

    def _stop_early(self) -> None:
        """It never starts, which is what a stop asks for: a clean end without items."""
        self.count_cancel()
        self._tell_home(End(self.remote, 0, None))
        self.leave()

    def heard(self, message: Message) -> None:
        """What the requester says about the stream."""
        _HEARD[type(message)](self, message)

    def _credit(self, m: Credit) -> None:
        if m.items < 0 or m.bytes < 0:
            self.fail(RemoteProtocolError("credit of less than nothing"))
            return
        self._more_items += m.items
        self._more_bytes += m.bytes
        if self.opened:
            self.grant()

    def grant(self) -> None:
        """Pass credit on, as far as no more comes by it than this node's windows let wait here.

        Whoever grants faster than it reads would else fill our memory. What an honest requester of
        the same windows grants is passed on as it comes.
        """
        mux = self.connection.mux
        if mux is None or self.over:
            return
        settings = self.streams.runtime.settings
        if mux.backlog > settings.window_bytes:
            self.streams.hold(self)
            return
        items = min(self._more_items, settings.window_items - self._ahead_items + self.seq)
        size = min(self._more_bytes, settings.window_bytes - self._ahead_bytes + self._sent)
        if items > 0 or size > 0:
            items, size = max(0, items), max(0, size)
            self._more_items -= items
            self._more_bytes -= size
            self._ahead_items += items
            self._ahead_bytes += size
            self.control(Credit(self.number, items, size))

    def _grant_later(self) -> None:
        """Items have gone, and some credit is held back: pass more of it on by halves of a
        window.
        """
        settings = self.streams.runtime.settings
        if (self._ahead_items - self.seq) * 2 < settings.window_items or (
            self._ahead_bytes - self._sent
        ) * 2 < settings.window_bytes:
            self.grant()

    def _stopped(self, m: Stop) -> None:
        if self.opened:
            self.stop(m.reason[:_REASON])
        else:
            self._stop_early()

    def _killed(self, m: Kill) -> None:
        self.kill(m.reason[:_REASON])

    def _feed(self, m: Feed) -> None:
        self._onward(Feed(self.number, m.first, m.payloads), sum(map(len, m.payloads)))

    def _feed_item(self, m: FeedItem) -> None:
        try:
            size = len(m.payload) + in_line(m.handles)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        self._onward(FeedItem(self.number, m.seq, m.payload, m.handles, size), size)

    def _feed_end(self, m: FeedEnd) -> None:
        self._onward(FeedEnd(self.number, m.total), 64)

    def _onward(self, message: Message, size: int) -> None:
        if self._lane is None:
            self.tell(message, size)
            return
        try:
            self._lane.send(message, size)
        except RemoteProtocolError as error:
            self.fail(error)

    def _body(self, m: ItemBody) -> None:
        """Something large: the request itself, or an item of it."""
        mux = self.connection.mux
        assert mux is not None  # the message has come over it
        if m.seq < 0 and (self.opened or not self.placed or not self.arrival.later):
            self.fail(RemoteProtocolError("the body of a request that has its own already"))
            return
        if self._lane is None:
            self._lane = Lane(self.streams.runtime, self.engine, self.number, *self._takes)
        if m.seq < 0:
            self.arrival.later = False
            self._lane.body(mux, m, self._open_later, self.fail)
        else:
            number, seq, size = self.number, m.seq, m.size
            self._lane.body(
                mux, m, lambda e: FeedItem(number, seq, e.data, e.handles, size), self.fail
            )

    def _open_later(self, encoded: Encoded) -> Open:
        """The request is whole: its Open, which the lane sends; unless it is closed by then."""
        try:
            self.check_alive()
            self.has_opened()
        except WorkerLost as error:
            self.fail(error)
        return self.opening(self.arrival.codec, True, encoded.data, encoded.handles)

    # --- towards the requester

    def accept(self, m: Accept) -> None:
        self._takes = m.feed_items, m.feed_bytes
        self._tell_home(m._replace(stream=self.remote))

    def items(self, m: Items) -> None:
        payloads = m.payloads
        size = sum(map(len, payloads))
        counters = self.streams.counters
        counters.items += len(payloads)
        counters.bytes += size
        self.seq = m.first + len(payloads)
        self._sent += size
        mux = self.connection.mux
        if mux is None:
            return
        if size <= LARGE:
            mux.send(Items(self.remote, m.first, payloads), size)
        else:
            self._spread(m)
        if self._more_items or self._more_bytes:
            self._grant_later()

    def _spread(self, m: Items) -> None:
        """Many bytes at once: what is large goes as a body, what is small in messages of a bounded
        size.
        """
        mux = self.connection.mux
        assert mux is not None
        batch: list[bytes] = []
        first, size = m.first, 0
        for seq, payload in enumerate(m.payloads, m.first):
            if batch and size + len(payload) > LARGE:
                mux.send(Items(self.remote, first, batch), size)
                batch, size = [], 0
            if len(payload) > LARGE:
                self._send_large(seq, payload, [])
                continue
            if not batch:
                first = seq
            batch.append(payload)
            size += len(payload)
        if batch:
            mux.send(Items(self.remote, first, batch), size)

    def item(self, m: Item) -> None:
        self.seq = m.seq + 1
        self._sent += m.size
        self.streams.counters.items += 1
        self.streams.counters.bytes += m.size
        mux = self.connection.mux
        if mux is None:
            self.streams.runtime.drop(m.handles)
        elif not self._send_large(m.seq, m.payload, m.handles):
            size = len(m.payload) + sum(map(_near, m.handles))
            mux.send(Item(self.remote, m.seq, m.payload, m.handles, m.size), size)
        if self._more_items or self._more_bytes:
            self._grant_later()

    def _send_large(self, seq: int, payload: bytes, handles: list[Any]) -> bool:
        """Send one item with a body, if it is large or lies in shared memory."""
        mux = self.connection.mux
        assert mux is not None
        try:
            found = outgoing(self.streams.runtime, payload, handles, mux.new_body())
        except CallHomeError as error:
            self.drop(str(error)[:_REASON])
            self._tell_home(End(self.remote, seq, to_wire(error)))
            return True
        if found is None:
            return False
        message = found.message(self.remote, seq)
        if not found.parts:
            mux.send(message, found.size)
            return True
        number = found.body
        if self._bodies is None:
            self._bodies = set()
        bodies = self._bodies
        bodies.add(number)
        mux.send_body(message, number, found.parts, lambda: bodies.discard(number))
        return True

    def faulted(self) -> None:
        super().faulted()
        if self.connection.knows_faults:
            self._tell_home(Faulted(self.remote))

    def end(self, m: End) -> None:
        if m.error is not None:
            self.failed(read_error(m.error))
        if not self.accepted and self._lane is not None:
            # Refused before it looked: nobody else gives back what it was lent.
            self.streams.runtime.memory.take_back_stream(self.engine.incarnation, self.number)
        if m.last:
            self.streams.counters.items += len(m.last)
            self.streams.counters.bytes += sum(map(len, m.last))
        self._tell_home(End(self.remote, m.total, m.error, None, m.last))
        self.leave()

    def feed_credit(self, m: FeedCredit) -> None:
        self._tell_home(FeedCredit(self.remote, m.items, m.bytes))

    def _tell_home(self, message: Message) -> None:
        mux = self.connection.mux
        if mux is not None:
            mux.send(message)

    # --- ends

    def fail(self, error: CallHomeError) -> None:
        if not self.over:
            self.streams.count_error(error)
            self._refuse(error)

    def _refuse(self, error: CallHomeError) -> None:
        if self.connection.mux is None:
            self._failure = error  # told as soon as there is a way
            return
        self._tell_home(End(self.remote, self.seq, to_wire(error)))
        self.drop(str(error)[:_REASON])

    def cut(self, error: CallHomeError) -> None:
        """The connection is gone, and with it who wanted the stream; or it never came to be."""
        if self.opened:
            self.kill(f"the connection to its caller is lost: {error}"[:_REASON])
        else:
            self.drop("its caller cannot be called home")

    def kill(self, reason: str) -> None:
        super().kill(reason)
        bodies, self._bodies = self._bodies, None
        if bodies and self.connection.mux is not None:
            for number in list(bodies):
                self.connection.mux.abort_body(number)

    def leave(self) -> bool:
        if not super().leave():
            return False
        self.connection.leave(self.remote, self)
        if self._lane is not None:
            self._lane.close()
        return True


def _near(entry: Any) -> int:
    """Bytes of ``[dtype, shape, bytes]`` in a message's table."""
    return len(entry[2]) if type(entry) is list and len(entry) == 3 else 64


_HEARD: Final[dict[type, Any]] = {
    Credit: RelayedStream._credit,
    Stop: RelayedStream._stopped,
    Kill: RelayedStream._killed,
    Feed: RelayedStream._feed,
    FeedItem: RelayedStream._feed_item,
    FeedEnd: RelayedStream._feed_end,
    ItemBody: RelayedStream._body,
}
