"""Field reports at the door of a node: strangers, ports, closing frames, cancels, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context, Settings
from actors.cluster.entry import running
from actors.ingress.actor import IngressActor
from actors.messages import Accept, End, Kill, Stop
from tests.callhome.sockets import closed_by_peer, connect
from tests.clock import Clock, at_once, steady, turns
from tests.clock import clock as clock
from tests.ingress.engines import Held
from tests.ingress.muxhome import mux_home
from tests.ingress.rig import Rig, rig
from tests.ingress.standin import Half, control, read_answer
from tests.waiting import DEADLINE, TICK, wait_until

MIB = 1 << 20

#: What comes to an open port, and whether it is closed at once or when it has been silent too long.
STRANGERS: dict[str, tuple[bytes, bool]] = {
    "silence": (b"", False),
    "three bytes": (b"\x00\x05a", False),
    "http": (b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", True),
    "tls": (bytes.fromhex("16030100c8010000c40303") + bytes(190), True),
    "random": (b"\xff" + os.urandom(65_535), True),
    "length": (b"\xff\xff\xff\xff", True),
    "a length of a payload": (b"\x00\x01a\x00\x02{}\xff\xff\xff\xff", True),
}


async def three(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(3):
        yield index


async def test_b130_strangers_at_the_door(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(three)
        server = at.ingress._server
        assert server is not None
        socks = {name: connect(at.ingress.reached) for name in STRANGERS}
        closing = {}
        for name, sock in socks.items():
            sock.send(STRANGERS[name][0])
            closing[name] = asyncio.ensure_future(closed_by_peer(sock))
        for _ in range(20):
            assert (await (await at.requester.ask(path, {})).answer()).data == [0, 1, 2]
        for name, (_, at_once) in STRANGERS.items():
            if at_once:
                assert await asyncio.wait_for(closing[name], DEADLINE), name
        begun = time.monotonic()
        async with turns() as turned:
            await asyncio.sleep(5 * TICK)
        assert turned.count <= 4 * turned.timers + 20, "the loop turns for its timers alone"
        # And these are those of the actors here, a few in a second, and none of the strangers'.
        assert turned.timers <= 20 * (time.monotonic() - begun) + 5
        # The silent ones: what the timer does after 30 s, and once more.
        server._sweep()
        assert not any(closing[name].done() for name in ("silence", "three bytes"))
        server._sweep()
        for name in ("silence", "three bytes"):
            assert await asyncio.wait_for(closing[name], DEADLINE), name
        await wait_until(lambda: server.connections == 1)  # the requester's own
        ours = [record for record in caplog.records if record.name.startswith("callhome")]
        assert len(ours) < 2 * len(STRANGERS)
        counted = at.ingress.net.counters
        assert counted["request.silent"] == 1
        assert counted["request.garbage"] == len(STRANGERS) - 1
        assert (await (await at.requester.ask(path, {})).answer()).data == [0, 1, 2]
        await at.idle()


async def test_b140_20_ingresses_at_once_have_20_ports(tmp_path: Path) -> None:
    async def start(stack: contextlib.AsyncExitStack, name: str) -> IngressActor:
        actor = IngressActor("127.0.0.1:0")
        told = {
            "run": str(tmp_path), "name": name, "role": "actor", "settings": Settings().to_dict()
        }  # fmt: skip
        await stack.enter_async_context(running(told, actor))
        return actor

    for number in range(10):
        async with contextlib.AsyncExitStack() as stack:
            actors = [await start(stack, f"ingress-{number}-{each}") for each in range(20)]
            told = [actor.reached for actor in actors]
            bound = []
            for actor in actors:
                assert actor._server is not None
                sock = actor._server._listener._sock
                assert sock is not None
                bound.append("{}:{}".format(*sock.getsockname()))
            assert len(set(told)) == 20
            assert told == bound


# -------------------------------------------------------------------------------- closing frames


class Fails(Held):
    """Held, whose handler fails behind the gate."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        async for item in super().generate(request, ctx):
            yield item
        raise ValueError("boom")


def engine_of(at: Rig) -> Any:
    return at.engines[0].handler.engine


async def frames_of(half: Half) -> None:
    """Take all frames; our side ends behind the sentinel, as Dynamo's requester does it."""
    while (each := await half.frame()) is not None:
        if each == (b'"sentinel"', b""):
            half.writer.write_eof()


CAUSES = ["end", "error", "stop", "kill", "worker stops", "client leaves"]


@pytest.mark.parametrize("cause", CAUSES)
async def test_b127_one_terminal_frame_at_most_on_a_socket(tmp_path: Path, cause: str) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Fails if cause == "error" else Held)
        half = await (await at.requester.ask(path, {"before": 2, "after": 1})).half()
        await wait_until(lambda: len(engine_of(at).begun) == 1)
        for _ in range(3):
            await half.frame()
        match cause:
            case "end" | "error":
                engine_of(at).gate.set()
            case "stop" | "kill":
                half.send(control(cause))
            case "worker stops":
                at.engines[0]._serving.shut("the worker stops")
            case "client leaves":
                half.writer.write_eof()
        await frames_of(half)
        answer = read_answer(half.frames, "msgpack")  # checks what may follow what
        clean = cause in ("end", "error", "stop")
        assert (answer.final, answer.sentinel) == (clean, clean)
        assert [each for each in half.frames if each[0] == b'"sentinel"'] == (
            [(b'"sentinel"', b"")] if clean else []
        )
        assert ("error" in str(answer.items[-1])) is (cause == "error")
        assert len(answer.items) == {"end": 3, "error": 4, "stop": 3}.get(cause, 2)
        await at.idle()


