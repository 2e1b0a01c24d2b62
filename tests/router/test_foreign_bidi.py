"""Streams of requests to Dynamo workers: two sockets, one closing frame on the second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.errors import CallBackFailed, Cancelled, ConnectionLost
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.foreign_rig import GO, rig
from tests.router.rig import RouterRig
from tests.router.standin import Call, Half, StandIn
from tests.waiting import LONG, TICK, wait_until
from transport.wire.framing import frame

SENTINEL, STOP, KILL = (b'"sentinel"', b""), (b'"stop"', b""), (b'"kill"', b"")


def item(value: Any) -> tuple[bytes, bytes]:
    """A request item as it travels."""
    return b"", msgpack.packb(value)


async def dialled(worker: StandIn) -> tuple[Call, Half]:
    """A request that was acknowledged, and the half on which its items come."""
    call = await worker.next()
    call.reply()
    assert call.envelope.request_connection is not None
    return call, await call.dial(call.envelope.request_connection)


@asynccontextmanager
async def chat(here: RouterRig, worker: StandIn) -> AsyncIterator[tuple[Any, Half, Half]]:
    """A stream each way that has begun: the client's end, and the worker's two halves."""
    async with here.client.open(GO) as stream:
        first = asyncio.ensure_future(stream.send("first"))
        call, request = await dialled(worker)
        response = await call.dial()
        response.prologue()
        await first
        assert await request.read() == item("first")
        yield stream, request, response


async def test_items_move_before_the_worker_has_begun(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), here.client.open(GO) as stream:
        sending = asyncio.ensure_future(stream.send({"n": 1}))
        call, request = await dialled(worker)
        sent = call.envelope
        assert (sent.request_type, call.body) == ("many_in", b"")
        assert sent.request_connection is not None
        assert sent.request_connection.text("stream_type") == "request"
        assert sent.request_connection.text("subject") != sent.connection.text("subject")
        await sending
        assert await request.read() == item({"n": 1})
        response = await call.dial()
        response.prologue()
        response.item("back")
        assert await anext(stream) == "back"
        await stream.end()
        assert await request.rest() == [SENTINEL]
        response.item("more")
        response.end()
        assert [each async for each in stream] == ["more"]
        assert await response.rest() == []


async def test_many_items_flow_by_credit(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):

        async def feed() -> None:
            for number in range(500):
                await stream.send(number)
            await stream.end()

        feeding = asyncio.ensure_future(feed())
        assert [await request.read() for _ in range(500)] == [item(each) for each in range(500)]
        await feeding
        assert await request.rest() == [SENTINEL]
        response.end()
        assert [each async for each in stream] == []


async def test_a_worker_that_does_not_read_holds_its_client_back(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        sent = 0

        async def feed() -> None:
            nonlocal sent
            for _ in range(1000):
                await stream.send(b"x" * (1 << 20))
                sent += 1

        feeding = asyncio.ensure_future(feed())
        await wait_until(lambda: sent > 4)
        await asyncio.sleep(2 * TICK)
        assert sent < 200
        feeding.cancel()
        response.close()
        request.abort()
        with pytest.raises(ConnectionLost):
            await anext(stream)


async def test_conformance_24_b127_a_stop_ends_the_forwarder(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        stream.stop("enough")
        assert await response.read() == STOP
        assert await request.rest() == [STOP]
        response.close()
        assert [each async for each in stream] == []


async def test_a_worker_that_hears_the_stop_on_its_other_socket_resets_this_one(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        stream.stop("enough")
        assert await request.rest() == [STOP]
        response.abort()
        assert [each async for each in stream] == []


async def test_b127_a_kill_is_one_frame_on_each_socket(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        stream.kill("now")
        assert await request.rest() == [KILL]
        assert await response.rest() == [KILL]


async def test_b127_a_client_that_fails_kills(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        with pytest.raises(ZeroDivisionError):
            async with chat(here, worker) as (_, request, response):
                raise ZeroDivisionError
        assert await request.rest() == [KILL]
        assert await response.rest() == [KILL]


async def test_b127_one_closing_frame_behind_the_end_of_the_input(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        await stream.end()
        assert await request.read() == SENTINEL  # cancels go another way and might overtake it
        stream.stop("and stop")
        stream.kill("and kill")
        assert await request.rest() == []
        assert await response.rest() == [STOP, KILL]


async def test_b128_the_worker_finishes_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        response.end()
        assert [each async for each in stream] == []
        with pytest.raises(Cancelled):
            await stream.send("more")
        assert len(await request.rest()) == 1


async def test_b128_the_worker_takes_no_more_and_goes_on_answering(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        request.abort()
        for number in range(200):
            await stream.send(number)
            response.item(number)
            assert await anext(stream) == number
        await stream.end()
        response.end()
        assert [each async for each in stream] == []


async def test_conformance_25_a_client_that_never_sends_and_leaves(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        async with here.client.open(GO):
            call, request = await dialled(worker)
            response = await call.dial()
            response.prologue()
            await wait_until(lambda: here.permits == 1)
        assert await request.rest() == [KILL]
        assert await response.rest() == [KILL]


async def test_b124_only_one_half_was_dialled(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, dial_in_timeout=LONG) as (here, worker), here.client.open(GO) as chat:
        _, request = await dialled(worker)
        await wait_until(lambda: here.awaited() == 1)
        item = asyncio.ensure_future(anext(chat))
        clock.turn(LONG / 2)  # no other limit strikes before
        await asyncio.sleep(2 * TICK)
        assert not item.done()
        clock.turn(LONG / 2)
        with pytest.raises(CallBackFailed):
            await item
        assert await request.rest() == [KILL]


@pytest.mark.parametrize("reply", ["never", "lost", "first"])
async def test_a_response_half_is_due_once_the_request_half_has_come(
    tmp_path: Path, reply: str, clock: Clock
) -> None:
    async with (
        rig(tmp_path, dial_in_timeout=LONG, ack_timeout=10 * LONG) as (here, worker),
        here.client.open(GO) as chat,
    ):
        sending = asyncio.ensure_future(chat.send("x"))
        call = await worker.next()
        if reply == "first":
            call.reply()
        request = await call.dial(call.envelope.request_connection)
        await sending
        if reply == "lost":
            call.cut()
            request.abort()
        await wait_until(lambda: here.awaited() == 1)  # the other half
        if reply != "never":
            requests = here.actor._plane.requests
            await wait_until(lambda: not requests.statistics()["unanswered"])
        clock.turn(LONG)
        with pytest.raises(CallBackFailed, match="only for the request"):
            await anext(chat)


async def test_conformance_23_a_cut_input_is_no_clean_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        request.abort()
        response.close()  # a worker whose input breaks off ends so
        with pytest.raises(ConnectionLost, match="was cut"):
            await anext(stream)


async def test_a_worker_that_speaks_on_the_socket_of_the_request(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        request.send(frame(b"", b"what"))
        with pytest.raises(Exception, match="socket of the request"):
            await anext(stream)
        assert await request.rest() == [KILL]
        assert await response.rest() == [KILL]


async def test_conformance_14_a_cut_response_kills_the_request(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), chat(here, worker) as (stream, request, response):
        response.item(1)
        assert await anext(stream) == 1
        response.close()
        with pytest.raises(ConnectionLost, match="cut after 1 items"):
            await anext(stream)
        assert await request.rest() == [KILL]
