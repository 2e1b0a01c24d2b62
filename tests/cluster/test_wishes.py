"""Wishes that meet each other, and one that fails in a way nobody has foreseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import NodeSpec, Settings
from actors.cluster.steps import Work
from actors.cluster.wishes import Wishes
from actors.errors import Overloaded, SpecError
from actors.kernel.children import ChildSpec, ChildStatus, State
from actors.kernel.runtime import Runtime
from actors.notices import DrainTarget, RestartActors
from tests.discovery.samples import engine
from tests.waiting import DEADLINE, wait_until


class Node:
    """What a node has around its wishes: engines 1 and 2, whose drains last until ``drained``."""

    def __init__(self) -> None:
        self.records = [engine(1), engine(2)]
        self.states: dict[str, str] = {}
        self.cut = self.drains = 0
        self.begun = self.busy = False
        self.drained = asyncio.Event()
        self.state: State = "up"
        self.shortened: list[tuple[float, object]] = []
        self.renewed: list[list[str]] = []

    def status(self) -> list[ChildStatus]:
        return [
            ChildStatus(ChildSpec(each.address.name, {"role": "engine", "endpoint": each.endpoint}),
                self.state, each.address.pid, each.address, 0, "")
            for each in self.records
        ]  # fmt: skip

    async def drain(self, records: object, limit: float, why: str) -> int:
        self.drains += 1
        await self.drained.wait()
        return 0

    async def wait_drained(self, limit: float, why: str = "") -> None:
        await self.drain(self.records, limit, why)

    async def inspect(self, status: ChildStatus) -> dict[str, Any]:
        return {}

    def shorten(self, limit: float, only: object = None) -> None:
        self.shortened.append((limit, only))

    async def run(self, work: Work, names: list[str], rolling: bool, limit: float) -> None:
        self.renewed.append(names)
        work.tell("begins", names[0], "it begins")
        await asyncio.Event().wait()


@asynccontextmanager
async def wishing(tmp_path: Path, node: Node) -> AsyncIterator[Wishes]:
    runtime = Runtime(run=str(tmp_path), name="node", settings=Settings())
    it: Any = node
    try:
        async with asyncio.TaskGroup() as tasks:
            wishes = Wishes(runtime, NodeSpec(), it, it, it, it, it, tasks)
            yield wishes
            wishes.close()
    finally:
        runtime.close("the test ends")


async def steps_of(wish: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    async with asyncio.timeout(DEADLINE):  # a wish that is not refused never ends here
        return [step async for step in wish]


async def test_who_asks_once_more_shortens_the_drain_of_that_engine_only(tmp_path: Path) -> None:
    node = Node()
    async with wishing(tmp_path, node) as wishes:
        first = asyncio.create_task(steps_of(wishes.drain(DrainTarget("engine-1", 600.0))))
        await wait_until(lambda: node.states == {"engine-1": "draining"})
        others = [
            asyncio.create_task(steps_of(wishes.drain(DrainTarget(target, limit))))
            for target, limit in (("1", 5.0), ("engine-2", 7.0))
        ]
        await wait_until(lambda: len(node.states) == 2)
        assert node.shortened == [(5.0, node.records[0].address)]
        wishes.close()
        for steps in (await first, *[await each for each in others]):
            assert steps[0]["step"] == "withdrawn", "who comes later hears all of it"
            assert (steps[-1]["step"], steps[-1]["error"]) == ("done", "the node stops")
        with pytest.raises(Overloaded, match="the node stops"):
            await steps_of(wishes.drain(DrainTarget("engine-1")))
        with pytest.raises(Overloaded, match="drains or stops"):
            await steps_of(wishes.restart(RestartActors([])))


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_leaves_beside_a_successor_drains_without_a_word_of_that_one(
    tmp_path: Path, leaves: bool
) -> None:
    node = Node()
    node.state = "leaving" if leaves else "up"
    async with wishing(tmp_path, node) as wishes:
        drain = asyncio.create_task(steps_of(wishes.drain(DrainTarget("engine-1"))))
        await wait_until(lambda: node.drains)
        assert node.states == ({} if leaves else {"engine-1": "draining"})
        node.drained.set()
        assert (await drain)[-1]["ok"]
        assert node.states == ({} if leaves else {"engine-1": "drained"})


@pytest.mark.parametrize(("target", "ends"), [("engine-1", False), ("", True)])
async def test_a_restart_ends_behind_its_actor_where_the_node_is_drained(
    tmp_path: Path, target: str, ends: bool
) -> None:
    node = Node()
    async with wishing(tmp_path, node) as wishes:
        names = ["engine-2", "engine-1", "engine-2"]
        restart = asyncio.create_task(steps_of(wishes.restart(RestartActors(names, True))))
        await wait_until(lambda: node.renewed)
        assert node.renewed == [["engine-2", "engine-1"]]  # each once
        with pytest.raises(Overloaded, match="under way already"):
            await steps_of(wishes.restart(RestartActors(["engine-1"])))
        drain = asyncio.create_task(steps_of(wishes.drain(DrainTarget(target))))
        work = wishes._restart
        assert work is not None
        await wait_until(lambda: node.drains)
        assert work.abandoned == ends
        wishes.close()
        assert (await restart)[-1]["error"] == "the node stops"
        assert (await drain)[-1]["error"] == "the node stops"


async def test_whoever_leaves_a_restart_abandons_it_and_limits_are_numbers(tmp_path: Path) -> None:
    node = Node()
    async with wishing(tmp_path, node) as wishes:
        for limit in (float("nan"), float("inf"), 31_536_001.0):
            with pytest.raises(SpecError, match="up to a year"):
                await steps_of(wishes.drain(DrainTarget("", limit)))
        wish: Any = wishes.restart(RestartActors(["engine-1"]))
        assert (await anext(wish))["step"] == "begins"
        work = wishes._restart
        assert work is not None
        assert not work.abandoned
        await wish.aclose()
        assert work.abandoned


async def test_a_wish_that_ends_before_it_has_begun_is_said_to_have_ended(tmp_path: Path) -> None:
    node = Node()
    async with wishing(tmp_path, node) as wishes:
        drain = asyncio.create_task(steps_of(wishes.drain(DrainTarget())))
        while not wishes._drains:  # noqa: ASYNC110 - the very turn is wanted
            await asyncio.sleep(0)
        wishes.close()
        assert [each["error"] for each in await drain] == ["the node stops"]
    assert not node.drains


async def fails() -> None:
    raise RuntimeError("boom")


async def test_it_ends_for_its_followers_and_for_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    runtime = Runtime(run=str(tmp_path), name="node", settings=Settings())
    none: Any = None  # nothing of the node is asked for
    work = Work()
    async with asyncio.TaskGroup() as tasks:
        wishes = Wishes(runtime, none, none, none, none, none, none, tasks)
        wishes._begin(work, fails())
        (last,) = [step async for step in work.follow()]
    runtime.close("the test ends")
    assert (last["step"], last["ok"], last["error"]) == ("done", False, "it has failed: boom")
    assert any("a wish" in each.getMessage() for each in caplog.records)
