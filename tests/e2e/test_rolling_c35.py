"""Conformance 35: whoever is asked to stop ends its streams, and what is new goes elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.discovery.files import instances_folder
from actors.discovery.record import routing_path
from actors.messages import Record
from tests.e2e.rolling import COUNTS, ECHO
from tests.ingress.standin import requester
from tests.ports import free_address
from tests.waiting import LONG, TICK, wait_until

STREAMS, ITEMS = 5, 10
GRACE = 2.0
SETTINGS = Settings.load(start_timeout=60.0, drain_limit=60.0)


def counting(**more: Any) -> EngineSpec:
    return EngineSpec(COUNTS, "tests.e2e.process_engines:Counts", capacity=16, **more)


async def begun(client: Client, instance: int, until: Path) -> list[asyncio.Task[list[Any]]]:
    """Five streams of one worker, each with its first item; none ends before that file is there."""

    async def run(first: asyncio.Event) -> list[Any]:
        items = []
        request = {"items": ITEMS, "pause": TICK / 10, "until": str(until)}
        async with client.stream(COUNTS, request, instance=instance) as stream:
            async for item in stream:
                items.append(item)
                first.set()
        return items

    firsts = [asyncio.Event() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(run(first)) for first in firsts]
    for first in firsts:
        await asyncio.wait_for(first.wait(), LONG)
    return tasks


async def check_elsewhere(
    client: Client, under_way: list[asyncio.Task[list[Any]]], until: Path
) -> None:
    """Call while the streams go on and until they have ended, all of them whole; no call fails."""
    for _ in range(10 * STREAMS):
        assert await client.call(COUNTS, {"items": 1}, timeout=LONG) == 0
        assert not any(task.done() for task in under_way)
    until.touch()  # noqa: ASYNC240
    while not all(task.done() for task in under_way):
        assert await client.call(COUNTS, {"items": 1}, timeout=LONG) == 0
    for task in under_way:
        assert await task == list(range(ITEMS))


def engines(client: Client) -> list[Record]:
    return [each for each in client.records() if each.kind == "engine"]


async def test_c35_sigterm_of_an_engine_within_a_node(tmp_path: Path) -> None:
    spec = NodeSpec(engines=[counting(replicas=2)], routers=[RouterSpec()], settings=SETTINGS)
    async with Cluster(spec) as cluster, cluster.client() as client:
        leaves, stays = engines(client)
        under_way = await begun(client, leaves.instance, tmp_path / "until")
        os.kill(leaves.address.pid, signal.SIGTERM)
        await check_elsewhere(client, under_way, tmp_path / "until")
        await wait_until(lambda: [each.instance for each in engines(client)] == [stays.instance])


async def test_c35_sigterm_of_a_node_with_callers_on_another(tmp_path: Path) -> None:
    """By way of a directory; between peers ``test_b52`` does the same."""
    where = str(tmp_path)
    served = [
        NodeSpec(
            name=name,
            engines=[counting()],
            listen=free_address(),
            directory=where,
            settings=SETTINGS,
        )
        for name in "ab"
    ]
    near = NodeSpec(name="c", directory=where, settings=SETTINGS)
    async with Cluster([near, *served]) as cluster, cluster.client() as client:
        async with cluster.client("a") as there:
            (leaves,) = engines(there)
        under_way = await begun(client, leaves.instance, tmp_path / "until")
        (info,) = [each for each in cluster.nodes if each.node == "a"]
        os.kill(info.address.pid, signal.SIGTERM)
        await check_elsewhere(client, under_way, tmp_path / "until")
        name, exit_ = await asyncio.wait_for(cluster.wait_ended(), LONG)
        assert (name, exit_.clean) == ("a", True)


async def test_c35_requesters_of_dynamos_kind_are_served_in_the_grace(tmp_path: Path) -> None:
    """They go by what they have read in the directory, and know no word for an end in order."""
    echo = EngineSpec(ECHO, "tests.e2e.bus_engines:echo", capacity=64)
    settings = replace(SETTINGS, drain_grace=GRACE)
    spec = NodeSpec(
        engines=[echo], listen="127.0.0.1:0", directory=str(tmp_path), settings=settings
    )
    folder = instances_folder(str(tmp_path))
    async with Cluster(spec) as cluster, cluster.client() as client:
        path = routing_path(engines(client)[0])
        await wait_until(lambda: os.path.isdir(folder) and os.listdir(folder))
        async with requester(cluster.nodes[0].listen) as dynamo:
            told, served = time.monotonic(), 0
            os.kill(cluster.nodes[0].address.pid, signal.SIGTERM)
            await wait_until(lambda: not os.listdir(folder), what="the record is withdrawn")
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                # Until it is refused, or its ingress has ended.
                while not (asked := await dynamo.ask(path, served)).reply:
                    assert (await asked.answer()).data == [served]
                    served += 1
            assert served > STREAMS
            assert time.monotonic() - told > GRACE
        await asyncio.wait_for(cluster.wait_ended(), LONG)
