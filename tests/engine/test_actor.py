"""An engine's actor as routers and homes meet it: admission, reports, and Opens of the dead."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Context, Engine, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.kernel.peers import start_time
from actors.messages import Accept, End, Items, Kill, Report, Stop, Subscribe
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import TICK, wait_until
from transport.bus.address import Address

ENDPOINT = "t.engine.go"


class Gated(Engine[Any, Any]):
    """Each stream yields its request, waits for the gate, and ends."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[Any] = []
        self.ended: list[Any] = []

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        self.begun.append(request)
        try:
            yield request
            await self.gate.wait()
        finally:
            self.ended.append(request)


class Rig:
    """An engine actor on this loop and a hand-made home that plays its router as well."""

    def __init__(self, actor: EngineActor, home: RawHome) -> None:
        assert isinstance(actor.handler.engine, Gated)
        self.engine = actor.handler.engine
        self.actor = actor
        self.home = home
        self.address = actor.address

    def open(self, stream: int, **fields: Any) -> None:
        request = fields.pop("request", stream)
        fields = {"router": self.home.address, **fields}
        self.home.open(self.address, stream, ENDPOINT, request, **fields)

    async def report(self) -> Report:
        """The newest report, once the engine has read what was sent to it before."""
        before = len(self.home.got(Report))
        self.home.send(self.address, Subscribe(self.home.address), control=True)
        await wait_until(lambda: len(self.home.got(Report)) > before)
        return self.home.got(Report)[-1]

    async def reports(self, **wanted: int) -> Report:
        """Wait for a report with these numbers."""

        async def found() -> bool:
            report = await self.report()
            return all(getattr(report, name) == value for name, value in wanted.items())

        await wait_until(found, what=f"a report with {wanted}")
        return self.home.got(Report)[-1]


@asynccontextmanager
async def rig(tmp_path: Path, capacity: int = 2, queue: int = 2) -> AsyncIterator[Rig]:
    spec = {
        "run": str(tmp_path),
        "name": "engine",
        "role": "engine",
        "settings": Settings().to_dict(),
    }
    actor = EngineActor(Gated, {}, ENDPOINT, capacity, queue, None)
    with raw_home(str(tmp_path)) as home:
        async with running(spec, actor):  # ends before the home, for whom it would linger
            yield Rig(actor, home)


