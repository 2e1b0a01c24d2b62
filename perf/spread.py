"""How evenly streams are spread over engines: ``routing.spread.MODE.rROUTERS``.

128 calls are under way all the time, over four engines that only wait: nine of ten for 20 ms, the
tenth for 2 s. They go through 1, 2 or 4 routers in turn. Each answer says which engine ran it,
and from when to when by the clock of the machine, so the streams in flight at every engine are
known exactly at every moment afterwards. ``imbalance``: the largest number over the mean, averaged
over time. ``largest``: the largest number at any moment. ``over_one``: that, divided by the
``largest`` of one router.

Dynamo's router is a part of its client: there the routers are so many client processes.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from perf.figures import Sample
from perf.plan import PerfError, Plan
from perf.road import LIMIT, engine, launched

ENDPOINT = "perf.routing.wait"
MODES = ("least_loaded", "power_of_two_choices", "round_robin", "random")
ROUTERS = (1, 4, 2)
ENGINES = 4
IN_FLIGHT = 128
#: Seconds of most calls and of the others, and how many are others.
SHORT, LONG, LONG_SHARE = 0.02, 2.0, 0.1
#: Seconds before the window that counts, and of it.
WARM, WINDOW = 2.5, 3.0
#: Seconds that processes of Dynamo's client have to get ready.
_READY = 4.0

Call = Callable[[dict[str, Any]], Awaitable[Any]]


class Visit(NamedTuple):
    """One call at its engine; times are seconds of CLOCK_MONOTONIC."""

    engine: int
    begin: float
    end: float


class Window(NamedTuple):
    """When calls are made, and from when on they count; seconds of CLOCK_MONOTONIC.

    ``pace`` multiplies all times and the number of calls, for smoke tests.
    """

    start: float
    counts: float
    end: float
    pace: float

    def loops(self, parts: int = 1) -> int:
        """Calls that one of so many parts of the crowd has under way."""
        return max(1, round(IN_FLIGHT * self.pace / parts))


def window(plan: Plan, start: float) -> Window:
    """The window of one run; a smoke test has a short one."""
    pace = max(0.1, min(1.0, plan.scale))
    counts = start + WARM * pace
    return Window(start, counts, counts + WINDOW * pace, pace)


async def crowd(call: Call, loops: int, seed: int, when: Window) -> list[Visit]:
    """Calls from ``loops`` loops for as long as the window lasts; returns when the last ended."""
    visits: list[Visit] = []

    async def loop(number: int) -> None:
        chance = random.Random(seed * 1_000 + number)
        # One by one, or all short calls would come back together for as long as the run lasts.
        late = chance.random() * (when.counts - when.start) / 2
        await asyncio.sleep(when.start + late - time.monotonic())
        while time.monotonic() < when.end:
            seconds = LONG if chance.random() < LONG_SHARE else SHORT
            visits.append(Visit(*await call({"seconds": seconds * when.pace})))

    async with asyncio.TaskGroup() as group:
        for number in range(loops):
            group.create_task(loop(number))
    return visits


def judge(visits: Iterable[Visit], when: Window) -> tuple[float, int]:
    """Imbalance and the largest number in flight inside the window.

    Raises PerfError for visits of more engines than there are.
    """
    steps = sorted(
        step for each in visits for step in ((each.begin, 1, each), (each.end, -1, each))
    )
    now: Counter[int] = Counter()
    weighted, total, largest, last = 0.0, 0.0, 0, when.counts
    for moment, change, visit in steps:
        moment = min(max(moment, when.counts), when.end)
        carried = sum(now.values())
        if carried and moment > last:
            most = max(now.values())
            weighted += most * ENGINES / carried * (moment - last)
            total += moment - last
            largest = max(largest, most)
        last = moment
        now[visit.engine] += change
    if not total or len(now) > ENGINES:
        raise PerfError(f"{len(now)} engines were busy for {total:.3f} s of the window")
    return weighted / total, largest


async def spread(plan: Plan) -> list[Sample]:
    """All modes with all numbers of routers; a smoke test makes do with the first ones."""
    samples = []
    routers = ROUTERS[: plan.count(len(ROUTERS), least=2)]
    for mode in MODES[: plan.count(len(MODES))]:
        alone = 0
        for count in routers:
            run = _by_wheel if plan.dynamo else _by_callhome
            imbalance, largest = await run(plan, mode, count)
            name = f"routing.spread.{mode}.r{count}"
            samples += [
                Sample("routing", name, "imbalance", "x", imbalance),
                Sample("routing", name, "largest", "streams", float(largest)),
            ]
            if count == 1:
                alone = largest
            else:
                samples.append(Sample("routing", name, "over_one", "x", largest / alone))
    return samples


async def _by_callhome(plan: Plan, mode: str, routers: int) -> tuple[float, int]:
    served = engine(plan, ENDPOINT, "wait", replicas=ENGINES)
    async with launched(plan, [served], policy=mode, routers=routers) as client:

        async def call(request: dict[str, Any]) -> Any:
            return await client.call(ENDPOINT, request, timeout=LIMIT)

        await asyncio.gather(*[call({"seconds": 0.01}) for _ in range(8 * routers)])
        when = window(plan, time.monotonic() + 0.1)
        return judge(await crowd(call, when.loops(), 0, when), when)


async def _by_wheel(plan: Plan, mode: str, clients: int) -> tuple[float, int]:
    served = engine(plan, ENDPOINT, "wait", replicas=ENGINES)
    async with launched(plan, [served]):
        when = window(plan, time.monotonic() + _READY)
        told = [mode, str(when.loops(clients)), *map(str, when)]
        async with asyncio.TaskGroup() as group:
            crowds = [group.create_task(_process([*told, str(seed)])) for seed in range(clients)]
        return judge([visit for each in crowds for visit in each.result()], when)


async def _process(arguments: Sequence[str]) -> list[Visit]:
    """What a client process of Dynamo's has seen. Raises PerfError when it says nothing."""
    command = [sys.executable, "-m", "perf.peers.wheel_crowd", *arguments]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(LIMIT):
            output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    try:
        return [Visit(*each) for each in json.loads(output.splitlines()[-1])]
    except (IndexError, ValueError):
        raise PerfError(f"a client process ended with {child.returncode} and no answer") from None
