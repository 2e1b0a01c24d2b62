"""What a router does when its workers are busy: limits, refusals, and streams that wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors import RoutedRequest, WorkerView
from actors.errors import (
    AllBusy,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    NoWorkers,
    Overloaded,
    SpecError,
    Unsupported,
    WorkerUnavailable,
)
from actors.messages import BusyAt, Workers
from actors.router.policy import MODES
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.local_rig import GO, local_rig
from tests.waiting import DEADLINE, LONG, TICK, wait_until

QUEUE = {"queue": 100, "queue_timeout": 30.0}


async def test_conformance_06_one_that_is_full_refuses_and_is_left_alone_for_a_moment(
    tmp_path: Path,
) -> None:
    async with local_rig(tmp_path, 1, capacity=1, overload_lease=LONG) as here:
        (held,) = await here.held(1)
        with pytest.raises(Overloaded, match="all 1 places") as caught:
            await here.call()
        assert not isinstance(caught.value, AllBusy)  # the engine's word, who was the only one
        with pytest.raises(AllBusy, match=r"its one worker is busy \(1 refused a stream for"):
            await here.call()
        here.gate.set()
        assert await held == 0
        # Its report ends the lease: nobody waits until it is over.
        await wait_until(lambda: here.members[0].state == "free")
        assert await here.call("quick") == 0
        assert not here.pool.faults


async def test_a_caller_who_tries_again_soon_is_served(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1, capacity=1) as here:
        here.gate.set()
        served = refused = 0
        while served < 20:
            results = await asyncio.gather(
                *(here.call("quick") for _ in range(3)), return_exceptions=True
            )
            assert 0 in results  # somebody is served in each round
            served += results.count(0)
            refused += 3 - results.count(0)
            await wait_until(lambda: here.members[0].state == "free")


async def test_busy_limits_change_while_it_runs_and_at_once(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, capacity=8, router={"busy_streams": 2}) as here:
        await here.held(4)
        with pytest.raises(
            AllBusy, match=r"all 2 workers are busy \(2 at the limit .busy_streams=2"
        ):
            await here.call()
        assert here.router.carries()["busy"] == {"streams": 2, "fraction": None}
        assert await here.ref.ask(BusyAt(3, 0.5)) == [2, None]
        await here.held(2)
        with pytest.raises(AllBusy):
            await here.call()
        assert await here.ref.ask(BusyAt(None, 0.5)) == [3, 0.5]
        await here.held(2)
        with pytest.raises(AllBusy, match=r"busy_fraction=0\.5"):
            await here.call()
        rubbish: Any = ("x" * 10_000, 1.5, True, 1 << 80)
        for wrong in (BusyAt(0), *map(BusyAt, rubbish)):
            with pytest.raises(
                SpecError, match=r"busy_streams: .*expected a whole number"
            ) as caught:
                await here.ref.ask(wrong)
            assert len(str(caught.value)) < 400
        for wrong in (BusyAt(None, 0.0), BusyAt(fraction=-1.0), BusyAt(None, math.nan)):
            with pytest.raises(SpecError, match=r"busy_fraction: .*expected a number above 0"):
                await here.ref.ask(wrong)
        assert await here.ref.ask(BusyAt()) == [None, 0.5]
        assert await here.call("quick") in (0, 1)
        here.gate.set()
        await here.idle()


async def test_b122_a_busy_worker_is_eligible_again_when_it_is_idle(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1, router={"busy_streams": 2}) as here:
        held = await here.held(2)
        assert here.members[0].state == "busy"
        here.gate.set()
        await asyncio.gather(*held)
        await wait_until(lambda: here.members[0].state == "free")
        assert await here.call("quick") == 0


@pytest.mark.parametrize("mode", MODES)
async def test_b117_nobody_all_busy_and_one_by_every_mode(tmp_path: Path, mode: str) -> None:
    async with local_rig(tmp_path, 1, router={"policy": mode}) as here:
        record = here.told.records[0]
        route = {"instance": record.instance} if mode == "direct" else {}
        assert await here.call("quick", **route) == 0
        if mode == "direct":
            with pytest.raises(Unsupported, match="instance="):
                await here.call("quick")
        else:
            await here.held(1)
            await here.ref.ask(BusyAt(1))
            with pytest.raises(AllBusy):
                await here.call("quick")
        here.told.remove(record)
        with pytest.raises(NoWorkers):  # before any limit of its own is over
            await here.call("quick", timeout=DEADLINE, **route)
        here.told.add(record)


async def test_who_serves_an_endpoint_and_what_each_carries_can_be_asked(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, capacity=1, router={"busy_streams": 1}) as here:
        await here.held(1)
        found = await here.ref.ask(Workers(GO))
        assert {each["instance"] for each in found} == set(here.pool.members)
        assert sorted((each["state"], each["load"], each["capacity"]) for each in found) == [
            ("busy", 1, 1),
            ("free", 0, 1),
        ]
        assert {each["where"] for each in found} == {""}
        assert await here.ref.ask(Workers("t.none.go")) == []
        free = next(each["instance"] for each in found if each["state"] == "free")
        busy = next(each["instance"] for each in found if each["state"] == "busy")
        assert await here.call("quick", instance=free) in (0, 1)
        with pytest.raises(Overloaded):
            await here.call("quick", instance=busy)  # its own word, for the limit is not asked
        with pytest.raises(WorkerUnavailable, match=f"no worker 12345 .* there are: .*{busy}"):
            await here.call("quick", instance=12345)


# The queue.


async def test_a_burst_waits_and_is_served(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, capacity=2, router=QUEUE) as here:
        tasks = await here.held(20)
        assert here.loads == [2, 2]
        assert here.waiting == 16
        assert here.router.carries()["queued"] == 16
        here.gate.set()
        answers = await asyncio.gather(*tasks)
        assert set(answers) == {0, 1}
        assert sorted(here.order) == sorted(f"held {each}" for each in range(20))
        assert here.router.counters.refused == 0


async def test_priorities_go_first_and_the_least_loses_its_place(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1, capacity=1, router=QUEUE | {"queue": 4}) as here:
        await here.held(1)
        tasks = {}
        for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", -1)]:
            tasks[name] = here.call(name, priority=priority)
            await wait_until(lambda: here.waiting == len(tasks))
        with pytest.raises(AllBusy, match="4 streams wait at the router already"):
            await here.call("late", priority=-1)
        vip = here.call("vip", priority=9)
        with pytest.raises(AllBusy, match="4 streams wait at the router already"):
            await tasks.pop("d")
        here.gate.set()
        await asyncio.gather(vip, *tasks.values())
        assert here.order == ["held 0", "vip", "b", "a", "c"]


@pytest.mark.parametrize("how", ["stop", "kill", "drop"])
async def test_a_stream_that_waits_can_be_cancelled(tmp_path: Path, how: str) -> None:
    async with local_rig(tmp_path, 1, capacity=1, router=QUEUE) as here:
        await here.held(1)
        async with here.client.stream(GO, {"b": bytes(64 << 10)}) as items:
            first = asyncio.ensure_future(anext(items))
            await wait_until(lambda: here.waiting == 1)
            if how == "stop":
                items.stop()
                with pytest.raises(StopAsyncIteration):
                    await first
            elif how == "kill":
                items.kill()
                with pytest.raises(Cancelled):
                    await first
            else:
                first.cancel()
        await wait_until(lambda: here.waiting == 0)
        await wait_until(lambda: not here.runtime.memory.statistics().slots)
        here.gate.set()
        assert await here.call("after") == 0
        assert here.order == ["held 0", "after"]


async def test_who_has_waited_too_long_is_told_and_the_wait_counts(
    tmp_path: Path, clock: Clock
) -> None:
    router = {"queue": 10, "queue_timeout": 5 * LONG}
    async with local_rig(tmp_path, 1, capacity=1, router=router) as here:
        await here.held(1)
        (waits,) = await here.held(1)
        clock.turn(5 * LONG)
        with pytest.raises(AllBusy, match=r"waited 3\d\d s for a worker \(queue_timeout\)"):
            await waits
        (waits,) = await here.held(1, timeout=LONG)
        clock.turn(LONG)
        with pytest.raises(DeadlineExceeded):
            await waits
        await wait_until(lambda: here.waiting == 0)
        (waits,) = await here.held(1, timeout=LONG)
        here.gate.set()
        await waits


async def test_less_is_left_until_the_deadline_of_one_that_has_waited(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1, capacity=1, router=QUEUE) as here:
        first = here.call("first", timeout=None)
        await wait_until(lambda: sum(here.loads) == 1)
        await here.held(1, timeout=50.0)
        relay = next(iter(here.router._plane.relays.values()))
        await asyncio.sleep(TICK)
        here.gate.set()
        await first
        remaining = relay.resumed().remaining  # type: ignore[attr-defined]
        assert remaining <= 50.0 - TICK


async def test_who_waits_gets_a_worker_that_comes(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, capacity=1, router=QUEUE) as here:
        late = here.told.records[1]
        here.told.remove(late)
        await wait_until(lambda: len(here.pool.members) == 1)
        first, second = here.call("one"), here.call("two")
        await wait_until(lambda: here.waiting == 1)
        here.told.add(late)
        await wait_until(lambda: here.order == ["one", "two"])
        here.gate.set()
        assert sorted([await first, await second]) == [0, 1]


async def test_who_came_first_is_not_overtaken(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1, capacity=1, router=QUEUE) as here:
        tasks = await here.held(3)
        here.gate.set()
        tasks += [here.call(f"held {each}") for each in range(3, 30)]
        await asyncio.gather(*tasks)
        assert here.order == [f"held {each}" for each in range(30)]


def first(workers: Sequence[WorkerView], request: RoutedRequest) -> WorkerView:
    """A policy: the first one, whatever it carries."""
    return min(workers)


async def test_streams_wait_for_a_policy_of_the_user_s_own_too(tmp_path: Path) -> None:
    router = QUEUE | {"policy": "tests:first", "load": lambda target: first}
    async with local_rig(tmp_path, 2, capacity=2, router=router) as here:
        tasks = await here.held(12)
        await wait_until(lambda: here.loads == [2, 2] and here.waiting == 8)
        waits = here.call("never", timeout=2 * TICK)
        with pytest.raises(DeadlineExceeded):
            await waits
        here.gate.set()
        await asyncio.gather(*tasks)
        assert len(here.order) == 12


# Faults.


async def test_b119_what_a_handler_raises_inhibits_nobody(tmp_path: Path) -> None:
    async with local_rig(tmp_path) as here:
        here.gate.set()
        for _ in range(10):
            with pytest.raises(EngineError, match="no such luck"):
                await here.call("raise")
        assert {each.state for each in here.members} == {"free"}
        assert here.pool.calm


async def test_a_worker_that_is_gone_and_one_that_never_was(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1) as here:
        record = here.told.records[0]
        here.told.remove(record)
        with pytest.raises(NoWorkers, match="no worker of endpoint"):
            await here.call(instance=record.instance)
        here.told.add(record)
