"""Listeners: addresses, options, bursts of connections, and a lack of descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.callhome.sockets import Heard, a_net, closed_by_peer, connect
from tests.waiting import LONG, wait_until
from transport.callhome.dialer import dial_link
from transport.callhome.link import Link, Net
from transport.callhome.listener import Listener
from transport.errors import SpecError


@contextlib.contextmanager
def a_listener(
    net: Net, host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[Listener, list[Link]]]:
    """An open listener, and the links it has handed on."""
    links: list[Link] = []
    listener = Listener(net, host, port, links.append, "some_host")
    listener.open()
    try:
        yield listener, links
    finally:
        listener.close()


async def test_what_connects_is_handed_on() -> None:
    with a_net() as net, a_listener(net) as (listener, links):
        link = await dial_link(net, listener.address, LONG)
        await wait_until(lambda: links)
        assert links[0].peer == link.local
        assert links[0].local == link.peer == listener.address
        heard = Heard(links[0])
        link.write(b"hello")
        assert await heard.wait_bytes(5) == b"hello"
        assert net.counters["accepted"] == 1


async def test_b139_both_ends_have_their_options_and_no_steps_of_40_ms() -> None:
    with a_net() as net, a_listener(net) as (listener, links):
        ask = await dial_link(net, listener.address, LONG)
        await wait_until(lambda: links)
        answer = links[0]
        for link in (ask, answer):
            for level, option, value in (
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
                (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
            ):
                assert link.socket.getsockopt(level, option) == value
            assert link.socket.getblocking() is False
        loop, times, heard = asyncio.get_running_loop(), [], Heard(ask)
        answer.start(lambda view: answer.write(bytes(view[:32]), bytes(view[32:])), lambda e: None)
        done = asyncio.Event()

        def received(view: memoryview) -> None:
            heard.received(view)
            if len(heard.data) % 64 == 0:
                times.append(loop.time() - begun)
                done.set()

        ask.start(received, heard.ends.append)
        for _ in range(1000):
            begun = loop.time()
            ask.write(bytes(32), bytes(32))
            await done.wait()
            done.clear()
        # Others share the machine: one quiet stretch shows that steps are none of ours.
        assert min(max(times[at : at + 10]) for at in range(0, 1000, 10)) < 0.03


async def test_b140_twenty_listeners_at_once_have_twenty_ports() -> None:
    for _ in range(10):
        found: list[tuple[str, str]] = []
        ready = threading.Barrier(20)

        async def listen(ready: threading.Barrier, found: list[tuple[str, str]]) -> None:
            with a_net() as net:
                ready.wait(LONG)
                with a_listener(net) as (listener, _):
                    found.append((listener.address, listener.bound))
                    ready.wait(LONG)

        threads = [
            threading.Thread(target=lambda r=ready, f=found: asyncio.run(listen(r, f)))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len({address for address, _ in found}) == 20
        assert all(address == bound for address, bound in found)


async def test_a_taken_port_is_told_by_the_setting() -> None:
    with a_net() as net, a_listener(net) as (listener, _):
        port = int(listener.address.rpartition(":")[2])
        with pytest.raises(SpecError, match=f"some_host: 127.0.0.1:{port} cannot be bound: Addr"):
            Listener(net, "127.0.0.1", port, lambda link: None, "some_host").open()


@pytest.mark.parametrize("host", ["203.0.113.77", "no-such-host.invalid"])
async def test_an_address_of_somebody_else_is_told_by_the_setting(host: str) -> None:
    with a_net() as net, pytest.raises(SpecError, match=f"^some_host: .*{host}"):
        Listener(net, host, 0, lambda link: None, "some_host").open()


async def test_a_port_of_ones_own_is_there_again_at_once() -> None:
    with a_net() as net:
        with a_listener(net) as (listener, _):
            port = int(listener.address.rpartition(":")[2])
        for _ in range(3):
            with a_listener(net, port=port) as (listener, links):
                assert listener.address == f"127.0.0.1:{port}"
                link = await dial_link(net, listener.address, LONG)
                heard = Heard(link)
                await wait_until(lambda links=links: links)
                links[0].close()  # this side closes first and keeps the port in TIME_WAIT
                await heard.wait_end()
                link.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
async def test_b125_a_wildcard_listens_everywhere_and_tells_one_address(host: str) -> None:
    with a_net() as net, a_listener(net, host) as (listener, links):
        assert listener.address.rpartition(":")[0] not in ("", "0.0.0.0", "[::]")
        port = listener.address.rpartition(":")[2]
        link = await dial_link(net, f"127.0.0.1:{port}", LONG)
        await wait_until(lambda: links)
        assert link in net.links


async def test_who_fails_on_a_connection_costs_that_one(caplog: pytest.LogCaptureFixture) -> None:
    links: list[Link] = []

    def accepted(link: Link) -> None:
        if not links:
            links.append(link)
            raise ZeroDivisionError("bug")
        links.append(link)

    with a_net() as net:
        listener = Listener(net, "127.0.0.1", 0, accepted, "some_host")
        listener.open()
        try:
            assert await closed_by_peer(connect(listener.address))
            assert "ZeroDivisionError" in caplog.text
            with connect(listener.address):
                await wait_until(lambda: len(links) == 2)
        finally:
            listener.close()
            listener.close()


async def test_thousands_of_connections_come_and_go() -> None:
    asyncio.get_running_loop().set_debug(False)  # it takes most of the time
    with a_net() as net:
        listener = Listener(net, "127.0.0.1", 0, lambda link: link.close(abort=True), "some_host")
        listener.open()
        try:

            async def churn() -> None:
                for _ in range(150):
                    assert await closed_by_peer(connect(listener.address))

            await asyncio.gather(*(churn() for _ in range(20)))
            assert net.counters == {"accepted": 3000}
            assert net.links == set()
        finally:
            listener.close()


class Short(socket.socket):
    """A listening socket that fails to accept, as told."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, "told to fail")
        return super().accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_conformance_34_a_shortage_backs_off_and_recovers(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    with a_net() as net, a_listener(net) as (listener, links):
        assert listener._sock is not None
        short = Short(fileno=listener._sock.detach())
        short.errors, listener._sock = [number] * 4, short
        with connect(listener.address):
            await wait_until(lambda: listener._pause >= 0.02)
            await wait_until(lambda: links)
            assert net.counters == {"accept.short": 4, "accepted": 1}
            assert listener._pause == 0
            assert len(caplog.records) == 1
            assert "ulimit -n" in caplog.text


async def test_a_connection_that_was_gone_before_it_was_accepted_stops_nothing() -> None:
    with a_net() as net, a_listener(net) as (listener, links):
        assert listener._sock is not None
        short = Short(fileno=listener._sock.detach())
        short.errors, listener._sock = [errno.ECONNABORTED, errno.EPROTO], short
        with connect(listener.address):
            await wait_until(lambda: links)
            assert net.counters == {"accept.failed": 2, "accepted": 1}


async def test_a_listener_closed_in_its_pause_does_not_come_back() -> None:
    with a_net() as net, a_listener(net) as (listener, links):
        assert listener._sock is not None
        short = Short(fileno=listener._sock.detach())
        short.errors, listener._sock = [errno.EMFILE] * 100, short
        with connect(listener.address):
            await wait_until(lambda: "accept.short" in net.counters)
            listener.close()
            count = net.counters["accept.short"]
            await asyncio.sleep(0.05)
            assert (net.counters["accept.short"], links) == (count, [])
