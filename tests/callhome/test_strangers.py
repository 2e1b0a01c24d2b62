"""Whoever else comes to the port: silence, scans, garbage, half a handshake, false and used
subjects.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable

import pytest

from tests.callhome.sockets import a_net, closed_by_peer, connect
from tests.callhome.test_framed import Frames
from tests.callhome.test_reception import Caller, a_caller, hello
from tests.clock import turns
from tests.waiting import LONG, TICK, wait_until
from transport.callhome import reception as reception_module
from transport.callhome.dialer import dial
from transport.errors import RemoteProtocolError
from transport.wire.control import pack_handshake
from transport.wire.framing import frame

STRANGERS: dict[str, bytes] = {
    "silence": b"",
    "three bytes": b"abc",
    "http": b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: */*\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "random": os.urandom(65_536),
    "length": b"\xff\xff\xff\xff",
    "no header": frame(b"", b"data"),
    "both": frame(b"{}", b"data"),
    "empty": frame(),
    "no json": frame(b"\xff\xfe"),
    "no object": frame(b"[1]"),
    "no subject": frame(b'{"stream_type":"response"}'),
    "numbers": frame(b'{"subject":1,"stream_type":2}'),
    "deep": frame(b"[" * 100_000),
    "false subject": pack_handshake("0" * 36, "response"),
}
#: Those of whom more may come.
SILENT = ("silence", "three bytes", "length")


async def ticking(caller: Caller) -> None:
    """What the coarse timer of an actor does."""
    while True:
        caller.reception.check(time.monotonic())
        await asyncio.sleep(0.02)


async def test_b130_strangers_are_closed_in_time_and_streams_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with a_net() as net, a_caller(net, handshake=LONG) as caller:
        address = caller.expect(wait=10 * LONG).info["address"]
        timer = asyncio.ensure_future(ticking(caller))
        socks = {name: connect(address) for name in STRANGERS}
        for name, data in STRANGERS.items():
            socks[name].send(data)
        closing = {
            name: asyncio.ensure_future(closed_by_peer(sock)) for name, sock in socks.items()
        }
        for number in range(20):
            expected = caller.expect()
            framed = await dial(net, address, hello(expected) + frame(b"", b"%d" % number), LONG)
            await wait_until(_more(lambda: len(caller.arrived), number))
            came = Frames(caller.arrived[-1])
            assert await came.wait(1) == [(b"", b"%d" % number)]
            framed.close(abort=True)
        # Who has said something wrong is closed then; who has said too little, when it is late.
        await wait_until(lambda: caller.reception.strangers == len(SILENT))
        assert not any(each.done() for name, each in closing.items() if name in SILENT)
        timer.cancel()
        caller.reception.check(time.monotonic() + LONG)
        assert caller.reception.strangers == 0
        assert all(await asyncio.gather(*closing.values()))
        assert caller.reception.awaited == 1
        ours = [record for record in caplog.records if record.name.startswith("callhome")]
        assert len(ours) < 2 * len(STRANGERS)
        counted = sum(
            count for what, count in net.counters.items() if what.startswith("handshake.")
        )
        assert counted == len(STRANGERS)


async def test_b130_silent_strangers_cost_no_time() -> None:
    with a_net() as net, a_caller(net) as caller:
        address = caller.expect().info["address"]
        socks = [connect(address) for _ in range(100)]
        for number, sock in enumerate(socks):
            sock.send(b"\0" * (number % 20))
        await wait_until(lambda: caller.reception.strangers == 100)
        timer = asyncio.ensure_future(ticking(caller))
        begun = time.monotonic()
        async with turns() as turned:
            await asyncio.sleep(5 * TICK)
        assert turned.count <= 3 * turned.timers, "the loop turns for its timers alone"
        # And these are none of the strangers': the coarse one and ours, how long it may have been.
        assert turned.timers <= (time.monotonic() - begun) / 0.02 + 5
        timer.cancel()
        for sock in socks:
            sock.close()
        await wait_until(lambda: caller.reception.strangers == 0)
        assert net.counters["handshake.left"] == 100


@pytest.mark.parametrize("name", [name for name in STRANGERS if name != "silence"])
async def test_conformance_11_garbage_ends_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        sock = connect(expected.info["address"])
        sock.send(STRANGERS[name])
        if name in ("three bytes", "length"):
            sock.shutdown(socket.SHUT_WR)
        assert await closed_by_peer(sock)
        assert len(caplog.records) <= 1
        assert caller.reception.awaited == 1
        await dial(net, expected.info["address"], hello(expected), LONG)
        await wait_until(lambda: caller.arrived)


async def test_conformance_11_silence_ends_after_10_s() -> None:
    with a_net() as net, a_caller(net) as caller:
        before = time.monotonic()
        sock = connect(caller.expect().info["address"])
        await wait_until(lambda: caller.reception.strangers == 1)
        assert caller.reception.check(before + 9.9)
        assert caller.reception.strangers == 1
        caller.reception.check(time.monotonic() + 10.1)
        assert caller.reception.strangers == 0
        assert await closed_by_peer(sock)
        assert net.counters["handshake.silent"] == 1


async def test_b133_a_random_subject_is_closed_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with a_net() as net, a_caller(net) as caller:
        address = caller.expect().info["address"]
        for _ in range(50):
            sock = connect(address)
            sock.send(pack_handshake(str(os.urandom(16).hex()), "response"))
            assert await closed_by_peer(sock)
        assert net.counters["handshake.subject"] == 50
        assert len(caplog.records) == 1
        assert "unknown subject" in caplog.text


async def test_b133_a_used_subject_is_refused_and_its_stream_unharmed() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        framed = await dial(net, expected.info["address"], hello(expected), LONG)
        await wait_until(lambda: caller.arrived)
        came = Frames(caller.arrived[0])
        sock = connect(expected.info["address"])
        sock.send(hello(expected))
        assert await closed_by_peer(sock)
        framed.send(b"", b"unharmed")
        assert await came.wait(1) == [(b"", b"unharmed")]
        assert len(caller.arrived) == 1
        assert came.ends == []


async def test_b133_the_other_half_of_a_subject_is_refused() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect("request")
        for half in ("response", "mux", "x" * 1000):
            sock = connect(expected.info["address"])
            sock.send(hello(expected, half))
            assert await closed_by_peer(sock)
        await dial(net, expected.info["address"], hello(expected, "request"), LONG)
        await wait_until(lambda: caller.arrived)


async def test_half_a_handshake_cut_at_every_byte_ends_alone() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        whole = hello(expected)
        for cut in range(len(whole)):
            sock = connect(expected.info["address"])
            sock.send(whole[:cut])
            if cut % 2:
                sock.shutdown(socket.SHUT_WR)
                assert await closed_by_peer(sock)
            else:
                sock.close()
        await wait_until(lambda: net.counters.get("handshake.left") == len(whole))
        assert caller.reception.awaited == 1
        await dial(net, expected.info["address"], whole, LONG)
        await wait_until(lambda: caller.arrived)


async def test_a_handshake_in_two_pieces_cut_at_every_byte_arrives() -> None:
    with a_net() as net, a_caller(net) as caller:
        for cut in range(1, len(hello(caller.expect()))):
            expected = caller.expect()
            data = hello(expected) + frame(b"", b"item")
            sock = connect(expected.info["address"])
            with sock:
                before = net.bytes_in
                sock.send(data[:cut])
                await wait_until(_more(lambda: net.bytes_in, before))
                sock.send(data[cut:])
                await wait_until(_more(lambda: len(caller.arrived), cut - 1))
                came = Frames(caller.arrived[-1])
                assert await came.wait(1) == [(b"", b"item")]
                caller.arrived[-1].close(abort=True)


def _more(value: Callable[[], int], than: int) -> Callable[[], bool]:
    return lambda: value() > than


async def test_garbage_behind_the_handshake_is_its_streams_trouble() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        await dial(net, expected.info["address"], hello(expected) + b"\xff" * 100, LONG)
        await wait_until(lambda: caller.arrived)
        came = Frames(caller.arrived[0])
        assert isinstance(await came.wait_end(), RemoteProtocolError)


async def test_a_crowd_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception_module, "_STRANGERS", 10)
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        socks = [connect(expected.info["address"]) for _ in range(30)]
        await wait_until(lambda: net.counters.get("handshake.crowd") == 20)
        assert caller.reception.strangers == 10
        assert await closed_by_peer(socks.pop(0))
        await dial(net, expected.info["address"], hello(expected), LONG)
        await wait_until(lambda: caller.arrived)
        for sock in socks:
            sock.close()
