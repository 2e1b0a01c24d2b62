"""Clients that come and go, and several at once: nothing stays of the ones, no place is misjudged
for the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from actors import Cluster, EngineSpec, NodeSpec, RouterSpec
from tests.waiting import wait_until


async def echo(request: Any) -> Any:
    """The request."""
    return request


async def nap(request: Any) -> int:
    """The pid of the worker that took it, after a moment."""
    await asyncio.sleep(0.01)
    return os.getpid()


async def numbers(request: Any) -> AsyncIterator[int]:
    """A few numbers."""
    for number in range(3):
        yield number


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_no_descriptor_stays_of_clients_that_closed() -> None:
    spec = NodeSpec(engines=[EngineSpec("many.echo.x", echo), EngineSpec("many.some.x", numbers)])
    async with Cluster(spec) as cluster:
        pids = [child.pid for child in cluster.nodes[0].children]

        async def use(times: int) -> None:
            for _ in range(times):
                async with cluster.client() as client:
                    assert await client.call("many.echo.x", 1) == 1
                    async with client.stream("many.some.x") as items:
                        assert [item async for item in items] == [0, 1, 2]

        await use(3)
        before = [descriptors(pid) for pid in pids]
        await use(40)
        # Also of clients that never sent a word straight to the engine, only through the router.
        await wait_until(
            lambda: all(descriptors(pid) <= most for pid, most in zip(pids, before, strict=True)),
            what=f"descriptors of {pids} as before: {before}",
        )


@pytest.mark.parametrize("place", ["process", "here"])
async def test_two_calls_at_once_find_two_idle_workers(place: Literal["process", "here"]) -> None:
    spec = NodeSpec(
        engines=[EngineSpec("many.nap.x", nap, replicas=2, capacity=1, queue=0)],
        routers=[RouterSpec(place=place)],
    )
    async with Cluster(spec) as cluster, cluster.client() as client:
        for _ in range(60):
            # Both Ends came home before: neither worker's report may hide the other's.
            pair = await asyncio.gather(*(client.call("many.nap.x") for _ in range(2)))
            assert len(set(pair)) == 2