def dead_home() -> Address:
    """The address of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(process.pid)
    process.communicate(b"\n")
    return Address("gone", 77, process.pid, started)


async def test_capacity_then_queue_then_a_typed_refusal(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        for stream in range(1, 6):
            at.open(stream)
        end = await at.home.ended(5)
        assert end.error is not None
        assert end.error[0] == "overloaded"
        assert "2 places and 2 queue places" in end.error[1]
        assert end.report is not None
        report = await at.reports(in_flight=2, queued=2, opened=5, settled=1)
        assert report.capacity == 2
        assert at.engine.begun == [1, 2]
        at.engine.gate.set()
        for stream in range(1, 5):
            assert (await at.home.ended(stream)).error is None
        await at.reports(in_flight=0, queued=0, opened=5, settled=5)
        assert at.engine.begun == [1, 2, 3, 4]


async def test_reports_name_each_stream_that_ended_and_how(tmp_path: Path) -> None:
    async with rig(tmp_path, queue=0) as at:
        at.engine.gate.set()
        at.open(1)
        at.open(2, many=True)
        await at.home.ended(1)
        await at.home.ended(2)
        await at.reports(settled=2)
        named = [each for report in at.home.got(Report) for each in report.ended]
        home = at.home.address.incarnation
        assert sorted(named) == [[home, 1, ""], [home, 2, "unsupported"]]
        ends = [at.home.got(End, stream)[0].report for stream in (1, 2)]
        assert sorted(each.settled for each in ends if each is not None) == [1, 2]


async def test_the_place_is_free_before_the_end_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path, capacity=1, queue=0) as at:
        at.engine.gate.set()
        for stream in range(1, 200):
            at.open(stream)
            end = await at.home.ended(stream)
            assert end.error is None
            assert end.report is not None
            assert (end.report.in_flight, end.report.settled) == (0, stream)


async def test_what_waits_in_the_queue_and_is_cancelled_never_starts(tmp_path: Path) -> None:
    async with rig(tmp_path, capacity=1) as at:
        home = at.home.address.incarnation
        at.open(1)
        at.open(2)
        at.open(3)
        await at.reports(in_flight=1, queued=2)
        at.home.send(at.address, Kill(home, 2, "not wanted"), control=True)
        at.home.send(at.address, Stop(home, 3, "enough"), control=True)
        end = await at.home.ended(3)
        assert (end.total, end.error) == (0, None)
        await at.reports(in_flight=1, queued=0, settled=2)
        at.engine.gate.set()
        await at.home.ended(1)
        assert at.engine.begun == [1]


async def test_an_open_that_never_begins_is_counted_on_both_sides(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        at.home.send(at.address, Kill(at.home.address.incarnation, 1, "early"), control=True)
        await at.report()
        at.open(1)
        at.engine.gate.set()
        at.open(2)
        await at.home.ended(2)
        report = await at.reports(settled=2)
        assert (report.opened, report.in_flight) == (2, 0)
        assert at.engine.begun == [2]


async def test_an_open_behind_the_death_of_its_home_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        home = dead_home()
        for stream in (1, 2):  # the first brings the news, the second comes behind it
            at.open(stream, home=home)
            report = await at.reports(opened=stream, settled=stream)
            assert (report.in_flight, report.queued) == (0, 0)
        assert not at.actor._serving.streams
        assert at.engine.begun == []


async def test_one_accept_comes_before_any_item(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        at.open(1)
        await wait_until(lambda: at.home.got(Items, 1))
        kinds = [type(each) for _, each in at.home.came if getattr(each, "stream", 0) == 1]
        assert kinds == [Accept, Items]
        at.engine.gate.set()
        await at.home.ended(1)
        assert len(at.home.got(Accept, 1)) == 1


async def test_a_stream_that_ends_at_once_needs_no_accept(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        at.engine.gate.set()
        at.open(1)
        await at.home.ended(1)
        kinds = [type(each) for _, each in at.home.came if getattr(each, "stream", 0) == 1]
        assert kinds == [End]  # its only item travels inside


async def test_a_request_that_was_opened_twice_runs_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        at.open(1)
        at.open(1)
        await at.reports(opened=1, in_flight=1)
        at.engine.gate.set()
        await at.home.ended(1)
        assert at.engine.begun == [1]


async def test_everything_ends_with_the_actor(tmp_path: Path) -> None:
    with raw_home(str(tmp_path)) as home:
        async with rig(tmp_path) as at:
            for stream in (1, 2, 3):
                home.open(at.address, stream, ENDPOINT, stream, router=home.address)
            await wait_until(lambda: at.engine.begun == [1, 2])
            await wait_until(lambda: at.actor.carries()["queued"] == 1)
        for stream in (1, 2, 3):
            end = await home.ended(stream)
            assert end.error is not None
            assert end.error[0] == "connection.lost"
        assert sorted(at.engine.ended) == [1, 2]
        assert os.listdir(tmp_path)  # the home's own sockets, nobody else's
        assert not [name for name in os.listdir(tmp_path) if name.startswith("engine")]


class Tidy(Engine[Any, Any]):
    """Notes in which order its parts end."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def on_stop(self) -> None:
        self.order.append("on_stop")
        await self.late.wait()

    async def on_start(self) -> None:
        self.late = asyncio.Event()

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        try:
            yield request
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(TICK / 10)
            self.order.append("handler")


async def test_an_engine_stops_behind_its_streams_and_begins_no_other(tmp_path: Path) -> None:
    spec = {
        "run": str(tmp_path),
        "name": "engine",
        "role": "engine",
        "settings": Settings().to_dict(),
    }
    actor = EngineActor(Tidy, {}, ENDPOINT, 2, 2, None)
    engine = actor.handler.engine
    assert isinstance(engine, Tidy)
    stopping = asyncio.Event()

    async def run() -> None:
        async with running(spec, actor):
            await stopping.wait()

    runner = asyncio.create_task(run())
    with raw_home(str(tmp_path)) as home:
        await wait_until(lambda: hasattr(engine, "late"))
        home.open(actor.address, 1, ENDPOINT, "first")
        await wait_until(lambda: home.got(Items, 1))
        stopping.set()
        await wait_until(lambda: "on_stop" in engine.order)
        assert engine.order == ["handler", "on_stop"]
        home.open(actor.address, 2, ENDPOINT, "late")
        error = (await home.ended(2)).error
        assert error is not None
        assert error[0] == "connection.lost"
        assert "engine stops" in error[1]
        engine.late.set()
        await runner
