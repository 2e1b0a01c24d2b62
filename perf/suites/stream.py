"""Token streams: small items a second over 1, 32 and 256 streams of 1000 items.

They are opened together and read flat out. A round is timed from the first open until the last
stream has ended, so the cost of opening is in the figure.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from perf.figures import Sample
from perf.plan import PerfError, Plan
from perf.road import engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.stream.generate"
ITEMS = 1_000
#: Streams at a time: rounds that warm up, rounds that count.
ROUNDS = {1: (5, 40), 32: (1, 7), 256: (1, 2)}


async def run(plan: Plan) -> list[Sample]:
    """Median rate of the rounds at each number of streams."""
    items = plan.count(ITEMS, least=10)
    samples = []
    async with launched(plan, [engine(plan, ENDPOINT, "Tokens")]) as client:
        for streams, (warm, rounds) in ROUNDS.items():
            for _ in range(plan.count(warm)):
                await _round(client, streams, items)
            rates = [await _round(client, streams, items) for _ in range(plan.count(rounds))]
            name = f"stream.c{streams}"
            samples.append(Sample("stream", name, "frames_s", "frames/s", statistics.median(rates)))
    return samples


async def _round(client: Client, streams: int, items: int) -> float:
    """Items a second over all streams."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(_read(client, items))
    return streams * items / (time.perf_counter() - start)


async def _read(client: Client, items: int) -> None:
    count = 0
    item: object = None
    async with client.stream(ENDPOINT, {"items": items}) as stream:
        async for item in stream:  # noqa: B007 (the last one is looked at below)
            count += 1
    if count != items or item != {"token_ids": [items - 1], "text": "tok"}:
        raise PerfError(f"a stream of {items} items gave {count}, the last {item!r}")
