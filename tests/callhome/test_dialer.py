"""Dialling: what cannot be reached is a typed error, soon, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.callhome.sockets import a_net, read_all
from tests.clock import at_once
from tests.waiting import LONG, TICK
from transport.callhome import dialer
from transport.callhome.dialer import dial
from transport.callhome.link import Net
from transport.errors import ConnectionLost, RemoteProtocolError


@contextlib.contextmanager
def refusing_address() -> Iterator[str]:
    """An address of this machine at which nobody listens, nor can anybody else."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def test_the_handshake_is_the_first_that_comes() -> None:
    with a_net() as net, socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        framed = await dial(net, address, b"handshake", LONG)
        assert framed.peer == address
        peer, _ = server.accept()
        with peer:
            peer.setblocking(False)
            framed.send(b"x")
            framed.close()
            assert (await read_all(peer)).startswith(b"handshake")
            assert net.counters == {"dialled": 1}


async def test_an_empty_handshake_writes_nothing() -> None:
    with a_net() as net, socket.create_server(("127.0.0.1", 0)) as server:
        framed = await dial(net, f"127.0.0.1:{server.getsockname()[1]}", b"", LONG)
        assert framed.backlog == 0


async def test_b134_refused_is_told_at_once() -> None:
    with a_net() as net, refusing_address() as address:
        dialling = asyncio.ensure_future(dial(net, address, b"x", LONG))
        await at_once(dialling.done, "a refusal")
        with pytest.raises(ConnectionLost, match=address) as caught:
            await dialling
        assert caught.value.details == {"peer": address, "errno": "ECONNREFUSED"}
        assert net.counters == {"dial.failed": 1}


@pytest.mark.parametrize("address", ["0.0.0.0:80", ":80", "host", "[::]:9", "127.0.0.1:0"])
async def test_b125_what_cannot_be_dialled_is_the_peers_fault(address: str) -> None:
    with a_net() as net, pytest.raises(RemoteProtocolError):
        await dial(net, address, b"x", LONG)


@pytest.mark.parametrize("address", ["a" * 64 + ".x:80", "a\x00b:80", "\ud800:80", "a..b:80"])
async def test_what_the_system_cannot_be_asked_for_is_the_peers_fault(address: str) -> None:
    with a_net() as net, pytest.raises(RemoteProtocolError):
        await dial(net, address, b"x", LONG)


async def test_whatever_a_lookup_raises_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*arguments: Any, **more: Any) -> Any:
        raise UnicodeError("label too long")

    monkeypatch.setattr(socket, "getaddrinfo", raises)
    with a_net() as net, pytest.raises(RemoteProtocolError, match="label too long"):
        await dial(net, "some.name:80", b"x", LONG)
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_name_is_looked_up() -> None:
    with a_net() as net, socket.create_server(("127.0.0.1", 0)) as server:
        framed = await dial(net, f"localhost:{server.getsockname()[1]}", b"x", LONG)
        assert framed.local.startswith("127.0.0.1:")
        with pytest.raises(ConnectionLost, match="no-such-host"):
            await dial(net, "no-such-host.invalid:80", b"x", LONG)
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_silence_is_an_end_too() -> None:
    with a_net() as net, socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        held = [socket.socket() for _ in range(4)]
        try:
            for sock in held:  # until the queue is full; then nobody answers
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", server.getsockname()[1]))
            with pytest.raises(ConnectionLost, match=r"has not answered within 0\.\d+ s") as caught:
                await dial(net, address, b"x", 2 * TICK)
            assert caught.value.details["errno"] == "ETIMEDOUT"
        finally:
            for sock in held:
                sock.close()


class NoPorts:
    """A loop that has no port to dial from, so many times."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: int) -> None:
        self.loop, self.left, self.tries = loop, times, 0

    async def sock_connect(self, sock: socket.socket, target: Any) -> None:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        await self.loop.sock_connect(sock, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "_PAUSES", (0.01, 0.01))


async def dial_without_ports(net: Net, times: int) -> NoPorts:
    """Dial somebody who listens; what it took, once that worked."""
    net.loop = ports = NoPorts(net.loop, times)  # type: ignore[assignment]
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            await dial(net, f"127.0.0.1:{server.getsockname()[1]}", b"", LONG)
        finally:
            net.loop = ports.loop
    return ports


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("times", [0, 1, 2])
async def test_a_lack_of_ports_that_passes_is_waited_for(times: int) -> None:
    with a_net() as net:
        assert (await dial_without_ports(net, times)).tries == times + 1


@pytest.mark.usefixtures("quick")
async def test_b134_no_port_to_dial_from_is_tried_three_times() -> None:
    with a_net() as net:
        with pytest.raises(ConnectionLost) as caught:
            await dial_without_ports(net, 99)
        assert caught.value.details["errno"] == "EADDRNOTAVAIL"
        assert net.counters == {"dial.ports": 2, "dial.failed": 1}
        assert net.links == set()


def test_b134_all_tries_take_less_than_two_seconds() -> None:
    assert sum(dialer._PAUSES) < 2


async def test_a_dial_that_is_cancelled_leaves_no_socket() -> None:
    with a_net() as net, socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        held = [socket.socket() for _ in range(4)]
        for sock in held:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.getsockname()[1]))
        task = asyncio.ensure_future(dial(net, f"127.0.0.1:{server.getsockname()[1]}", b"x", LONG))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for sock in held:
            sock.close()
        assert net.links == set()
