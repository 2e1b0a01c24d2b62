"""Streams in the line before busy workers that have no use for those who are free: they keep their
places, hold up nobody, and are counted when they have waited in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import RoutedRequest, WorkerView
from actors.errors import ActorDead, AllBusy, NoWorkers
from actors.router.relay import Relay
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import policies
from tests.router.local_rig import GO, LocalRig, local_rig
from tests.waiting import DEADLINE, LONG, wait_until

OWN: dict[str, Any] = {"policy": "tests:idlest", "load": lambda target: policies.idlest}
BOTH = pytest.mark.parametrize("policy", [{}, OWN], ids=["mode", "own"])


@pytest.fixture(autouse=True)
def nobody_hangs() -> Iterator[None]:
    policies.GO.clear()
    policies.SHOWN.clear()
    yield
    policies.GO.set()


@asynccontextmanager
async def avoiding(here: LocalRig, clock: Clock) -> AsyncIterator[asyncio.Task[Any]]:
    """One worker is held; the other is free, and has failed the stream that waits."""

    async def stream() -> list[Any]:
        options: dict[str, Any] = {"first_item_timeout": 5 * LONG, "migration_limit": 1}
        async with here.client.stream(GO, {"token_ids": [1]}, **options) as items:
            return [item async for item in items]

    task = asyncio.ensure_future(stream())
    streams = here.runtime.home.streams
    await wait_until(lambda: len(here.order) == 2 and all(each.peer for each in streams.values()))
    clock.turn(5 * LONG)
    await wait_until(lambda: here.waiting == 1 and sorted(here.loads) == [0, 1])
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@BOTH
async def test_one_that_nobody_free_is_for_holds_up_nobody(
    tmp_path: Path, policy: dict[str, Any], clock: Clock
) -> None:
    router = {"queue": 100, "queue_timeout": 60.0} | policy
    async with local_rig(tmp_path, 2, capacity=1, router=router) as here:
        (held,) = await here.held(1)
        async with avoiding(here, clock) as waits:
            (relay,) = here.router._plane.relays.values()
            for number in range(3):  # one after the other, and while the one waits
                assert await here.call("quick", timeout=DEADLINE) in (0, 1)
                await wait_until(lambda: sum(here.loads) == 1)
                assert not relay.over, number
            quick = [here.call("quick", timeout=DEADLINE) for _ in range(5)]
            assert len(await asyncio.gather(*quick)) == 5
            assert not relay.over  # the same one: it has kept its place, and its time
            here.gate.set()
            assert await held in (0, 1)
            assert await waits in ([0], [1])


@BOTH
async def test_those_behind_one_that_nobody_free_is_for_go_on(
    tmp_path: Path, policy: dict[str, Any], clock: Clock
) -> None:
    router = {"queue": 100, "queue_timeout": 60.0} | policy
    async with local_rig(tmp_path, 2, capacity=1, router=router) as here:
        await here.held(1)
        async with avoiding(here, clock):
            second = here.call("second")
            await wait_until(lambda: here.loads == [1, 1])
            behind = [here.call("quick", timeout=DEADLINE) for _ in range(5)]
            await wait_until(lambda: here.waiting == 6)
            second.cancel()  # whoever is free now is for those behind only
            assert len(await asyncio.gather(*behind)) == 5
            assert here.waiting == 1


async def test_one_whose_home_died_ends_no_choices_for_others(tmp_path: Path) -> None:
    router = {"queue": 100, "queue_timeout": 60.0} | OWN
    async with local_rig(tmp_path, 1, capacity=1, router=router) as here:
        (held,) = await here.held(1)
        waits = [here.call("quick") for _ in range(4)]
        await wait_until(lambda: here.waiting == 4)
        plane, begin = here.router._plane, here.router._plane.begin

        def dead(relay: Relay) -> None:
            plane.begin = begin  # type: ignore[method-assign]
            raise ActorDead("the caller died")

        plane.begin = dead  # type: ignore[method-assign]
        here.gate.set()
        await held
        await wait_until(lambda: not here.waiting)
        found = await asyncio.gather(*waits, return_exceptions=True)
        assert sum(isinstance(each, ActorDead) for each in found) <= 1
        plane.begin = begin  # type: ignore[method-assign]
        assert await here.call("quick", timeout=DEADLINE) == 0


async def test_one_that_is_cancelled_while_it_is_chosen_for_lets_the_next_go(
    tmp_path: Path,
) -> None:
    router = {"queue": 100, "queue_timeout": 60.0, "policy": "tests:told"}
    router["load"] = lambda target: policies.as_told
    async with local_rig(tmp_path, 1, capacity=1, router=router) as here:
        (held,) = await here.held(1)
        hangs = here.call("hangs", metadata={"do": "hang"}, priority=1)
        await wait_until(lambda: here.waiting == 1)
        after = here.call("quick")
        await wait_until(lambda: here.waiting == 2)
        here.gate.set()
        await held
        queue = here.router._choosing.queue
        assert queue is not None
        await wait_until(lambda: queue.choosing(GO))
        assert here.waiting == 2
        hangs.cancel()
        await wait_until(lambda: not queue.choosing(GO) or here.waiting == 1)
        policies.GO.set()
        assert await after == 0
        assert here.order == ["held 0", "quick"]


async def test_who_has_waited_in_vain_is_counted(tmp_path: Path, clock: Clock) -> None:
    router = {"queue": 2, "queue_timeout": LONG}
    async with local_rig(tmp_path, 1, capacity=1, router=router) as here:
        counters = here.router.counters
        await here.held(1)
        (waits,) = await here.held(1)
        clock.turn(LONG)
        with pytest.raises(AllBusy, match="queue_timeout"):
            await waits
        assert (counters.refused, counters.errors) == (1, {"all_busy": 1})
        two = [here.call("low", priority=-1) for _ in range(2)]
        await wait_until(lambda: here.waiting == 2)
        third = here.call()
        await wait_until(lambda: counters.refused == 2)  # one of those of less priority
        clock.turn(LONG)
        with pytest.raises(AllBusy, match="queue_timeout"):
            await third
        failed = await asyncio.gather(*two, return_exceptions=True)
        assert {type(each) for each in failed} == {AllBusy}
        assert (counters.refused, counters.errors) == (4, {"all_busy": 4})


async def test_who_waits_in_vain_while_somebody_is_free_is_told_so(
    tmp_path: Path, clock: Clock
) -> None:
    async with local_rig(tmp_path, 2, capacity=1, router={"queue": 2}) as here:
        await here.held(1)
        async with avoiding(here, clock):
            (relay,) = here.router._plane.relays.values()
            assert "(1 free for others;" in relay.expired().message


def slow(workers: Sequence[WorkerView], request: RoutedRequest) -> WorkerView:
    """Of those with the metadata, waits until it is told."""
    policies.SHOWN.append((list(workers), request))
    if request.metadata:
        policies.GO.wait(30)
    return workers[0]


async def test_cancelled_requests_are_not_put_to_the_function(tmp_path: Path) -> None:
    router = {"policy": "tests:slow", "load": lambda target: slow}
    async with local_rig(tmp_path, 1, capacity=100, router=router) as here:
        user = here.router._choosing._user
        assert user is not None
        here.gate.set()
        tasks = [here.call("no", metadata={"do": str(each)}) for each in range(20)]
        await wait_until(lambda: len(policies.SHOWN) == 1 and len(user._waiting) == 19)
        for task in tasks:
            task.cancel()
        await wait_until(lambda: len(user._waiting) == 0 and user._waiting.bytes == 0)
        after = here.call("quick")
        await wait_until(lambda: len(user._waiting) == 1)
        policies.GO.set()
        assert await after == 0
        assert len(policies.SHOWN) == 2


@BOTH
async def test_nobody_waits_for_an_endpoint_whose_last_worker_has_left(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    router = {"queue": 100, "queue_timeout": 60.0} | policy
    async with local_rig(tmp_path, 2, capacity=1, router=router) as here:
        records = list(here.told.records)
        held = await here.held(2)
        waits = [here.call("waits", timeout=100.0) for _ in range(3)]
        await wait_until(lambda: here.waiting == 3)
        here.told.remove(records[0])
        await here.settled()
        assert here.waiting == 3  # for the other one
        here.told.remove(records[1])
        here.told.add(records[1])  # in one turn: it was not away
        await here.settled()
        assert here.waiting == 3
        here.told.remove(records[1])
        async with asyncio.timeout(DEADLINE):
            failed = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(each) for each in failed} == {NoWorkers}, failed
        assert all(str(each) == str(failed[0]) for each in failed)
        with pytest.raises(NoWorkers) as caught:
            await here.call("quick")
        assert str(caught.value) == str(failed[0])  # as who comes now is told
        assert here.router.counters.errors == {"no_workers": 4}
        for each in records:
            here.told.add(each)
        here.gate.set()
        assert sorted(await asyncio.gather(*held)) == [0, 1]
        assert sorted(here.order) == ["held 0", "held 1"]  # each by a worker of its own


async def test_nor_does_who_waited_for_the_policy_when_the_last_one_left(tmp_path: Path) -> None:
    router: dict[str, Any] = {"queue": 100, "queue_timeout": 60.0, "policy": "tests:slow"}
    router["load"] = lambda target: slow
    async with local_rig(tmp_path, 1, capacity=9, router=router) as here:
        user = here.router._choosing._user
        assert user is not None
        calls = [here.call("go", metadata={"do": "hang"}) for _ in range(3)]
        await wait_until(lambda: len(policies.SHOWN) == 1 and len(user._waiting) == 2)
        record = here.told.records[0]
        here.told.remove(record)
        policies.GO.set()
        async with asyncio.timeout(DEADLINE):
            failed = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in failed} == {NoWorkers}, failed
        here.told.add(record)
