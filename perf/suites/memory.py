"""What a stream costs while it is open: ``memory.512``.

``stream_kb``: how much the resident memory of router and ingress together grows over 512 open
streams, each of which has delivered one item, divided by their number; kB are 1e3 bytes. A few
streams are open before, so that what a process keeps once for all of them is not in the figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from perf.figures import Sample
from perf.launch import standing
from perf.plan import PerfError, Plan
from perf.road import LIMIT, engine

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.memory.hold"
STREAMS = 512
#: Streams opened first, to fill pools and import what a first stream needs.
WARM = 8


async def run(plan: Plan) -> list[Sample]:
    """One figure; raises PerfError where the router has no process of its own to be looked at."""
    if plan.router != "process":
        raise PerfError("the memory suite needs the router in a process of its own")
    async with standing(plan, [engine(plan, ENDPOINT, "Silent")]) as (client, pids):
        doors = [pid for name, pid in pids.items() if name in ("router", "ingress")]
        async with _held(client, WARM):
            before = _resident(doors)
        async with _held(client, STREAMS):
            grown = _resident(doors) - before
    cost = max(0.1, grown / (STREAMS - WARM) / 1e3)
    return [Sample("memory", f"memory.{STREAMS}", "stream_kb", "kB", cost)]


@asynccontextmanager
async def _held(client: Client, streams: int) -> AsyncIterator[None]:
    """``streams`` open streams for as long as the block lasts."""
    leave = asyncio.Event()
    up = asyncio.Semaphore(0)

    async def hold() -> None:
        async with client.stream(ENDPOINT, {"do": "hold"}, timeout=LIMIT) as stream:
            await anext(stream)
            up.release()
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(hold())
        async with asyncio.timeout(LIMIT):
            for _ in range(streams):
                await up.acquire()
        yield
        leave.set()


def _resident(pids: list[int]) -> int:
    """Resident bytes of these processes together."""
    import psutil

    return sum(psutil.Process(pid).memory_info().rss for pid in pids)
