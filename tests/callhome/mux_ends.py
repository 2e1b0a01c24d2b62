"""Both ends of the connection that two nodes share, over real sockets, for tests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from actors.messages import ItemBody, Items
from transport.callhome.link import Link
from transport.callhome.mux import MuxConnection
from transport.callhome.net import Net, tune
from transport.errors import CallHomeError
from transport.wire.message import BatchWriter, Message
from transport.wire.mux import BATCH, pack_mux

A, B = 0xA, 0xB


def sockets() -> tuple[socket.socket, socket.socket]:
    """Two connected TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname(), timeout=60)
        two, _ = server.accept()
    return one, two


class Side:
    """One end: keeps what came, in order, and takes in every body that is announced."""

    def __init__(self, net: Net, sock: socket.socket, incarnation: int, rest: bytes = b"") -> None:
        tune(sock)
        self.messages: list[Message] = []
        self.bodies: dict[int, bytearray] = {}
        #: ``(number, whole)`` of each body that has come to its end, in order.
        self.done: list[tuple[int, bool]] = []
        self.left: list[int] = []
        self.errors: list[CallHomeError] = []
        self.wanted = True
        self.failing = False
        self.most_open = 0
        self.connection = MuxConnection(
            Link(net, sock), rest, incarnation=incarnation, deliver=self._came, lost=self._lost
        )

    def _came(self, message: Message) -> None:
        self.messages.append(message)
        if isinstance(message, ItemBody) and self.wanted:
            self.take_in(message)
        if self.failing:
            raise ValueError("the owner's own fault")

    def take_in(self, message: ItemBody) -> None:
        """Expect the body that ``message`` announces."""
        number, size = message.body, message.size
        self.bodies[number] = place = bytearray(size)
        view = memoryview(place)
        targets = [view[: size // 3], view[size // 3 :]]

        def done(whole: bool) -> None:
            self.done.append((number, whole))
            if self.failing:
                raise ValueError("the owner's own fault")

        self.connection.expect(number, targets, done)
        self.most_open = max(self.most_open, self.connection.statistics()["bodies_in"])

    def _lost(self, error: CallHomeError) -> None:
        self.errors.append(error)

    def body(self, stream: int, data: bytes, pieces: int = 2) -> int:
        """Send a body of ``stream`` in so many pieces; its number."""
        number = self.connection.new_body()
        step = max(1, len(data) // pieces)
        parts = [memoryview(data)[at : at + step] for at in range(0, len(data), step)]
        message = ItemBody(stream, 0, len(data), [], len(data), number)
        self.connection.send_body(message, number, parts, lambda: self.left.append(number))
        return number


@contextlib.contextmanager
def ends() -> Iterator[tuple[Side, Side]]:
    """Two connected ends on one net."""
    net = Net()
    one, two = sockets()
    a, b = Side(net, one, A), Side(net, two, B)
    try:
        yield a, b
    finally:
        a.connection.close()
        b.connection.close()
        net.close()


@contextlib.contextmanager
def raw_end(rest: bytes = b"") -> Iterator[tuple[Side, socket.socket]]:
    """An end whose peer is a bare socket."""
    net = Net()
    one, two = sockets()
    side = Side(net, one, A, rest)
    try:
        yield side, two
    finally:
        two.close()
        side.connection.close()
        net.close()


def items(stream: int, first: int = 0) -> Items:
    """A message that can be told from others."""
    return Items(stream, first, [b"%d" % first])


def batch(*messages: tuple[object, ...], sender: int = B) -> bytes:
    """A batch as it crosses the wire."""
    packed = BatchWriter(sender).pack(messages)
    return pack_mux(BATCH, len(packed)) + packed


def announced(number: int, size: int) -> bytes:
    """The batch that announces a body."""
    return batch(ItemBody(1, 0, size, [], size, number))
