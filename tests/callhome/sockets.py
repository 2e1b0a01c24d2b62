"""Helpers: nets that are closed, connected links, a plain peer, and what a link told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator

from tests.waiting import LONG, wait_until
from transport.callhome.link import Link, Net
from transport.callhome.net import tune
from transport.errors import CallHomeError


@contextlib.contextmanager
def a_net() -> Iterator[Net]:
    """A net whose links are cut at the end."""
    net = Net()
    try:
        yield net
    finally:
        net.close()


class Heard:
    """What a link handed on, started at once."""

    def __init__(self, link: Link, start: bool = True) -> None:
        self.link = link
        self.data = bytearray()
        self.calls = 0
        self.ends: list[CallHomeError | None] = []
        if start:
            link.start(self.received, self.ends.append)

    def received(self, view: memoryview) -> None:
        self.calls += 1
        self.data += view

    async def wait_bytes(self, count: int) -> bytes:
        """Wait for ``count`` bytes in all."""
        await wait_until(lambda: len(self.data) >= count, what=f"{count} bytes came")
        return bytes(self.data)

    async def wait_end(self) -> CallHomeError | None:
        """Wait for the first end that was told."""
        await wait_until(lambda: self.ends, what="an end was told")
        return self.ends[0]

    async def wait_error(self) -> CallHomeError:
        """Wait until the connection is gone; the error."""
        await wait_until(lambda: self.ends and self.ends[-1] is not None, what="an error was told")
        error = self.ends[-1]
        assert error is not None
        return error


def sockets() -> tuple[socket.socket, socket.socket]:
    """Two ends of a loopback connection, both non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    tune(one)
    tune(two)
    return one, two


@contextlib.contextmanager
def a_pair(net: Net) -> Iterator[tuple[Link, socket.socket]]:
    """A link, and the plain non-blocking socket at the other end of it."""
    one, two = sockets()
    with two:
        yield Link(net, one), two


def two_links(net: Net) -> tuple[Link, Link]:
    """Both ends as links."""
    one, two = sockets()
    return Link(net, one), Link(net, two)


async def read_all(sock: socket.socket) -> bytes:
    """Everything until the peer's end; raises what the system raises."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while some := await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), LONG):
        data += some
    return bytes(data)


async def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count:
        some = await asyncio.wait_for(loop.sock_recv(sock, count - len(data)), LONG)
        assert some, f"the end came after {len(data)} of {count} bytes"
        data += some
    return bytes(data)


def reset(sock: socket.socket) -> None:
    """Close so that the peer sees a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def connect(address: str) -> socket.socket:
    """A plain non-blocking connection to ``host:port`` of this machine."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.setblocking(False)
    return sock


async def closed_by_peer(sock: socket.socket, timeout: float = LONG) -> bool:
    """Whether the peer ends the connection within ``timeout`` seconds; closes it here too."""
    loop = asyncio.get_running_loop()
    try:
        while await asyncio.wait_for(loop.sock_recv(sock, 65_536), timeout):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        sock.close()
