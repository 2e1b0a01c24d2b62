"""B52: whoever is asked to stop lets streams end that are under way, and no longer than is set."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import (
    Client,
    Cluster,
    DispatchSeat,
    EngineSpec,
    NodeSpec,
    RouterSpec,
    Settings,
    StreamingDispatch,
)
from actors.errors import CallHomeError, ConnectionLost, DeadlineExceeded
from tests.e2e.process_engines import wait_for_file
from tests.e2e.standing import FarClient, on_road
from tests.e2e.watching import inspect
from tests.router.dispatches import Inside
from tests.waiting import DEADLINE, LONG, TICK, wait_until

ENDPOINT = "t.counts.go"
COUNTS = EngineSpec(ENDPOINT, "tests.e2e.process_engines:Counts", capacity=5)
#: Items of a stream, and the pause between two.
ITEMS, PAUSE = 15, TICK / 5
#: Time for streams that must not be over.
LIMIT = 2 * LONG
ROADS = ["node", "nodes"]


async def read(
    client: Client, request: dict[str, Any], timeout: float = 10 * LONG
) -> tuple[list[Any], CallHomeError | None]:
    """All items, and the error behind them."""
    items = []
    try:
        async with client.stream(ENDPOINT, request, timeout=timeout) as stream:
            async for item in stream:
                items.append(item)
    except CallHomeError as error:
        return items, error
    return items, None


@asynccontextmanager
async def serving(
    limit: float, road: str, engine: EngineSpec = COUNTS, **more: Any
) -> AsyncIterator[tuple[Cluster, Client]]:
    """A cluster whose engine is called by ``road``, and a client that outlives its node."""
    settings = Settings.load(drain_limit=limit)
    spec = NodeSpec(engines=[engine], settings=settings, **more)
    async with Cluster(on_road(spec, road)) as cluster:
        client = cluster.client() if road == "node" else FarClient(cluster.name, settings)
        async with client:
            yield cluster, client


def make(file: Path) -> None:
    """Let streams end."""
    file.touch()


def serving_pid(cluster: Cluster) -> int:
    """The process of the node that serves."""
    return cluster.nodes[-1].address.pid


async def begun(client: Client, count: int, **request: Any) -> list[asyncio.Task[Any]]:
    """So many streams that have brought their first items."""
    first = [asyncio.Event() for _ in range(count)]

    async def run(number: int) -> tuple[list[Any], CallHomeError | None]:
        items = []
        try:
            async with client.stream(ENDPOINT, request) as stream:
                async for item in stream:
                    items.append(item)
                    first[number].set()
        except CallHomeError as error:
            return items, error
        return items, None

    tasks = [asyncio.create_task(run(number)) for number in range(count)]
    for each in first:
        await asyncio.wait_for(each.wait(), DEADLINE)
    return tasks


async def refused(client: Client) -> CallHomeError:
    """Wait until a new stream is refused; before that it waits for a place, or is served."""
    found: list[CallHomeError] = []

    async def so() -> bool:
        _, error = await read(client, {"items": 1}, timeout=5 * TICK)
        if error is not None and not isinstance(error, DeadlineExceeded):
            found.append(error)
        return bool(found)

    await wait_until(so, what="a new stream is refused")
    return found[0]


async def waits(client: Client) -> None:
    """Wait until one stream waits for a place at the engine."""

    async def so() -> bool:
        return bool((await inspect(client, ENDPOINT)).get("queued") == 1)

    await wait_until(so, what="one waits for a place")


@pytest.fixture
def until(tmp_path: Path) -> Path:
    """The file without which a stream does not end."""
    return tmp_path / "until"


@pytest.mark.parametrize("road", ROADS)
async def test_b52_streams_under_way_end_well_and_new_ones_are_refused(
    road: str, until: Path
) -> None:
    async with serving(LIMIT, road) as (cluster, client):
        tasks = await begun(client, 5, items=ITEMS, pause=PAUSE, until=str(until))
        waiting = asyncio.create_task(read(client, {"items": 3, "pause": 0.0}))  # for a place
        await waits(client)
        os.kill(serving_pid(cluster), signal.SIGTERM)
        error = await refused(client)
        assert error.code in ("draining", "no_workers", "worker.unavailable"), error
        assert not any(task.done() for task in tasks)
        told = time.monotonic()
        make(until)
        for task in tasks:
            assert await task == (list(range(ITEMS)), None)
        assert await waiting == ([0, 1, 2], None)
        await cluster.wait_ended()
        assert time.monotonic() - told < LONG  # as soon as the last has ended, not at the limit


@pytest.mark.parametrize("road", ROADS)
async def test_b52_the_limit_ends_streams_with_an_error_that_says_so(road: str) -> None:
    async with serving(5 * TICK, road) as (cluster, client):
        tasks = await begun(client, 5, pause=PAUSE)  # they never end
        queued = asyncio.create_task(read(client, {"items": 1}))
        await asyncio.sleep(TICK)
        os.kill(serving_pid(cluster), signal.SIGTERM)
        results = await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE)
        for items, error in results:
            assert items == list(range(len(items)))
            assert isinstance(error, ConnectionLost)
            assert "the time for streams to end is over (setting drain_limit, 0.5 s)" in str(error)
        _, error = await queued
        assert error is not None
        await asyncio.wait_for(cluster.wait_ended(), DEADLINE)


async def test_b52_a_second_signal_ends_the_time_of_streams() -> None:
    async with serving(LIMIT, "node") as (cluster, client):
        (task,) = await begun(client, 1, pause=PAUSE)
        os.kill(serving_pid(cluster), signal.SIGTERM)
        await refused(client)  # one signal is heard, which else might be one with the next
        assert not task.done()
        os.kill(serving_pid(cluster), signal.SIGTERM)
        _, error = await asyncio.wait_for(task, DEADLINE)
        assert isinstance(error, ConnectionLost)
        assert "asked once more" in str(error)
        _, how = await asyncio.wait_for(cluster.wait_ended(), DEADLINE)
        assert how.clean


async def test_b52_without_streams_nothing_is_waited_for() -> None:
    settings = Settings.load(drain_limit=600.0)
    began = time.monotonic()
    spec = NodeSpec(engines=[COUNTS], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        tasks = await begun(client, 2, pause=PAUSE)
        for task in tasks:  # whose callers want no more of them
            task.cancel()
        await asyncio.wait(tasks)
    assert time.monotonic() - began < 100.0


def answering(seat: DispatchSeat) -> StreamingDispatch:
    """The router answers the endpoint itself."""

    async def count(request: Any, ctx: Any) -> AsyncIterator[Any]:
        for number in range(request.get("items", 1 << 30)):
            if number == request.get("items", 0) - 1:
                await wait_for_file(request.get("until", ""))
            yield number
            await asyncio.sleep(request["pause"])

    return Inside(seat, {ENDPOINT: (False, count)})


async def test_b52_what_a_router_answers_itself_gets_its_time(until: Path) -> None:
    router = RouterSpec(dispatch=answering)
    settings = Settings.load(drain_limit=LIMIT)
    async with (
        Cluster(NodeSpec(routers=[router], settings=settings)) as cluster,
        cluster.client() as client,
    ):
        tasks = await begun(client, 3, items=ITEMS, pause=PAUSE, until=str(until))
        killed = await begun(client, 1, pause=PAUSE)
        os.kill(serving_pid(cluster), signal.SIGTERM)
        await refused(client)
        assert not any(task.done() for task in tasks)
        killed[0].cancel()
        make(until)
        for task in tasks:
            assert await task == (list(range(ITEMS)), None)
        await asyncio.wait_for(cluster.wait_ended(), DEADLINE)


async def test_b52_the_limit_holds_for_what_a_router_answers_itself() -> None:
    router = RouterSpec(dispatch=answering)
    settings = Settings.load(drain_limit=3 * TICK)
    async with (
        Cluster(NodeSpec(routers=[router], settings=settings)) as cluster,
        cluster.client() as client,
    ):
        (task,) = await begun(client, 1, pause=PAUSE)
        os.kill(serving_pid(cluster), signal.SIGTERM)
        _, error = await asyncio.wait_for(task, DEADLINE)
        assert isinstance(error, ConnectionLost)
        assert "drain_limit, 0.3 s" in str(error)


@pytest.mark.parametrize("first", [0, 1], ids=["who follows", "who is followed"])
async def test_b52_what_nodes_tell_each_other_is_not_waited_for(first: int) -> None:
    """The records and loads that routers follow are nobody's streams."""
    settings = Settings.load(drain_limit=LIMIT)
    nodes = on_road(NodeSpec(engines=[COUNTS], settings=settings), "nodes")
    async with Cluster(nodes) as cluster:
        async with FarClient(cluster.name, settings) as client:
            assert await read(client, {"items": 1}) == ([0], None)
        began = time.monotonic()
        os.kill(cluster.nodes[first].address.pid, signal.SIGTERM)
        await cluster.wait_ended()
        assert time.monotonic() - began < LONG


