"""Unary calls: ``unary.c1`` one after the other, ``unary.c64`` from 64 loops at a time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan
from perf.road import LIMIT, engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.unary.generate"
REQUEST = {"token_ids": list(range(128)), "text": "x" * 1024}
LOOPS = 64


async def run(plan: Plan) -> list[Sample]:
    """Latency of sequential calls, then the rate of 64 loops; warm-up calls are not counted."""
    async with launched(plan, [engine(plan, ENDPOINT, "answer")]) as client:
        await _sequential(client, plan.count(300))
        times = await _sequential(client, plan.count(3_000, least=10))
        await _together(client, plan.count(20))
        calls = plan.count(200, least=2)
        rate = LOOPS * calls / await _together(client, calls)
    return [
        Sample("unary", "unary.c1", "p50_us", "us", percentile(times, 0.5) / 1e3),
        Sample("unary", "unary.c1", "p99_us", "us", percentile(times, 0.99) / 1e3),
        Sample("unary", "unary.c64", "req_s", "req/s", rate),
    ]


async def _sequential(client: Client, calls: int) -> list[float]:
    """Nanoseconds of each call."""
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        reply = await client.call(ENDPOINT, REQUEST, timeout=LIMIT)
        times.append(float(time.perf_counter_ns() - start))
        if reply["token_ids"] != [128]:
            raise PerfError(f"a unary call was answered with {reply!r}")
    return times


async def _together(client: Client, calls: int) -> float:
    """Seconds until 64 loops have made ``calls`` calls each."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(LOOPS):
            group.create_task(_sequential(client, calls))
    return time.perf_counter() - start
