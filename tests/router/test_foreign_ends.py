"""How streams of Dynamo workers end: cuts, violations, stops, kills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.errors import (
    CallBackFailed,
    CallHomeError,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    EngineError,
    RemoteProtocolError,
)
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.foreign_rig import GO, begun, collected, rig
from tests.router.rig import RouterRig
from tests.router.standin import item_frame
from tests.waiting import LONG, TICK, wait_until
from transport.wire.control import KILL, SENTINEL, STOP, pack_prologue
from transport.wire.framing import HEADER, frame, pack_head
from transport.wire.plain import final, wrap


@pytest.mark.parametrize("cut", ["before", "no items", "items", "in an item"])
@pytest.mark.parametrize("reset", [False, True])
async def test_conformance_14_a_cut_is_an_error_and_the_permit_comes_back(
    tmp_path: Path, cut: str, reset: bool
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        half = await call.dial()
        if cut != "before":
            half.prologue()
        if cut == "items":
            half.item(1)
            half.item(2)
        elif cut == "in an item":
            half.send(item_frame(1)[:-3])
        await half.taken()  # what a reset takes along is not what this test is about
        if reset:
            half.abort()
        else:
            half.close()
        with pytest.raises(ConnectionLost) as caught:
            await task
        assert worker.via in str(caught.value)
        if cut == "items":
            assert "2 items" in str(caught.value)


async def test_conformance_14_a_response_cut_at_every_byte(tmp_path: Path) -> None:
    steps = [pack_prologue(), item_frame(1), item_frame(2), frame(b"", final("msgpack")), SENTINEL]
    whole = b"".join(steps)
    bounds = [len(b"".join(steps[:count])) for count in range(1, 5)]
    async with rig(tmp_path) as (here, worker):
        for cut in range(len(whole) + 1):
            got: list[Any] = []
            failure: CallHomeError | None = None
            async with here.client.stream(GO) as items:
                call = await worker.next()
                call.reply()
                half = await call.dial()
                half.send(whole[:cut])
                half.close()
                try:
                    async for each in items:
                        got.append(each)
                except CallHomeError as error:
                    failure = error
            assert got == [1, 2][: sum(cut >= bound for bound in bounds[1:3])], cut
            if cut < bounds[3]:
                assert isinstance(failure, ConnectionLost), cut
            else:
                assert failure is None, cut


@pytest.mark.parametrize(
    ("ending", "clean"),
    [
        ([frame(b"", final("msgpack")), SENTINEL], True),
        ([frame(b"", final("msgpack"))], True),
        ([SENTINEL], False),
        ([], False),
    ],
    ids=["both", "no sentinel", "sentinel only", "nothing"],
)
async def test_what_counts_as_a_clean_end(tmp_path: Path, ending: list[bytes], clean: bool) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        half.send(*ending)
        half.close()
        if clean:
            assert [item async for item in items] == []
        else:
            with pytest.raises(ConnectionLost, match="after 1 items"):
                await anext(items)


async def test_a_worker_that_stays_behind_its_end_is_waited_for_a_moment(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        half.send(frame(b"", final("msgpack")))
        assert [item async for item in items] == []


@pytest.mark.parametrize(
    "wrong",
    [
        frame(b'"sentinel"', b"body"),
        STOP,
        KILL,
        frame(b"no json"),
        frame(b"", b"\x81\xaecomplete_final\xc2"),
        frame(b"", b"\xc1 no wrapper"),
        frame(b"", final("msgpack")) + item_frame(1),
        b"\xff" * 24,
    ],
    ids=["body", "stop", "kill", "control", "neither", "garbage", "late", "lengths"],
)
async def test_violations_end_that_stream_only(tmp_path: Path, wrong: bytes) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (other, _, well):
        async with begun(here, worker) as (items, _, half):
            half.send(wrong)
            with pytest.raises((RemoteProtocolError, DecodeError)):
                await anext(items)
            assert await half.rest() in ([(b'"kill"', b"")], [])
        well.item(2)
        assert await anext(other) == 2
        well.end()
        assert [item async for item in other] == []


async def test_an_error_item_is_an_error_behind_the_items(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        error = {"error_type": {"Backend": "Unknown"}, "message": "ValueError: boom"}
        item = msgpack.packb({"event": "error", "error": error})
        half.send(frame(b"", wrap(item, "msgpack")))
        half.end()
        with pytest.raises(EngineError, match="boom"):
            await anext(items)


async def test_conformance_29_the_permit_of_a_dynamo_worker_is_back_before_its_error_item(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as (here, worker):
        async with here.client.stream(GO, {"a": 1}, annotated=True) as items:
            first = asyncio.ensure_future(anext(items))
            call = await worker.next()
            call.reply()
            half = await call.dial()
            half.prologue()
            half.item("first")
            await first
            assert here.permits == 1
            for item in ({"event": "error", "comment": ["no"]}, {"data": 2, "event": "error"}):
                half.send(frame(b"", wrap(msgpack.packb(item), "msgpack")))
                assert (await anext(items)).is_error
                assert here.permits == 0
            half.item("tail")
            await anext(items)
            assert here.relays == 1
            half.end()
            assert [item async for item in items] == []
        assert here.permits == 0


async def test_conformance_19_a_consumer_that_leaves_kills(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        async with begun(here, worker) as (_, _, half):
            assert here.permits == 1
        assert await half.rest() == [(b'"kill"', b"")]


async def test_conformance_20b_the_end_behind_our_own_stop_is_clean(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        items.stop("enough")
        assert await half.read() == (b'"stop"', b"")
        half.close()
        assert [item async for item in items] == []


@pytest.mark.parametrize("cut", ["in a frame", "reset", "reset in a frame", "sentinel"])
async def test_a_cut_behind_our_own_stop_is_still_a_cut(tmp_path: Path, cut: str) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        items.stop("enough")
        assert await half.read() == (b'"stop"', b"")
        if "frame" in cut:
            half.send(item_frame({"big": "x" * 1000})[:500])
            await half.taken()
        if "reset" in cut:
            half.abort()
        else:
            if cut == "sentinel":
                half.send(SENTINEL)
            half.close()
        with pytest.raises(ConnectionLost, match="cut after 1 items"):
            await anext(items)


async def test_what_comes_behind_a_stop_arrives(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        items.stop("enough")
        items.stop("twice")
        assert await half.read() == (b'"stop"', b"")
        half.item("last")
        half.end()
        assert [item async for item in items] == ["last"]
        assert await half.rest() == []


async def test_conformance_21_stop_then_kill(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        items.stop("please")
        assert await half.read() == (b'"stop"', b"")
        items.kill("now")
        assert await half.rest() == [(b'"kill"', b"")]


async def test_a_stop_before_the_worker_called_home_follows_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here, request_id="r"))
        call = await worker.next()
        assert here.client.cancel("r", kill=False)
        call.reply()
        half = await call.dial()
        half.prologue()
        assert await half.read() == (b'"stop"', b"")
        half.close()
        assert await task == []


async def test_a_kill_before_the_worker_called_home_turns_it_away(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        async with here.client.stream(GO, None, request_id="r"):
            call = await worker.next()
            here.client.cancel("r")
            await here.idle()
            call.reply()
        half = await call.dial()
        assert await half.rest() == []


async def test_without_credit_the_socket_is_not_read(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, window_items=4) as (here, worker),
        begun(here, worker) as (items, _, half),
    ):
        for number in range(20):
            half.item(number)
        half.end()
        await wait_until(lambda: here.runtime.home.streams[1].seq == 4)
        stream = here.runtime.home.streams[1]
        task = asyncio.ensure_future(collected(here))  # another one comes and goes meanwhile
        await (await worker.next()).answer(1)
        assert await task == [1]
        assert stream.seq == 4
        assert [item async for item in items] == list(range(20))


async def test_checksums_are_checked_where_that_is_asked_for(tmp_path: Path) -> None:
    checksum_of = pytest.importorskip("xxhash").xxh3_64_intdigest
    body = item_frame("right")[HEADER:]
    right = pack_head(0, len(body), checksum_of(body)) + body
    wrong = pack_head(0, len(body), 7) + body
    async with (
        rig(tmp_path / "on", check_frames=True) as (here, worker),
        begun(here, worker) as (items, _, half),
    ):
        half.send(right, item_frame("unsigned"), wrong)
        assert [await anext(items), await anext(items)] == ["right", "unsigned"]
        with pytest.raises(RemoteProtocolError, match="checksum"):
            await anext(items)
    async with rig(tmp_path / "off") as (here, worker), begun(here, worker) as (items, _, half):
        half.send(wrong)
        half.end()
        assert [item async for item in items] == ["right"]


async def waits(task: asyncio.Task[Any], clock: Clock, limit: float) -> None:
    """It ends when the limit is over, and by no other one before."""
    clock.turn(limit / 2)
    await asyncio.sleep(2 * TICK)  # it is looked at twenty times a second
    assert not task.done()
    clock.turn(limit / 2)
    await asyncio.wait({task})


async def test_b124_accepted_and_never_called_back(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, dial_in_timeout=LONG, ack_timeout=10 * LONG) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        await acknowledged(here)
        await waits(task, clock, LONG)
        with pytest.raises(CallBackFailed, match="did not call back") as caught:
            await task
        assert worker.address in str(caught.value)
        assert call.envelope.connection.text("address") in str(caught.value)
        assert str(caught.value).endswith("of request: call()/stream() or open()")
        # Too late: nobody waits for it.
        half = await call.dial()
        assert await half.rest() == []


async def test_b124_called_back_and_never_begun(tmp_path: Path, clock: Clock) -> None:
    limits: dict[str, Any] = dict.fromkeys(("dial_in_timeout", "ack_timeout"), 10 * LONG)
    async with rig(tmp_path, prologue_timeout=LONG, **limits) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        half = await call.dial()
        await acknowledged(here)
        await wait_until(lambda: here.awaited() == 0)
        await waits(task, clock, LONG)
        with pytest.raises(DeadlineExceeded, match="did not begin"):
            await task
        assert await half.rest() == [(b'"kill"', b"")]


async def acknowledged(here: RouterRig) -> None:
    requests = here.actor._plane.requests
    await wait_until(lambda: not requests.statistics()["unanswered"])
