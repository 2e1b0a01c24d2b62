"""Requests that one worker has not begun, or has died with, go to another one by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, ResponseStream, RouterSpec, Settings
from actors.client import read_node
from actors.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    Overloaded,
    PeerLost,
)
from tests.e2e.standing import FarCluster
from tests.e2e.watching import Trace, kill
from tests.waiting import LONG, TICK, wait_until

ENGINES = "tests.e2e.moving_engines"
ONCE, FULL, NEVER = "t.once.go", "t.full.go", "t.never.go"


def node(trace: Trace, replicas: int = 3) -> NodeSpec:
    """Workers that hold and die: one may be dead while two others are needed."""
    once = EngineSpec(ONCE, f"{ENGINES}:Once", args={"trace": trace.path}, replicas=replicas)
    settings = Settings.load(max_restarts=100)
    return NodeSpec(
        name="a", routers=[RouterSpec(policy="round_robin")], engines=[once], settings=settings
    )


async def victim(path: Path) -> int:
    """The worker that holds there."""
    found: list[str] = []

    def holds() -> bool:
        found[:] = path.read_text().splitlines(keepends=True) if path.exists() else []
        return bool(found) and found[0].endswith("\n")

    await wait_until(holds, LONG, what="somebody holds")
    return int(found[0])


async def two(client: Client, endpoint: str = ONCE, count: int = 2) -> None:
    """Wait until so many workers serve."""

    async def there() -> bool:
        found = [each.instance for each in client.records() if each.endpoint == endpoint]
        try:
            for instance in found:
                await client.call(endpoint, {}, instance=instance)
        except CallHomeError:
            return False
        return len(found) >= count

    await wait_until(there, LONG, f"{count} workers")


def starts(trace: Trace, tag: str) -> list[str]:
    """The workers that have begun with a request, which has one id at all of them."""
    tags = [each.tag.split(".", 2) for each in trace.events("started") if each.tag.startswith(tag)]
    assert len({id for _, _, id in tags}) == len({tag for tag, _, _ in tags})
    return [pid for _, pid, _ in tags]


async def test_b71_and_conformance_40_in_a_node(tmp_path: Path) -> None:
    """All in one cluster, since most of what this costs is the starting of processes; each part
    names its requests by tags of its own, and begins when its workers are there (again).
    """
    trace = Trace(tmp_path)
    spec, args = node(trace), {"trace": trace.path}
    more = [
        EngineSpec(FULL, f"{ENGINES}:Once", args=args, replicas=2, capacity=1, queue=0),
        EngineSpec(NEVER, f"{ENGINES}:Once", args=args, restart="never"),
    ]
    async with Cluster(replace(spec, engines=[*spec.engines, *more])) as cluster:
        for part in (dies_in_a_node, full, one_instance, may_be_running, blocks, gone):
            (folder := tmp_path / part.__name__).mkdir()
            async with cluster.client() as client:
                await part(client, trace, folder)


async def test_b71_a_death_before_the_first_item_between_nodes(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with FarCluster(node(trace)) as cluster, cluster.client() as client:
        await dies(client, trace, tmp_path, ["array", "stream"])


async def dies_in_a_node(client: Client, trace: Trace, tmp_path: Path) -> None:
    await dies(client, trace, tmp_path, ["none", "array", "frame", "stream"])


async def dies(client: Client, trace: Trace, tmp_path: Path, kinds: list[str]) -> None:
    """Requests of these kinds whose worker dies with them."""
    await two(client)
    asked: dict[str, asyncio.Task[Any]] = {}
    items: ResponseStream | None = None
    for kind in kinds:
        request: dict[str, Any] = {"hold": str(tmp_path / kind), "tag": kind}
        if kind == "frame":
            frame = client.frames.new(200_000, "u1")
            frame.array[:] = 1
            request["array"] = frame
        elif kind == "array":
            request["array"] = np.ones(200_000, "u1")
        if kind == "stream":
            items = client.stream(ONCE, request, timeout=LONG)
            asked[kind] = asyncio.create_task(anext(items))
        else:
            call = client.call(ONCE, request, timeout=LONG, request_id=f"id-{kind}")
            asked[kind] = asyncio.create_task(call)
    victims = {kind: await victim(tmp_path / kind) for kind in kinds}
    for kind, task in asked.items():
        if not task.done():
            await two(client)
            with contextlib.suppress(ProcessLookupError):  # it held another one, too
                kill(victims[kind])
        answer = await task
        assert answer["pid"] != victims[kind]
        assert answer["sum"] == (200_000 if kind in ("array", "frame") else 0)
        ran = starts(trace, f"{kind}.")
        assert len(ran) == len(set(ran)) == 2
        if kind != "stream":
            assert trace.tags("started") >= {f"{kind}.{each}.id-{kind}" for each in ran}
    assert items is not None
    assert items.attempts >= 2
    assert items.received == 1
    assert [item async for item in items] == []
    counts = client.statistics()
    assert counts["retried"] >= len(kinds)
    assert counts["migrated.new_request"] == counts["migrated.ongoing_request"] == 0
    await wait_until(lambda: client.runtime.memory.statistics().slots == 0, what="no frame")


@contextlib.asynccontextmanager
async def held(client: Client, tmp_path: Path, tag: str) -> AsyncIterator[None]:
    """One of the two small workers is full."""
    place = tmp_path / tag
    async with client.stream(FULL, {"hold": str(place), "tag": tag}) as items:
        reading = asyncio.create_task(anext(items))
        await victim(place)
        yield
        reading.cancel()


async def full(client: Client, trace: Trace, tmp_path: Path) -> None:
    """A worker that is full sends nobody away while another has room."""
    await two(client, FULL)
    array = np.ones(100_000, "u1")
    async with held(client, tmp_path, "one"):
        for number in range(6):
            answer = await client.call(FULL, {"array": array, "tag": f"try{number}"})
            assert answer["sum"] == 100_000
            assert len(starts(trace, f"try{number}.")) == 1
        never = Client(run=client._run, settings=Settings.load(retry_limit=0))
        async with held(client, tmp_path, "two"), never:
            # Nothing is left, and that is what all of them are told.
            with pytest.raises(Overloaded):
                await client.call(FULL, {})
            with pytest.raises(Overloaded):
                await never.call(FULL, {})
    await wait_until(lambda: client.runtime.memory.statistics().slots == 0, what="no frame")


async def one_instance(client: Client, trace: Trace, tmp_path: Path) -> None:
    """One instance is asked, and no other."""
    await two(client, count=3)
    workers = await client.workers(ONCE)
    first, second, third = (each.instance for each in workers)
    known = {each.instance for each in client.records() if each.endpoint == ONCE}
    assert {first, second, third} == known
    assert [(each.endpoint, each.state, each.where) for each in workers] == [(ONCE, "free", "")] * 3
    assert {each.endpoint for each in await client.workers()} >= {ONCE, FULL}
    assert await client.workers("t.nobody.go") == []
    pids = {each.instance: each.address.pid for each in client.records()}
    for instance in (first, second, second):
        answer = await client.call(ONCE, {}, instance=instance)
        assert answer["pid"] == pids[instance]
        async with client.stream(ONCE, {}, instance=instance) as items:
            assert [each["pid"] async for each in items] == [pids[instance]]
    place = tmp_path / "hold"
    asking = asyncio.create_task(
        client.call(ONCE, {"hold": str(place), "tag": "pinned"}, instance=second)
    )
    kill(await victim(place))
    with pytest.raises(PeerLost, match=f"for instance {second} and no other"):
        await asking
    assert len(starts(trace, "pinned.")) == 1
    with pytest.raises(CallHomeError) as gone:
        await client.call(ONCE, {}, instance=second)
    assert gone.value.code == "worker.unavailable"
    for bad in ({"instance": 0}, {"instance": "7"}, {"priority": 1.5}, {"priority": 1 << 40},
                {"migration_limit": -1}, {"migration_limit": True},
                {"instance": first, "migration_limit": 1}):  # fmt: skip
        with pytest.raises(LocalProtocolError):
            await client.call(ONCE, {}, **bad)


async def may_be_running(client: Client, trace: Trace, tmp_path: Path) -> None:
    """What may be running still is sent again only when that is asked for."""
    await two(client)
    for limit in (0, 1):
        place = tmp_path / f"hold{limit}"
        request: dict[str, Any] = {"hold": str(place), "tag": f"cut{limit}"}
        # The handler's worker lives; it is its time that has run out.
        items = client.stream(
            ONCE, request, first_item_timeout=LONG,
            migration_limit=limit, resume=lambda request, delivered: request,
        )  # fmt: skip
        first = asyncio.ensure_future(anext(items))
        await victim(place)
        (stream,) = client.runtime.home.streams.values()
        stream.progress -= 2 * LONG  # so long ago was its last word
        if limit:
            assert "pid" in await first
        else:
            with pytest.raises(CallHomeError, match="no first item"):
                await first
        assert len(starts(trace, f"cut{limit}.")) == 1 + limit

        # An answer has come and its end has not: it was delivered, as far as anybody knows.
        request |= {"hold": str(tmp_path / f"late{limit}"), "late": 1, "tag": f"late{limit}"}
        asking = asyncio.create_task(client.call(ONCE, request, migration_limit=limit))
        pid = await victim(tmp_path / f"late{limit}")
        await wait_until(
            lambda: [each.seq for each in client.runtime.home.streams.values()] == [1],
            what="the answer has come",
        )
        await two(client)
        kill(pid)
        if limit:
            assert (await asking)["pid"] != pid
        else:
            with pytest.raises(ConnectionLost, match="after 1 items"):
                await asking
        assert len(starts(trace, f"late{limit}.")) == 1 + limit
    counts = client.statistics()
    assert (counts["migrated.new_request"], counts["migrated.ongoing_request"]) == (2, 0)


async def blocks(client: Client, trace: Trace, tmp_path: Path) -> None:
    """A resume that blocks holds up its caller's loop; the stream's deadline holds all the same."""
    await two(client)
    asked: list[list[Any]] = []
    ends = 0.0

    def resume(request: dict[str, Any], delivered: list[Any]) -> dict[str, Any]:
        asked.append(delivered)
        time.sleep(max(0.0, ends - time.monotonic()))
        return request

    request = {"hold": str(tmp_path / "hold"), "tag": "blocks", "answers": 2, "late": 1}
    items = client.stream(ONCE, request, timeout=30 * TICK, migration_limit=1, resume=resume)
    async with items:
        first = await anext(items)
        # Behind the stream's own, and by more than the coarse timer takes to look.
        ends = time.monotonic() + 35 * TICK
        kill(await victim(tmp_path / "hold"))
        with pytest.raises(DeadlineExceeded):
            await anext(items)
    assert asked == [[first]]


async def gone(client: Client, trace: Trace, tmp_path: Path) -> None:
    """Conformance 40: a cancel while nobody is there is the end."""
    asked = []
    for number in range(3):
        place = tmp_path / f"hold{number}"
        request = {"hold": str(place), "tag": f"gone{number}"}
        coroutine = client.call(
            NEVER, request, timeout=LONG, migration_limit=3, request_id=f"r{number}"
        )
        asked.append(asyncio.create_task(coroutine))
        pid = await victim(place)
    kill(pid)
    await wait_until(lambda: len(client.runtime.home.between.contexts()) == 3, what="pauses")
    with pytest.raises(LocalProtocolError, match="in flight"):
        await client.call(NEVER, {}, request_id="r0")
    assert client.cancel("r0", reason="enough")
    assert client.cancel("r1", kill=False, reason="enough")
    asked[2].cancel()
    for task in asked[:2]:
        with pytest.raises(Cancelled, match="enough") as cancelled:
            await task
        assert isinstance(cancelled.value.__cause__, PeerLost)
    with pytest.raises(asyncio.CancelledError):
        await asked[2]
    assert not client.runtime.home.between.contexts()
    assert len(starts(trace, "gone")) == 3
    # A deadline that passes meanwhile ends it with what had happened.
    with pytest.raises(CallHomeError):
        await client.call(NEVER, {}, timeout=2 * TICK, migration_limit=3)


async def test_no_call_is_given_to_a_router_that_is_dead_while_another_lives(
    tmp_path: Path,
) -> None:
    routers = [RouterSpec(name="one"), RouterSpec(name="two")]
    spec = replace(node(Trace(tmp_path), 2), routers=routers)
    async with Cluster(spec) as cluster, cluster.client() as client:
        await two(client)
        done, failed, tasks = [], [], 8

        async def calls(enough: asyncio.Event) -> None:
            while not enough.is_set():
                try:
                    done.append(await client.call(ONCE, {}))
                except PeerLost as error:
                    failed.append(str(error))

        enough, dead = asyncio.Event(), client.ref("one").address
        calling = asyncio.gather(*(calls(enough) for _ in range(tasks)))
        await wait_until(lambda: len(done) > 20, what="calls by both")
        registry = read_node(client._run).pid
        os.kill(registry, signal.SIGSTOP)  # so that nobody tells that the router is gone
        try:
            kill(dead.pid)
            await wait_until(lambda: client.runtime.peers.death(dead), what="its death is known")
            before = len(done)
            await wait_until(lambda: len(done) > before + 50, what="calls by the other")
        finally:
            os.kill(registry, signal.SIGCONT)
        enough.set()
        await asyncio.wait_for(calling, LONG)
        # Those that it had been sent; nobody can say what has become of them.
        assert len(failed) <= tasks
        assert all("died before the stream was accepted" in each for each in failed), failed
