"""Two-way streams: round trips a second of an echo.

``bidi.w1`` has one item under way, ``bidi.w64`` has 64. The stream is open and has echoed one item
before the clock starts.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from perf.figures import Sample
from perf.plan import PerfError, Plan
from perf.road import engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.bidi.converse"
ITEMS = 1_000
#: Items under way: rounds that count, after one that does not.
ROUNDS = {1: 4, 64: 8}


async def run(plan: Plan) -> list[Sample]:
    """Median rate of the rounds at each window."""
    items = plan.count(ITEMS, least=10)
    samples = []
    async with launched(plan, [engine(plan, ENDPOINT, "EchoItems")]) as client:
        for window, rounds in ROUNDS.items():
            await _echo(client, window, items)
            rates = [await _echo(client, window, items) for _ in range(plan.count(rounds))]
            samples.append(
                Sample("bidi", f"bidi.w{window}", "rt_s", "rt/s", statistics.median(rates))
            )
    return samples


def _item(index: int) -> dict[str, Any]:
    return {"token_ids": [index], "text": "tok"}


async def _echo(client: Client, window: int, items: int) -> float:
    """Round trips a second over one stream of ``items`` items."""
    async with client.open(ENDPOINT) as chat:
        await chat.send(_item(-1))
        await chat.recv()
        start = time.perf_counter()
        ahead = min(window, items)
        for index in range(ahead):
            await chat.send(_item(index))
        for index in range(items):
            reply = await chat.recv()
            if reply != _item(index):
                raise PerfError(f"item {index} came back as {reply!r}")
            if index + ahead < items:
                await chat.send(_item(index + ahead))
        rate = items / (time.perf_counter() - start)
        await chat.end()
        async for extra in chat:
            raise PerfError(f"an item that nobody sent came back: {extra!r}")
    return rate
