"""Cancellation: from the client's call until the waiting handler has woken and knows.

The handler awaits ``ctx.wait_stopped()`` and has yielded nothing; no polling, so the figure is its
wake-up, which comes no earlier than the moment at which ``ctx.stopped`` turns true. Both ends read
CLOCK_MONOTONIC. ``*.stop``: the client calls ``stop()``. ``*.drop``: it leaves ``async with``,
which kills. ``cancel.idle``: nothing else runs. ``cancel.c32`` and ``cancel.c256``: beside that
many streams which the same engine yields and the same client reads flat out; ``frames_s`` says how
fast these ran meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan
from perf.road import LIMIT, engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.cancel.generate"
#: Name: busy streams, cancels that count of each kind.
LEVELS = {"idle": (0, 300), "c32": (32, 200), "c256": (256, 200)}
#: A level that takes longer than this stops early, with what it has; seconds.
BUDGET = 40.0
_LEAST = 20


class Flood:
    """Streams read flat out; counts what arrives and says when every one of them runs."""

    def __init__(self, streams: int) -> None:
        self.items = 0
        self.silent = streams
        self.running = asyncio.Event()
        if not streams:
            self.running.set()

    async def read(self, client: Client) -> None:
        """Read one stream until this task is cancelled."""
        first = True
        async with client.stream(ENDPOINT, {"do": "flood"}) as stream:
            async for _ in stream:
                self.items += 1
                if first:
                    first = False
                    self.silent -= 1
                    if not self.silent:
                        self.running.set()


@asynccontextmanager
async def flooded(client: Client, streams: int) -> AsyncIterator[Flood]:
    """``streams`` streams at full speed for as long as the block lasts."""
    flood = Flood(streams)
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(flood.read(client)) for _ in range(streams)]
        async with asyncio.timeout(LIMIT):
            await flood.running.wait()
        yield flood
        for reader in readers:
            reader.cancel()


async def run(plan: Plan) -> list[Sample]:
    """Latencies of both kinds at each level, taken in turn under the same load."""
    samples: list[Sample] = []
    numbers = itertools.count()
    async with launched(plan, [engine(plan, ENDPOINT, "Silent")]) as client:
        for level, (streams, cancels) in LEVELS.items():
            async with flooded(client, streams) as flood:
                items, start = flood.items, time.perf_counter()
                taken = await _cancel(client, numbers, plan.count(cancels, least=3))
                rate = (flood.items - items) / (time.perf_counter() - start)
            for how, times in taken.items():
                workload = f"cancel.{level}.{how}"
                samples.append(
                    Sample("cancel", workload, "p50_us", "us", percentile(times, 0.5) / 1e3)
                )
                samples.append(
                    Sample("cancel", workload, "p99_us", "us", percentile(times, 0.99) / 1e3)
                )
            if streams:
                samples.append(Sample("cancel", f"cancel.{level}", "frames_s", "frames/s", rate))
    return samples


async def _cancel(
    client: Client, numbers: itertools.count[int], cancels: int
) -> dict[str, list[float]]:
    """Nanoseconds of ``cancels`` cancels of each kind, after a tenth as many to warm up."""
    taken: dict[str, list[float]] = {"stop": [], "drop": []}
    warm = max(2, cancels // 10)
    end = time.monotonic() + BUDGET
    for turn in range(warm + cancels):
        if time.monotonic() > end and turn >= warm + min(_LEAST, cancels):
            break
        for how, times in taken.items():
            latency = await (_stop if how == "stop" else _drop)(client, next(numbers))
            if turn >= warm:
                times.append(float(latency))
    return taken


async def _seen(client: Client, number: int) -> int:
    seen = await client.call(ENDPOINT, {"do": "seen", "id": number}, timeout=LIMIT)
    return int(seen)


async def _stop(client: Client, number: int) -> int:
    """Nanoseconds from ``stop()`` to the handler's wake-up, which its last item tells."""
    async with client.stream(ENDPOINT, {"do": "wait", "id": number}) as stream:
        await client.call(ENDPOINT, {"do": "ready", "id": number}, timeout=LIMIT)
        start = time.monotonic_ns()
        stream.stop()
        told = [int(item) async for item in stream]
    seen = await _seen(client, number)
    if told != ([seen] if getattr(client, "drains", True) else []):
        raise PerfError(f"a stopped stream gave {told} and not its last item {seen}")
    return seen - start


async def _drop(client: Client, number: int) -> int:
    """Nanoseconds from leaving ``async with`` to the handler's wake-up, asked for afterwards."""
    async with client.stream(ENDPOINT, {"do": "wait", "id": number}):
        await client.call(ENDPOINT, {"do": "ready", "id": number}, timeout=LIMIT)
        start = time.monotonic_ns()
    # The question goes 2 ms later, so that answering it does not hold up what is being measured.
    await asyncio.sleep(0.002)
    return await _seen(client, number) - start
