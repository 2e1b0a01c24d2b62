"""Clients that come and go, and several at once: nothing stays of the ones, no place is misjudged
for the others.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from actors import CallHomeError, Cluster, EngineSpec, NodeSpec, RouterSpec
from tests.waiting import LONG, wait_until


async def echo(request: Any) -> Any:
    """The request."""
    return request


async def meets(request: list[str]) -> int:
    """The pid of the worker that took it, once the other of its pair runs, too."""
    own, other = map(Path, request)
    own.touch()
    while not other.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.001)
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
        # A router looks at the signs of life of its workers from a while after it has met them.
        met = len(spec.engines)
        before = [descriptors(pid) + met for pid in pids]
        await use(40)
        # Also of clients that never sent a word straight to the engine, only through the router.
        await wait_until(
            lambda: all(descriptors(pid) <= most for pid, most in zip(pids, before, strict=True)),
            what=f"descriptors of {pids} as before: {before}",
        )


@pytest.mark.parametrize("place", ["process", "here"])
async def test_two_calls_at_once_find_two_idle_workers(
    place: Literal["process", "here"], tmp_path: Path
) -> None:
    spec = NodeSpec(
        engines=[EngineSpec("many.meets.x", meets, replicas=2, capacity=1, queue=0)],
        routers=[RouterSpec(place=place)],
    )
    async with Cluster(spec) as cluster, cluster.client() as client:
        for number in range(60):
            # Both Ends came home before: neither worker's report may hide the other's.
            names = [str(tmp_path / f"{number}.{which}") for which in "ab"]
            pairs = (names, names[::-1])
            calls = [client.call("many.meets.x", each, timeout=LONG) for each in pairs]
            assert len(set(await asyncio.gather(*calls))) == 2


async def tight(request: int) -> int:
    """Leaves its process ``request`` descriptors; all again for -1, as many as now for -2."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if request >= 0:
        soft = max(int(name) for name in os.listdir("/proc/self/fd")) + request
    elif request == -1:
        soft = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return os.getpid()


@pytest.mark.parametrize("left", [0, 1])
async def test_a_worker_without_descriptors_keeps_those_it_has(left: int) -> None:
    spec = NodeSpec(engines=[EngineSpec("many.tight.x", tight)])
    async with Cluster(spec) as cluster, cluster.client() as old:
        pid = await old.call("many.tight.x", -2)  # the worker has its socket towards this client
        assert await old.call("many.tight.x", left) == pid
        for _ in range(2):
            async with cluster.client() as new:
                with pytest.raises(CallHomeError):
                    await new.call("many.tight.x", -2, timeout=0.5)
        assert await old.call("many.tight.x", -1, timeout=LONG) == pid
        async with cluster.client() as new:
            assert await new.call("many.tight.x", -1, timeout=LONG) == pid
