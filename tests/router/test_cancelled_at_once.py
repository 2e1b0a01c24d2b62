"""Cancels of streams to another node that come with their Opens, in one tick: they stay behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.messages import End, Kill, Open, Stop
from tests.router.engines import SEEN
from tests.router.standin_mux import connect, number
from tests.router.test_gateway import rig, start
from tests.router.test_remote import GO, MIRROR, pair
from tests.waiting import LONG, wait_until


@pytest.mark.parametrize("kind", [Stop, Kill])
async def test_they_leave_behind_what_they_cancel(tmp_path: Path, kind: Any) -> None:
    async with rig(tmp_path) as (here, worker):
        first = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await first == []
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                stream = here.client.stream("t.far.go", timeout=LONG)
                await stack.enter_async_context(stream)
                (stream.stop if kind is Stop else stream.kill)("enough")
            came = [await end.read() for _ in range(6)]
            assert [type(each) for each in came] == [Open, kind] * 3
            numbers = [each.stream for each in came if isinstance(each, Open | Stop | Kill)]
            assert numbers[::2] == numbers[1::2]
            end.send(*(End(each, 0, None) for each in numbers[::2]))


async def test_stops_find_their_streams_at_a_node_that_is_full(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, ingress_pool=1, ingress_queue=3) as (here, far),
        here.client.stream(GO, {"n": 1, "do": "wait"}) as held,
    ):
        await anext(held)
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(3):
                stream = here.client.stream(GO, {"do": "stopped"}, timeout=LONG)
                streams.append(await stack.enter_async_context(stream))
                stream.stop("enough")
            for stream in streams:  # the place is not free before they have ended
                assert [item async for item in stream] == []
        await wait_until(lambda: here.permits == 1)
        assert far.ingress.admission.waiting == 0
        assert SEEN == ["began"]


async def test_calls_that_are_cancelled_at_once_keep_no_place_in_the_queue(tmp_path: Path) -> None:
    async with pair(tmp_path, ingress_pool=1, ingress_queue=2) as (here, far):
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as held:
            await anext(held)
            for _ in range(2):
                call = asyncio.ensure_future(here.client.call(GO, {}, timeout=LONG))
                await asyncio.sleep(0)  # it has been opened, and waits for its answer
                assert len(here.runtime.home.streams) == 2
                call.cancel()
                await asyncio.wait([call])
            await wait_until(lambda: here.permits == 1)
            live = [asyncio.ensure_future(here.client.call(MIRROR, n)) for n in range(2)]
            await wait_until(lambda: far.ingress.admission.waiting == 2 or _any_done(live))
            assert not _any_done(live)
        assert await asyncio.gather(*live) == [0, 1]
        assert SEEN.count("began") == 1


def _any_done(calls: Sequence[asyncio.Future[Any]]) -> bool:
    return any(each.done() for each in calls)
