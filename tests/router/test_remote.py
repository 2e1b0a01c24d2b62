"""Streams to another node of ours: a router here, an ingress and engines there, one connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EngineError,
    NoWorkers,
    Overloaded,
    Unsupported,
    WorkerUnavailable,
)
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import engines
from tests.router.nodes import Node, node
from tests.router.rig import RouterRig, router_rig
from tests.waiting import LONG, wait_until

GO, CHAT, MIRROR = "t.far.go", "t.far.chat", "t.far.mirror"


@asynccontextmanager
async def pair(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[RouterRig, Node]]:
    """A router here and a node there that has all three engines."""
    engines.SEEN.clear()
    there: list[tuple[str, type, dict[str, Any]]] = [
        (GO, engines.Count, {}),
        (CHAT, engines.Chat, {}),
        (MIRROR, engines.Mirror, {}),
    ]
    async with (
        node(tmp_path / "b", *there, **settings) as far,
        router_rig(tmp_path / "a", *far.records, **settings) as here,
    ):
        yield here, far
        await here.idle()
        await wait_until(lambda: not far.ingress.streams.table, what="an idle ingress")


def connections(far: Node) -> int:
    return len(far.ingress.connections)


async def test_a_stream_goes_there_and_comes_home(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, far):
        async with here.client.stream(GO, {"n": 3}) as items:
            assert [item async for item in items] == [0, 1, 2]
        assert await here.client.call(MIRROR, {"a": [1, 2.5, None, b"x"]}) == {
            "a": [1, 2.5, None, b"x"]
        }
        assert connections(far) == 1


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_conformance_09_both_codecs_both_kinds(tmp_path: Path, codec: str) -> None:
    async with pair(tmp_path, codec=codec) as (here, _):
        sent = [{"n": 1, "text": "é"}, [True, None, 2.5], "x"]
        for each in sent:
            assert await here.client.call(MIRROR, each) == each
        async with here.client.open(CHAT) as chat:
            for each in sent:
                await chat.send(each)
            await chat.end()
            assert [item async for item in chat] == [*sent, "end 0", "end 1", "end 2"]


async def test_metadata_request_id_and_deadline_travel(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        seen = await here.client.call(
            GO, {"do": "metadata"}, metadata={"k": "v"}, request_id="mine", timeout=500.0
        )
        assert (seen["id"], seen["metadata"]) == ("mine", {"k": "v"})
        assert 400.0 < seen["left"] <= 500.0
        seen = await here.client.call(GO, {"do": "metadata"}, timeout=None)
        assert seen["left"] is None


async def test_a_deadline_ends_a_handler_there(tmp_path: Path, clock: Clock) -> None:
    async with pair(tmp_path) as (here, _):
        call = asyncio.ensure_future(here.client.call(GO, {"do": "wait"}, timeout=LONG))
        await wait_until(lambda: engines.SEEN == ["began"])
        clock.turn(LONG)
        with pytest.raises(DeadlineExceeded):
            await call
        await wait_until(lambda: engines.SEEN == ["began", "killed"])


async def test_an_error_of_the_handler_comes_behind_its_items(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"n": 2, "do": "raise"}) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            with pytest.raises(EngineError, match="no such luck") as caught:
                await anext(items)
        assert caught.value.remote_type == "ValueError"


async def test_conformance_19_a_consumer_that_leaves_kills(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"n": 2, "do": "wait"}) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            assert here.permits == 1
        await wait_until(lambda: engines.SEEN == ["began", "killed"])
        await here.idle()


async def test_conformance_20a_what_a_stopped_handler_still_yields_arrives(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"n": 1, "do": "stopped"}) as items:
            assert await anext(items) == 0
            items.stop("enough")
            assert [item async for item in items] == ["last 0", "last 1", "last 2"]
        assert engines.SEEN == ["began", "stopped"]


async def test_conformance_21_stop_then_kill(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:
            assert await anext(items) == 0
            items.stop("please")
            items.kill("now")
            items.stop("again")
            with pytest.raises(Cancelled):
                await anext(items)
        await wait_until(lambda: engines.SEEN == ["began", "killed"])


async def test_a_stop_before_anything_came_reaches_the_handler(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.stream(GO, {"do": "stopped"}, request_id="r") as items:
            here.client.cancel("r", kill=False, reason="early")
            got = [item async for item in items]
        assert got in ([], ["last 0", "last 1", "last 2"])


async def test_a_kill_before_the_connection_is_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        for _ in range(20):
            async with here.client.stream(GO, {"do": "wait"}):
                await asyncio.sleep(0)
        await here.idle()
        await wait_until(lambda: engines.SEEN.count("began") == engines.SEEN.count("killed"))
        assert await here.client.call(MIRROR, 1) == 1


async def test_conformance_22_b128_input_ends_early_and_the_answers_go_on(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.open(CHAT) as chat:
            for number in range(3):
                await chat.send(number)
            await chat.end()
            assert [item async for item in chat] == [0, 1, 2, "end 0", "end 1", "end 2"]
        assert engines.SEEN == ["began", "ended"]


async def test_b128_the_worker_finishes_first(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _), here.client.open(CHAT) as chat:
        await chat.send("enough")
        assert [item async for item in chat] == []
        with pytest.raises(Cancelled):
            await chat.send("more")


async def test_conformance_25_a_client_that_never_sends_and_leaves(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        async with here.client.open(CHAT) as chat:
            await wait_until(lambda: engines.SEEN == ["began"])
            assert here.permits == 1
            del chat
        await wait_until(lambda: engines.SEEN == ["began", "killed"])


async def test_conformance_07_each_kind_refuses_the_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        with pytest.raises(Unsupported):
            await here.client.call(CHAT, 1)
        async with here.client.open(MIRROR) as chat:
            with pytest.raises(Unsupported):
                await anext(chat)
        assert await here.client.call(MIRROR, 2) == 2


async def test_conformance_05_a_path_that_is_gone(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, far):
        # Withdrawn there, and the news has not come here yet.
        far.told.remove(far.told.records[0])
        with pytest.raises(WorkerUnavailable, match="nothing is served"):
            await here.client.call(GO, {})


async def test_conformance_06_a_full_node(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, ingress_pool=1, ingress_queue=0) as (here, _),
        here.client.stream(GO, {"n": 1, "do": "wait"}) as items,
    ):
        await anext(items)
        with pytest.raises(Overloaded):
            await here.client.call(MIRROR, 1)
        assert here.permits == 1


async def test_large_values_both_ways(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _):
        for size in (1, 100_000, 1 << 20, (1 << 20) + 1, 8 << 20):
            data = os.urandom(size)
            assert await here.client.call(MIRROR, data) == data


async def test_arrays_go_both_ways_and_leave_nothing(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    async with pair(tmp_path) as (here, _):
        for shape in ((4,), (100, 100), (1024, 1024)):
            array = numpy.random.default_rng(1).random(shape)
            back = await here.client.call(MIRROR, {"a": array, "n": 1})
            assert (back["a"] == array).all()
            del back
            async with here.client.open(CHAT) as chat:
                await chat.send(array)
                await chat.send("small")
                assert (await anext(chat) == array).all()
                assert await anext(chat) == "small"
        memory, relay = here.runtime.memory, here.actor.runtime.memory
        await wait_until(lambda: not memory.statistics().lent, what="no leases of the client")
        await wait_until(lambda: not relay.statistics().lent, what="no leases of the router")
        await wait_until(lambda: not memory.statistics().slots and not relay.statistics().slots)


async def test_many_streams_share_one_connection(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, far):

        async def one(number: int) -> None:
            async with here.client.stream(GO, {"n": 20, "item": number}) as items:
                assert [item async for item in items] == [number] * 20

        await asyncio.gather(*(one(number) for number in range(200)))
        assert connections(far) == 1


async def test_a_slow_reader_stops_its_own_producer_only(tmp_path: Path) -> None:
    async with pair(tmp_path) as (here, _), here.client.stream(GO, {"n": 2000}) as slow:
        assert await anext(slow) == 0
        async with here.client.stream(GO, {"n": 2000}) as quick:
            assert len([item async for item in quick]) == 2000
        assert len([item async for item in slow]) == 1999


async def test_a_node_that_stops_ends_its_streams_with_a_reason(tmp_path: Path) -> None:
    there: tuple[str, type, dict[str, Any]] = (GO, engines.Count, {})
    async with (
        node(tmp_path / "b", there) as far,
        router_rig(tmp_path / "a", *far.records) as here,
    ):
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:
            await anext(items)
            far.ingress.shut()
            await far.ingress.on_stop()
            with pytest.raises(ConnectionLost):
                await anext(items)
        await here.idle()
        with pytest.raises(ConnectionLost):
            await here.client.call(GO, {})
        await here.idle()


async def test_static_peers_are_followed(tmp_path: Path) -> None:
    there: tuple[str, type, dict[str, Any]] = (GO, engines.Count, {})
    async with (
        node(tmp_path / "b", there) as far,
        router_rig(tmp_path / "a", peers=(far.ingress.reached,)) as here,
    ):
        await wait_until(lambda: here.actor.peers.connected)
        async with here.client.stream(GO, {"n": 2}) as items:
            assert [item async for item in items] == [0, 1]
        record = far.told.records[0]
        far.told.remove(record)
        await wait_until(lambda: not here.actor.members.pools[GO].members)
        with pytest.raises(NoWorkers):
            await here.client.call(GO, {})
        far.told.add(record)
        await wait_until(lambda: here.actor.members.pools[GO].members)
        far.ingress.connections.close("cut by the test")
        await wait_until(lambda: not here.actor.members.pools[GO].members)
        assert far.ingress.reached in here.actor.peers.failures
        await wait_until(lambda: here.actor.members.pools[GO].members, what="found again")


async def test_a_peer_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with router_rig(tmp_path / "a", peers=("127.0.0.1:1",)) as here:
        await wait_until(lambda: here.actor.peers.failures)
        assert isinstance(here.actor.peers.failures["127.0.0.1:1"], ConnectionLost)