@pytest.mark.parametrize("cause", CAUSES)
async def test_b127_one_end_at_most_on_the_shared_connection(tmp_path: Path, cause: str) -> None:
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(Fails if cause == "error" else Held)
        stream = await home.ask(path, {"before": 2, "after": 1})
        await home.until(Accept, stream)
        await wait_until(lambda: len(home.items(stream)) == 2)
        match cause:
            case "end" | "error":
                engine_of(at).gate.set()
            case "stop":
                home.send(Stop(home.incarnation, stream, "enough"))
            case "kill":
                home.send(Kill(home.incarnation, stream, "enough"))
            case "worker stops":
                at.engines[0]._serving.shut("the worker stops")
            case "client leaves":
                home.cut()
        if cause in ("kill", "client leaves"):
            await wait_until(lambda: engine_of(at).ended == ["killed"])
        else:
            end = await home.ended(stream)
            assert end.total == {"end": 3, "error": 3, "stop": 3}.get(cause, 2)
            assert (end.error is None) is (cause in ("end", "stop"))
        await at.idle()
        # A later stream has come and gone: nothing of the first can still be on its way.
        if cause not in ("worker stops", "client leaves"):
            engine_of(at).gate.set()
            await home.ended(await home.ask(path, {}))
        ends = home.got(End, stream)
        assert len(ends) == (0 if cause in ("kill", "client leaves") else 1)
        assert not ends or home.of(stream)[-1] == ends[0]


# ---------------------------------------------------------------------------------------- cancels


@pytest.mark.parametrize("how", ["stop", "kill", "close", "reset"])
async def test_b84_b88_a_cancel_before_the_first_item(tmp_path: Path, how: str) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        half = await (await at.requester.ask(path, {})).half()
        assert await half.frame() == (b'{"error":null}', b"")
        await wait_until(lambda: len(engine_of(at).begun) == 1)
        leave(half, how)
        state = "stopped" if how == "stop" else "killed"
        await at_once(lambda: engine_of(at).ended == [state], "a cancel")
        await at.idle()
        assert at.engines[0].counters.items == 0
        assert (at.cancelled, at.errors) == (1, {})


def leave(half: Half, how: str) -> None:
    if how == "close":
        half.close()
    elif how == "reset":
        half.writer.transport.abort()
    else:
        half.send(control(how))


@pytest.mark.parametrize("how", ["stop", "kill", "close", "reset"])
async def test_b85_a_cancel_that_races_the_start(tmp_path: Path, how: str) -> None:
    """The word comes with the connection, before the prologue and maybe before the engine."""
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        for number in range(100):
            half = await (await at.requester.ask(path, {"after": 1})).half()
            for _ in range(number % 7):
                await asyncio.sleep(0)
            leave(half, how)
            if how in ("stop", "kill"):
                await frames_of(half)
                assert read_answer(half.frames, "msgpack").final is (how == "stop")
        await at.idle()
        engine = engine_of(at)
        assert len(engine.begun) == len(engine.ended)
        assert set(engine.ended) <= {"stopped" if how == "stop" else "killed"}
        assert at.cancelled == 100


# ----------------------------------------------------------------------------------------- streams


async def sized(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for size in request:
        yield "x" * size


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_b79_items_of_any_size(tmp_path: Path, codec: str) -> None:
    async with rig(tmp_path, window_bytes=64 * MIB) as at:
        sizes = [65_535, 65_537, MIB, 31 * MIB]
        asked = await at.requester.ask(await at.engine(sized), sizes, codec=codec)
        answer = await asked.answer()
        assert [len(each) for each in answer.data] == sizes
        assert answer.final
        await at.idle()


YIELDED: list[int] = []


async def blocks(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for number in range(1000):
        YIELDED.append(number)
        yield [number, "x" * 65_536]


async def test_b68_b80_a_requester_that_pauses_gets_every_item(
    tmp_path: Path, clock: Clock
) -> None:
    """The pause is five times the limits, by a clock that is turned; ten seconds of a user's are
    paused in tests/e2e/test_field_between_nodes.py.
    """
    YIELDED.clear()
    limits: dict[str, Any] = dict.fromkeys(
        ("connect_timeout", "ack_timeout", "prologue_timeout"), DEADLINE
    )
    async with rig(tmp_path, **limits) as at:
        asked = await at.requester.ask(await at.engine(blocks), {})
        half = await asked.half()
        half.writer.transport.pause_reading()  # type: ignore[attr-defined]
        last = await steady(lambda: len(YIELDED))
        await clock.pass_time(5 * DEADLINE)
        assert 16 <= len(YIELDED) == last < 900  # it stands still, and has for a while
        half.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await asked.answer()
        assert [number for number, _ in answer.data] == list(range(1000))
        assert answer.final
        await at.idle()


async def test_b137_100_requests_whose_connection_is_cut_run_at_most_once(tmp_path: Path) -> None:
    ran: list[int] = []

    async def note(request: Any, ctx: Context) -> AsyncIterator[Any]:
        ran.append(request)
        yield request

    async with rig(tmp_path) as at:
        path = await at.engine(note)
        for number in range(100):
            asked, payload = at.requester.envelope(number)
            at.requester.write(path, payload)
            await at.requester.reconnect(at.ingress.reached)
            if number % 10 == 0:
                assert (await asked.answer()).data == [number]
        await wait_until(lambda: not at.carried(), what="nothing is carried")
        for half in at.requester._halves:
            half.close()
        await at.idle()
    assert len(ran) == len(set(ran))
    assert len(ran) >= 10