async def test_b52_an_engine_that_is_stopped_alone_is_left_by_new_streams(until: Path) -> None:
    both = EngineSpec(ENDPOINT, COUNTS.target, replicas=2)
    async with serving(LIMIT, "node", both) as (_, client):
        tasks = await begun(client, 6, items=ITEMS, pause=PAUSE, until=str(until))
        victim = client.ref(f"{ENDPOINT}-0").address
        os.kill(victim.pid, signal.SIGTERM)
        for _ in range(20):
            assert await read(client, {"items": 2, "pause": 0.0}) == ([0, 1], None)
        make(until)
        for task in tasks:
            assert await task == (list(range(ITEMS)), None)
        await wait_until(lambda: not os.path.exists(f"/proc/{victim.pid}"))
        assert await read(client, {"items": 2, "pause": 0.0}) == ([0, 1], None)


async def test_b52_leaving_the_block_is_a_stop_for_actors_in_this_process_too() -> None:
    settings = Settings.load(drain_limit=LIMIT)
    spec = NodeSpec(
        engines=[EngineSpec(ENDPOINT, COUNTS.target, place="here")],
        routers=[RouterSpec(place="here")],
        settings=settings,
    )
    async with Cluster(spec) as cluster:
        client = await cluster.client().__aenter__()
        tasks = await begun(client, 2, items=ITEMS, pause=PAUSE)
    for task in tasks:
        assert await task == (list(range(ITEMS)), None)


async def test_b52_streams_to_other_nodes_end_before_their_own_node_does(until: Path) -> None:
    settings = Settings.load(drain_limit=LIMIT)
    nodes = on_road(NodeSpec(engines=[COUNTS], settings=settings), "nodes")
    async with Cluster(nodes) as cluster, FarClient(cluster.name, settings) as client:
        tasks = await begun(client, 3, items=ITEMS, pause=PAUSE, until=str(until))
        os.kill(cluster.nodes[0].address.pid, signal.SIGTERM)
        await refused(client)
        make(until)
        for task in tasks:
            assert await task == (list(range(ITEMS)), None)
