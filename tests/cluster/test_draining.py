"""Whom a drain tells what, and for whom it waits: by stand-ins for the node and its actors."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cluster.draining import NodeDrain
from actors.discovery.registry import Registry
from actors.errors import Overloaded
from actors.messages import Record
from actors.notices import Drain, Drained
from tests.waiting import DEADLINE, LONG, wait_until
from transport.bus.address import Address

#: A limit that is over in no test.
FOR_EVER = 20 * LONG


def living(instance: int, kind: str = "engine") -> Record:
    """One whose process is there and runs: that of the test."""
    address = Address(f"{kind}-{instance}", instance, os.getpid(), 1)
    return Record(instance, address, kind, "t.one.go" if kind == "engine" else "")


class Node:
    """What a node has around its drain; nobody answers but by the test."""

    def __init__(self, *records: Record) -> None:
        self.records = records
        self.registry = Registry()
        for record in records:
            self.registry.add(record)
        #: What each was told, by its incarnation.
        self.told: dict[int, list[Drain]] = {each.instance: [] for each in records}
        #: Incarnations to which nothing gets through.
        self.unreachable: set[int] = set()
        #: Those that answer at once, and how many streams they cut.
        self.cuts: dict[int, int] = {}
        self.heard: dict[type, Callable[[int, Any], None]] = {}
        self.when_down: list[Callable[[Address, str], None]] = []
        self.settings = SimpleNamespace(drain_grace=FOR_EVER)
        self.asked: list[list[int]] = []

    def on(self, kind: type, hear: Callable[[int, Any], None]) -> None:
        self.heard[kind] = hear

    def send(self, to: Address, message: Any, *, control: bool) -> None:
        self.told[to.incarnation].append(message)
        if to.incarnation in self.unreachable:
            raise Overloaded("nothing more goes there")
        if to.incarnation in self.cuts:
            self.answer(to.incarnation, self.cuts[to.incarnation])

    async def sync(self, limit: float, deaf: object) -> None:
        """All have heard it."""

    async def settle(self, door: Address, instances: list[int]) -> None:
        self.asked.append(instances)
        await asyncio.Event().wait()

    def limits(self, instance: int) -> list[float]:
        return [each.limit for each in self.told[instance]]

    def answer(self, instance: int, left: int = 0) -> None:
        self.heard[Drained](instance, Drained(left))

    @contextlib.asynccontextmanager
    async def drained(self, graced: bool = False) -> AsyncIterator[NodeDrain]:
        it: Any = self
        async with asyncio.TaskGroup() as tasks:
            made = NodeDrain(it, self.registry, it, tasks, lambda _: False, graced)
            made.settle = self.settle  # type: ignore[method-assign]
            yield made


async def test_who_is_in_a_hurry_before_a_drain_begins_gives_it_no_time() -> None:
    node = Node(living(1))
    node.cuts[1] = 2
    async with node.drained() as it:
        it.hurry()
        await asyncio.wait_for(it.wait_drained(FOR_EVER), DEADLINE)
        assert node.limits(1) == [0.0]
        assert (it.cut, it.busy, it.states) == (2, False, {"engine-1": "drained"})


async def test_who_gets_into_a_hurry_gives_no_more_time_to_what_is_under_way() -> None:
    node = Node(living(1), living(2, "router"))
    async with node.drained() as it:
        whole = asyncio.create_task(it.wait_drained(FOR_EVER))
        await wait_until(lambda: node.told[1] and node.told[2])
        it.hurry()
        assert node.limits(1) == node.limits(2) == [FOR_EVER, 0.0]
        node.answer(1)
        node.answer(2)
        await asyncio.wait_for(whole, DEADLINE)


@pytest.mark.parametrize("before", [True, False], ids=["before it", "in its midst"])
async def test_a_hurry_waits_for_no_grace(before: bool) -> None:
    """Whoever has found the engine elsewhere is not waited for."""
    node = Node(living(1), living(2, "ingress"))
    async with node.drained(graced=True) as it:
        if before:
            it.hurry()
        whole = asyncio.create_task(it.wait_drained(FOR_EVER))
        if not before:
            await wait_until(lambda: node.asked == [[1]])
            assert not node.told[1]
            it.hurry()
        await wait_until(lambda: node.told[1] and node.told[2])
        assert node.limits(1) == node.limits(2) == [0.0]
        node.answer(1)
        node.answer(2)
        await asyncio.wait_for(whole, DEADLINE)


async def test_whoever_waits_for_the_end_of_a_drain_shortens_it_and_no_other() -> None:
    one, other = living(1), living(2)
    node = Node(one, other)
    async with node.drained() as it:
        draining = [asyncio.create_task(it.drain([each], FOR_EVER, "")) for each in node.records]
        await wait_until(lambda: node.told[1] and node.told[2])
        waiting = asyncio.create_task(it.wait_ended(one.address, LONG))
        await wait_until(lambda: len(node.told[1]) == 2)
        first, second = node.limits(1)
        assert second <= LONG < first
        assert len(node.told[2]) == 1
        assert not waiting.done()
        node.answer(1, left=1)
        await asyncio.wait_for(waiting, DEADLINE)
        node.answer(2)
        assert [await each for each in draining] == [1, 0]


@pytest.mark.parametrize("road", ["some", "all"])
async def test_one_that_hears_nothing_of_a_drain_is_not_waited_for(road: str) -> None:
    node = Node(living(1))
    node.unreachable.add(1)
    async with node.drained() as it:
        if road == "all":
            await asyncio.wait_for(it.wait_drained(FOR_EVER), DEADLINE)
        else:
            draining = it.drain(node.records, FOR_EVER, "")
            assert await asyncio.wait_for(draining, DEADLINE) == 0
    assert len(node.told[1]) == 1


async def test_one_that_hears_nothing_of_less_time_is_not_waited_for() -> None:
    node = Node(living(1))
    async with node.drained() as it:
        draining = asyncio.create_task(it.drain(node.records, FOR_EVER, ""))
        await wait_until(lambda: bool(node.told[1]))
        node.unreachable.add(1)
        it.shorten(LONG)
        assert await asyncio.wait_for(draining, DEADLINE) == 0


async def test_one_that_never_answers_is_waited_for_a_little_beyond_its_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(living(1))
    async with node.drained() as it:
        assert await asyncio.wait_for(it.drain(node.records, 0.0, ""), DEADLINE) == 0
    assert "did not say that its streams have ended" in caplog.text


async def test_one_that_ends_meanwhile_has_nothing_under_way_and_others_are_waited_for() -> None:
    """The node hears of an end before the system shows it, perhaps."""
    node = Node(living(1), living(2))
    async with node.drained() as it:
        draining = asyncio.create_task(it.drain(node.records, FOR_EVER, ""))
        await wait_until(lambda: node.told[1] and node.told[2])
        (down,) = node.when_down
        down(node.records[0].address, "killed by SIGKILL")
        node.answer(1, left=5)  # sent before, and too late now
        node.answer(2, left=3)
        assert await asyncio.wait_for(draining, DEADLINE) == 3
        assert it.cut == 3
