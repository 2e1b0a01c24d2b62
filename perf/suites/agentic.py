"""Long prompts, short answers: 512 requests in flight over four engines.

``agentic.list``: the request holds 30,000 to 60,000 token ids as a plain list; 100 small items come
back. ``agentic.array``: the same ids as an int32 array. Sizes and ids come from a fixed seed. As
soon as a stream has ended, the next request goes out in its place; ``req_s`` is the rate over the
requests that count, ``p50_ms`` and ``p99_ms`` the time from opening a stream to its end.

Dynamo's wheel has no arrays and its users send lists: there both names stand for the list.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan
from perf.road import engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.agentic.generate"
ENGINES = 4
IN_FLIGHT = 512
ITEMS = 100
#: Requests that end before the clock starts, and those that count.
WARM, COUNTED = 512, 1_024
#: Different prompts, each used again and again.
PROMPTS = 32
SHORTEST, LONGEST = 30_000, 60_000
_VOCABULARY = 128_000


def prompts(count: int) -> list[list[int]]:
    """As many lists of ids as asked for, the same ones every time."""
    chance = random.Random(4)
    sizes = [chance.randint(SHORTEST, LONGEST) for _ in range(count)]
    return [[int(chance.random() * _VOCABULARY) for _ in range(size)] for size in sizes]


async def run(plan: Plan) -> list[Sample]:
    """Rate and latencies of both kinds of request."""
    samples = []
    lists = prompts(plan.count(PROMPTS, least=2))
    served = engine(plan, ENDPOINT, "Agent", replicas=ENGINES)
    async with launched(plan, [served]) as client:
        found = await Crowd(client, plan, lists).measure()
        samples += _samples("agentic.list", *found)
        if not plan.dynamo:
            found = await Crowd(client, plan, _arrays(lists)).measure()
        samples += _samples("agentic.array", *found)
    return samples


def _arrays(lists: list[list[int]]) -> list[Any]:
    import numpy as np

    return [np.array(each, np.int32) for each in lists]


def _samples(workload: str, rate: float, times: list[float]) -> list[Sample]:
    return [
        Sample("agentic", workload, "req_s", "req/s", rate),
        Sample("agentic", workload, "p50_ms", "ms", percentile(times, 0.5) * 1e3),
        Sample("agentic", workload, "p99_ms", "ms", percentile(times, 0.99) * 1e3),
    ]


class Crowd:
    """Readers that keep a fixed number of requests in flight until enough have ended."""

    def __init__(self, client: Client, plan: Plan, prompts: list[Any]) -> None:
        self._client = client
        self._prompts = prompts
        self._readers = plan.count(IN_FLIGHT, least=8)
        self._warm = plan.count(WARM, least=8)
        self._counted = plan.count(COUNTED, least=16)
        self._next = 0
        self._ended: list[float] = []
        self._times: list[float] = []
        self._enough = asyncio.Event()

    async def measure(self) -> tuple[float, list[float]]:
        """Requests a second, and the seconds that each of them took."""
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(self._read()) for _ in range(self._readers)]
            await self._enough.wait()
            # The rate is that of a full house: nobody waits for the last ones to leave.
            for reader in readers:
                reader.cancel()
        first, last = self._ended[self._warm - 1], self._ended[self._warm + self._counted - 1]
        times = self._times[self._warm : self._warm + self._counted]
        return self._counted / (last - first), times

    async def _read(self) -> None:
        while True:
            prompt = self._prompts[self._next % len(self._prompts)]
            self._next += 1
            start = time.perf_counter()
            await self._one(prompt)
            self._ended.append(time.perf_counter())
            self._times.append(self._ended[-1] - start)
            if len(self._ended) >= self._warm + self._counted:
                self._enough.set()

    async def _one(self, prompt: Any) -> None:
        count = 0
        item: Any = None
        async with self._client.stream(ENDPOINT, {"token_ids": prompt, "items": ITEMS}) as stream:
            async for item in stream:  # noqa: B007 (the last one is looked at below)
                count += 1
        wanted = [len(prompt), int(prompt[-1])]
        if count != ITEMS or item["token_ids"] != [ITEMS - 1] or item["prompt"] != wanted:
            raise PerfError(f"a prompt {wanted} was answered with {count} items, the last {item!r}")
