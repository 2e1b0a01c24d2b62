"""Clients come, call and go: ``python -m tests.e2e.reconnects [5000]`` shows what that leaves with
the router and the engine. The suite does the same with fewer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import NamedTuple

from actors import Client, Cluster, EngineSpec, NodeSpec
from tests.e2e.standing import inspect
from tests.waiting import DEADLINE, wait_until

ECHO = "t.echo.back"
ENGINE = EngineSpec(ECHO, "tests.e2e.bus_engines:echo", name="echo")
#: Descriptors that a hub may have more: it keeps some for a while.
SPARE = 8
HUBS = ("router", "echo", "node")


class Hub(NamedTuple):
    """What a process holds: bytes of memory, descriptors, peers on the bus."""

    rss: int
    descriptors: int
    peers: int


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def look(cluster: Cluster, client: Client) -> dict[str, Hub]:
    found = {}
    for name in HUBS:
        pid = client.ref(name).address.pid
        carried = await inspect(client.ref(name))
        found[name] = Hub(rss(pid), descriptors(pid), carried["counters"]["bus.peers"])
    return found


async def come_and_go(cluster: Cluster, count: int) -> None:
    for number in range(count):
        async with cluster.client() as client:
            assert await client.call(ECHO, number, timeout=DEADLINE) == number


async def reconnect(cluster: Cluster, count: int) -> tuple[dict[str, Hub], dict[str, Hub]]:
    """What the hubs hold before and after ``count`` clients."""
    await come_and_go(cluster, 50)
    async with cluster.client() as watcher:
        await watcher.call(ECHO, 0, timeout=DEADLINE)
        await look(cluster, watcher)  # looking makes it a peer of each
        before = await look(cluster, watcher)
        await come_and_go(cluster, count)
        after: dict[str, Hub] = {}

        async def base() -> bool:
            after.update(await look(cluster, watcher))
            return all(
                after[name].peers <= before[name].peers
                and after[name].descriptors <= before[name].descriptors + SPARE
                for name in HUBS
            )

        await wait_until(base, what="peer tables and descriptors are at their base size")
        return before, after


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


async def main(count: int) -> None:
    async with Cluster(NodeSpec(engines=[ENGINE])) as cluster:
        before, after = await reconnect(cluster, count)
    for name in HUBS:
        grown = (after[name].rss - before[name].rss) / 2**20
        say(f"{name}: {before[name]} -> {after[name]}, {grown:+.1f} MiB after {count} clients")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
