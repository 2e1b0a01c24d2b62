"""A client of requests, a server of ours behind it, and bare strangers, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.callhome.sockets import a_net
from tests.waiting import LONG, wait_until
from transport.callhome.net import Net
from transport.callhome.requests import RequestClient
from transport.callhome.server import Reply, RequestServer
from transport.errors import CallHomeError
from transport.wire.request import RequestFrame, RequestReader

Answer = bytes | CallHomeError


class Bench:
    """A client and a server of ours that leaves the answers to the test."""

    def __init__(self, net: Net, client: RequestClient) -> None:
        self.net = net
        self.client = client
        self.frames: list[RequestFrame] = []
        self.replies: list[Reply] = []
        self.echo = False
        self.server = RequestServer(net, "127.0.0.1", 0, self._handle)
        self.server.open()
        self.answers: dict[str, list[Answer]] = {}

    def _handle(self, frame: RequestFrame, reply: Reply) -> None:
        self.frames.append(frame)
        self.replies.append(reply)
        if self.echo:
            reply(frame.payload)

    def ask(self, name: str, address: str = "", payload: bytes = b"") -> None:
        """Send a request of that name; its answers are gathered."""
        got = self.answers.setdefault(name, [])
        headers = {"request-id": name}
        parts = [payload or name.encode()]
        self.client.send(address or self.server.address, "1a/n/c/e", headers, parts, got.append)

    async def answer(self, name: str) -> Answer:
        """The only answer to that request."""
        got = self.answers[name]
        await wait_until(lambda: got, what=f"answer to {name}")
        assert len(got) == 1
        return got[0]

    async def error(self, name: str, sent: str) -> CallHomeError:
        """The error that is the only answer, which says that about being sent."""
        error = await self.answer(name)
        assert isinstance(error, CallHomeError)
        assert error.details["sent"] == sent
        return error

    def seen(self) -> list[str]:
        """Names of the requests that the server has taken."""
        return [frame.headers["request-id"] for frame in self.frames]

    def count(self, what: str) -> int:
        """A number out of the client's statistics."""
        return self.client.statistics()[what]


@contextlib.asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    """A bench whose client has these options."""
    with a_net() as net:
        async with asyncio.TaskGroup() as tasks:
            made = Bench(net, RequestClient(net, tasks, **options))
            try:
                yield made
            finally:
                made.client.close()
                made.server.close()
        for name, got in made.answers.items():
            assert len(got) == 1, f"{name} has {len(got)} answers"


@contextlib.asynccontextmanager
async def stranger() -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """The address of a bare listening socket, and how to take its next connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        taken: list[socket.socket] = []

        async def take() -> socket.socket:
            sock, _ = await asyncio.get_running_loop().sock_accept(server)
            sock.setblocking(False)
            taken.append(sock)
            return sock

        host, port = server.getsockname()
        try:
            yield f"{host}:{port}", take
        finally:
            for sock in taken:
                sock.close()


async def read_requests(sock: socket.socket, count: int) -> list[RequestFrame]:
    """The next requests on a bare connection."""
    reader, frames = RequestReader(), list[RequestFrame]()
    while len(frames) < count:
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 65_536), LONG)
        assert data, f"the end came after {len(frames)} of {count} requests"
        frames += reader.feed(data)
    return frames


async def caller(address: str) -> socket.socket:
    """A bare non-blocking connection with ``host:port``."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except BaseException:
        sock.close()
        raise
    return sock
