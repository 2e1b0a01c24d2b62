"""Our router and our ingress, each of which takes the other for Dynamo's: the wire that both share.

The same calls as between nodes of ours, over a socket or two for each stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.errors import AllBusy, EngineError, Overloaded, WorkerUnavailable
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import engines
from tests.router.nodes import Node, node
from tests.router.rig import RouterRig, router_rig
from tests.waiting import LONG, wait_until

GO, CHAT, MIRROR = "t.far.go", "t.far.chat", "t.far.mirror"


@asynccontextmanager
async def pair(
    tmp_path: Path, codec: str = "msgpack", **settings: Any
) -> AsyncIterator[tuple[RouterRig, Node]]:
    """A router here and a node there whose records say nothing of callhome."""
    engines.SEEN.clear()
    there: list[tuple[str, type, dict[str, Any]]] = [
        (GO, engines.Count, {}),
        (CHAT, engines.Chat, {}),
        (MIRROR, engines.Mirror, {}),
    ]
    async with node(tmp_path / "b", *there, **settings) as far:
        records = [each._replace(speaks="", codec=codec) for each in far.records]
        async with router_rig(tmp_path / "a", *records, overload_lease=LONG) as here:
            yield here, far
            await here.idle()
            await wait_until(lambda: not far.ingress.streams.table, what="an idle ingress")


CODECS = ["msgpack", "json"]


@pytest.mark.parametrize("codec", CODECS)
async def test_unary_and_a_stream_each_way(tmp_path: Path, codec: str) -> None:
    async with pair(tmp_path, codec) as (here, far):
        sent = [{"n": 1, "text": "é"}, [True, None, 2.5], "x"]
        for each in sent:
            assert await here.client.call(MIRROR, each) == each
        async with here.client.stream(GO, {"n": 2000}) as items:
            assert [item async for item in items] == list(range(2000))
        async with here.client.open(CHAT) as chat:
            for each in sent:
                await chat.send(each)
            await chat.end()
            assert [item async for item in chat] == [*sent, "end 0", "end 1", "end 2"]
        assert len(far.ingress.connections) == 0
        assert far.ingress.counters.errors == {}
        assert far.ingress.counters.cancelled == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_large_values(tmp_path: Path, codec: str) -> None:
    async with pair(tmp_path, codec) as (here, _):
        text = "a" * (8 << 20)
        assert await here.client.call(MIRROR, text) == text


async def test_an_error_of_the_handler_comes_behind_its_items(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"n": 2, "do": "raise"}) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            with pytest.raises(EngineError, match="no such luck") as caught:
                await anext(items)
        assert caught.value.remote_type == "ValueError"


async def test_a_stop_a_kill_and_a_leave(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, far):
        async with here.client.stream(GO, {"n": 1, "do": "stopped"}) as items:
            assert await anext(items) == 0
            items.stop("enough")
            assert [item async for item in items] == ["last 0", "last 1", "last 2"]
        assert engines.SEEN == ["began", "stopped"]
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:
            assert await anext(items) == 0
        await wait_until(lambda: engines.SEEN[2:] == ["began", "killed"])
        async with here.client.open(CHAT) as chat:
            await chat.send("one")
            assert await chat.recv() == "one"
        await wait_until(lambda: engines.SEEN[4:] == ["began", "killed"])
        await wait_until(lambda: far.ingress.counters.cancelled == 3)
        assert far.ingress.counters.errors == {}


async def test_a_worker_that_finishes_first(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.open(CHAT) as chat:
            await chat.send("enough")
            assert [item async for item in chat] == []
        assert engines.SEEN == ["began", "ended"]


async def test_refusals_are_typed(tmp_path: Path, clock: Clock) -> None:
    async with pair(tmp_path, ingress_pool=1, ingress_queue=0) as (here, far):
        with pytest.raises(WorkerUnavailable, match=r"use open\(\)"):
            await here.client.call(CHAT, 1)
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:
            assert await anext(items) == 0
            with pytest.raises(Overloaded):
                await here.client.call(MIRROR, 1)
            with pytest.raises(AllBusy, match="want of room"):
                await here.client.call(MIRROR, 1)
        await wait_until(lambda: not far.ingress.streams.table)
        clock.turn(LONG)

        async def served() -> bool:
            with suppress(AllBusy):
                return bool(await here.client.call(MIRROR, 1) == 1)
            return False

        await wait_until(served, what="an engine that has refused gets another try")


async def test_512_streams_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):

        async def one(number: int) -> Any:
            return await here.client.call(MIRROR, number)

        assert await asyncio.gather(*map(one, range(512))) == list(range(512))
