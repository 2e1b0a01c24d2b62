"""Two Dynamo workers that a test plays: whom a router asks, and whom after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.errors import ConnectionLost
from actors.router.member import Member
from tests.router.foreign_rig import GO, collected
from tests.router.rig import RouterRig, far_record, router_rig
from tests.router.standin import Call, Half, StandIn, standin
from tests.waiting import LONG, wait_until


class Pair:
    """The router, and its two workers by instance."""

    def __init__(self, here: RouterRig, workers: dict[int, StandIn]) -> None:
        self.here = here
        self.workers = workers

    def member(self, instance: int) -> Member:
        return self.here.actor.members.pools[GO].members[instance]

    @property
    def loads(self) -> list[int]:
        return [self.member(each).carried.load for each in (1, 2)]

    @property
    def calls(self) -> list[int]:
        return [len(self.workers[each].calls) for each in (1, 2)]

    async def next(self, before: list[int]) -> tuple[int, Call]:
        """The first request that was not among those so far, and who got it."""
        await wait_until(lambda: self.calls != before)
        instance = 1 if self.calls[0] != before[0] else 2
        return instance, await self.workers[instance].next()

    @asynccontextmanager
    async def held(self, **options: Any) -> AsyncIterator[tuple[Any, int, Call, Half]]:
        """A stream that a worker has begun: its items, and who it is."""
        before = self.calls
        async with self.here.client.stream(GO, {"a": 1}, **options) as items:
            first = asyncio.ensure_future(anext(items))
            instance, call = await self.next(before)
            call.reply()
            half = await call.dial()
            half.prologue()
            half.item("first")
            assert await first == "first"
            yield items, instance, call, half


@asynccontextmanager
async def pair(tmp_path: Path, **settings: Any) -> AsyncIterator[Pair]:
    """At the end nothing of any stream is left."""
    async with standin() as one, standin() as two:
        records = [far_record(one.via, GO, 1), far_record(two.via, GO, 2)]
        rest = {"overload_lease": LONG, "quarantine": LONG} | settings
        async with router_rig(tmp_path, *records, **rest) as here:
            yield Pair(here, {1: one, 2: two})
            await here.idle()
            assert here.awaited() == 0
            one.hang_up()
            two.hang_up()


async def test_b134_what_a_handler_had_begun_with_is_not_tried_at_the_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        async with both.held() as (items, _, _, half):
            half.abort()
            with pytest.raises(ConnectionLost):
                await anext(items)
        before = both.calls
        assert sum(before) == 1
        task = asyncio.ensure_future(collected(both.here))  # the same before its first item
        _, call = await both.next(before)
        call.reply()
        half = await call.dial()
        half.prologue()
        half.abort()
        with pytest.raises(ConnectionLost) as caught:
            await task
        assert caught.value.details.get("sent") != "no"
        await both.here.idle()
        assert sum(both.calls) == 2


async def test_b134_a_connection_that_one_refuses_goes_to_the_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as both, both.held(instance=2):
        server = both.workers[1]._server
        assert server is not None
        server.close()
        async with both.held() as (_, instance, _, _):  # the idle one cannot be reached
            assert instance == 2
            assert both.member(1).carried.sent == 1
            assert both.loads == [0, 2]
            assert both.member(1).state == "quarantined"
            assert both.calls == [0, 2]


async def test_b120_what_one_has_no_room_for_is_charged_to_who_takes_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as both, both.held(instance=2):
        task = asyncio.ensure_future(collected(both.here))
        call = await both.workers[1].next()
        assert both.loads == [1, 1]
        call.reply(b"Server overloaded: worker at capacity")
        call = await both.workers[2].next()
        await wait_until(lambda: both.loads == [0, 2])
        assert both.member(1).state == "leased"
        await call.answer("second")
        assert await task == ["second"]
        assert both.loads == [0, 1]


async def test_the_least_loaded_of_two_is_the_one_with_fewer_of_our_streams(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as both, AsyncExitStack() as stack:
        halves: dict[int, list[Half]] = {1: [], 2: []}
        for number in range(1, 7):
            _, instance, _, half = await stack.enter_async_context(both.held())
            halves[instance].append(half)
            assert sorted(both.loads) == [number // 2, number - number // 2]
        for half in halves[1]:
            half.end()
        await wait_until(lambda: both.loads == [0, 3])
        for _ in range(3):
            _, instance, _, _ = await stack.enter_async_context(both.held())
            assert instance == 1


@pytest.mark.parametrize("reason", ["backend.stream_incomplete", "backend.disconnected"])
async def test_what_a_worker_tells_of_others_is_no_fault_of_its_own(
    tmp_path: Path, reason: str
) -> None:
    """Its engine may be a client, too, and have lost somebody of its own."""
    kind = "StreamIncomplete" if reason.endswith("incomplete") else "Disconnected"
    typed = {"class": "Unavailable", "reason": reason, "error_type": {"Backend": kind}}
    async with pair(tmp_path) as both:
        task = asyncio.ensure_future(collected(both.here))
        instance, call = await both.next([0, 0])
        call.reply()
        half = await call.dial()
        half.prologue("lost whom I asked", typed | {"message": "lost whom I asked"})
        other = both.workers[3 - instance]  # nothing has begun: it may be tried there
        await (await other.next()).answer("second")
        assert await task == ["second"]
        assert both.member(instance).state == "free"
        assert both.here.actor.members.pools[GO].calm
