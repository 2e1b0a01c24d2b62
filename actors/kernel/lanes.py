"""One direction of one relayed stream, in order: small messages do not overtake large ones.

A relay (of a router or an ingress) has a lane for what it passes on to an actor of its own node.
What came whole goes on at once; behind a body that is still arriving it waits. What goes round a
lane is control: credit, stop and kill wait for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from actors.kernel.bodies import Incoming
from actors.kernel.links import held
from actors.messages import End, FeedEnd, ItemBody
from transport.bus.address import Address
from transport.errors import CallHomeError, ConnectionLost, RemoteProtocolError
from transport.payload import Encoded
from transport.wire.message import Message

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: Messages beside the items that a window counts (ends, and what has no items), and the bytes that
#: any message counts for.
_BESIDE: Final = 16
_ANY: Final = 4096
#: What needs no credit, and so may follow an item that went beyond it.
_ENDS: Final = (End, FeedEnd)


class Bodies(Protocol):
    """What a lane needs of the connection that a body comes over."""

    def expect(
        self, number: int, targets: Sequence[memoryview], done: Callable[[bool], None]
    ) -> None:
        """Put the bytes of body ``number`` into ``targets``; ``done`` hears whether it is whole."""

    def drop_body(self, number: int) -> None:
        """Body ``number`` is wanted no more; its ``done`` is not called."""


class _Place:
    """A place in the queue: a message that may go, or one whose body has not come yet."""

    __slots__ = ("encoded", "incoming", "message", "size", "unwanted", "waits")

    def __init__(self, message: Message | None, size: int) -> None:
        self.message = message
        #: Bytes that the message carries, and those that count while it waits here.
        self.size = self.waits = size
        self.incoming: Incoming | None = None
        #: Tells the connection, while the body comes, that it may go nowhere.
        self.unwanted: Callable[[], None] | None = None
        #: What is lent to the peer already, though its message has not gone.
        self.encoded: Encoded | None = None


class Lane:
    """What one relayed stream sends to ``peer``, an actor on this node's bus, as stream
    ``number``.

    ``items`` and ``size`` are the peer's window for this direction, 0: that of this node's
    settings. So much, and one item that is larger, may wait here, bodies counted as announced.
    """

    __slots__ = ("_closed", "_items", "_queue", "_runtime", "_size", "_waiting", "number", "peer")

    def __init__(
        self, runtime: Runtime, peer: Address, number: int, items: int = 0, size: int = 0
    ) -> None:
        self._runtime = runtime
        self._items = (items or runtime.settings.window_items) + _BESIDE
        self._size = (size or runtime.settings.window_bytes) + _BESIDE * _ANY
        self.peer = peer
        self.number = number
        # Most streams never have a body: theirs costs no queue.
        self._queue: deque[_Place] | None = None
        self._waiting = 0
        self._closed = False

    def send(self, message: Message, size: int = 64) -> None:
        """Pass a message of ``size`` bytes on, behind what waits; once closed, drop it.

        Raises RemoteProtocolError when more waits behind a body than any credit allows.
        """
        if self._closed:
            return
        if not self._queue:
            self._runtime.port.send(self.peer, message, size=size)
            return
        self._put(_Place(message, size))

    def _put(self, place: _Place) -> None:
        """Let it wait. Sending takes a positive balance of credit: the last may go beyond it."""
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        full = self._waiting >= self._size and type(place.message) not in _ENDS
        if full or len(queue) >= self._items:
            raise RemoteProtocolError(
                f"{len(queue)} messages and {self._waiting} bytes of one stream wait behind "
                "a body: its sender minds no credit"
            )
        queue.append(place)
        self._waiting += place.waits

    def body(
        self,
        connection: Bodies,
        message: ItemBody,
        make: Callable[[Encoded], Message],
        failed: Callable[[CallHomeError], None],
    ) -> None:
        """Take in what follows ``message`` and pass on what ``make`` says it is, in its turn.

        ``failed`` is called, at most once and never after ``close``, with RemoteProtocolError for a
        message that cannot be or for which there is no credit, TooLarge, MemoryExhausted, or
        ConnectionLost when the body does not come. The lane has closed by then, since what is
        behind a hole must not go on: the stream's end goes past it.
        """
        if self._closed:
            return
        place = _Place(None, message.size)

        def done(whole: bool) -> None:
            self._came(place, whole, make, failed)

        try:
            self._put(place)
            place.incoming = Incoming(self._runtime, message)
            if place.incoming.targets:
                connection.expect(message.body, place.incoming.targets, done)
                # Not before: it may be the number of somebody else's body.
                place.unwanted = partial(connection.drop_body, message.body)
        except CallHomeError as error:
            self.close()
            failed(error.with_traceback(None))  # which would hold on to the memory
            return
        if place.unwanted is None:
            done(True)

    def close(self) -> None:
        """Drop what waits; leases of what has not gone come back, bodies that come go nowhere."""
        self._closed = True
        queue, self._queue = self._queue, None
        for place in queue or ():
            if place.incoming is not None:
                place.incoming.drop()
                place.incoming = None
                if place.unwanted is not None:
                    place.unwanted()
            if place.encoded is not None:
                self._runtime.links.take_back(place.encoded, self.peer)

    def _came(
        self,
        place: _Place,
        whole: bool,
        make: Callable[[Encoded], Message],
        failed: Callable[[CallHomeError], None],
    ) -> None:
        incoming, place.incoming, place.unwanted = place.incoming, None, None
        if incoming is None:
            return  # closed meanwhile
        if not whole:
            incoming.drop()
            self.close()
            failed(ConnectionLost("a large value broke off on its way"))
            return

        def lent(found: Encoded | CallHomeError) -> None:
            if self._closed:
                if not isinstance(found, CallHomeError):
                    self._runtime.links.take_back(found, self.peer)
            elif isinstance(found, CallHomeError):
                self.close()
                failed(found)
            else:
                place.encoded, place.size = found, found.carried
                place.message = make(found)
                self._go_on()

        encoded = incoming.finish()
        if held(encoded.handles):
            self._runtime.links.lend_soon(encoded, self.peer, self.number, lent)
        else:
            lent(encoded)

    def _go_on(self) -> None:
        """Send what stands at the head and may go."""
        while self._queue and (message := self._queue[0].message) is not None:
            place = self._queue.popleft()
            self._waiting -= place.waits
            self._runtime.port.send(self.peer, message, size=place.size)
