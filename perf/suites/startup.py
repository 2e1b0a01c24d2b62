"""Start-up of a node with a router and four engines: ``startup.4``.

The engines have an endpoint each and are spread over the given cores. ``seconds``: from entering
``Cluster``, in a process that has imported what it needs, until all four engines have answered a
call; the second launch of the process counts, the first one fills the caches. ``idle_rss_mb``:
resident memory of the largest of the four processes after its first answer, before any frame; MB
are 1e6 bytes.
"""

from __future__ import annotations

import asyncio
import time

from perf.figures import Sample
from perf.plan import Plan
from perf.road import LIMIT, engine, launched

ENGINES = 4


async def run(plan: Plan) -> list[Sample]:
    """One launch to warm up, one that counts."""
    await _launch(plan)
    seconds, memory = await _launch(plan)
    return [
        Sample("startup", "startup.4", "seconds", "s", seconds),
        Sample("startup", "startup.4", "idle_rss_mb", "MB", memory),
    ]


async def _launch(plan: Plan) -> tuple[float, float]:
    """Seconds until four engines have answered, and the MB of the largest."""
    import psutil

    cores = [plan.cores[(index + 1) % len(plan.cores)] for index in range(ENGINES)]
    endpoints = [f"perf.startup{index}.identify" for index in range(ENGINES)]
    specs = [
        engine(plan, endpoint, "identify", core=core)
        for endpoint, core in zip(endpoints, cores, strict=True)
    ]
    start = time.perf_counter()
    async with launched(plan, specs) as client:
        calls = (client.call(endpoint, {}, timeout=LIMIT) for endpoint in endpoints)
        pids = await asyncio.gather(*calls)
        seconds = time.perf_counter() - start
        largest = max(psutil.Process(pid).memory_info().rss for pid in pids)
    return seconds, largest / 1e6
