"""What a router makes of what it is told: by engines of their streams, by settings, by requests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from actors.errors import AllBusy, ConnectionLost, EngineError, Overloaded
from actors.kernel.runtime import Runtime
from actors.messages import End, Open, Report
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import engines
from tests.router.local_rig import GO, LocalRig, local_rig
from tests.router.nodes import node
from tests.router.rig import far_record, router_rig
from tests.waiting import LONG, TICK, wait_until
from transport.errors import from_wire

CHAT: tuple[str, type, dict[str, Any]] = ("t.far.chat", engines.Chat, {})
COUNT: tuple[str, type, dict[str, Any]] = ("t.far.count", engines.Count, {})


def told(here: LocalRig, number: int, code: str) -> None:
    """An engine names the one stream that it has as ended so."""
    worker = here.members[number].carried
    (key,) = here.router.occupancy.running(worker)
    counts = (worker.in_flight, worker.queued, worker.capacity, worker.sent, worker.settled)
    report = Report(worker.record.instance, worker.seq, *counts, ended=[[*key, code]])
    here.router._report(worker.record.instance, report)


async def test_b119_a_connection_that_an_engine_has_lost_is_its_caller_s(tmp_path: Path) -> None:
    """Also while somebody is in trouble, when the router looks at how all streams end."""
    async with local_rig(tmp_path, 3, capacity=1, overload_lease=LONG) as here:
        await here.held(3)
        with pytest.raises(Overloaded):
            await here.call(instance=here.members[0].carried.instance)
        await wait_until(lambda: here.members[0].state == "leased")
        told(here, 1, "connection.lost")
        assert here.members[1].state == "free"
        assert not here.pool.faults
        told(here, 2, "worker.unavailable")  # that is its own
        assert here.members[2].state == "quarantined"


async def test_b119_a_handler_that_has_lost_somebody_of_its_own(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, capacity=1) as here:
        here.gate.set()
        for request in ("raise", "lose") * 3:
            with pytest.raises(EngineError):
                await here.call(request)
        assert [each.state for each in here.members] == ["free", "free"]
        assert here.pool.calm


async def test_engines_that_are_full_are_all_busy_to_the_next_one(tmp_path: Path) -> None:
    """No limit is set: the router learns it of the engines, the first caller as well."""
    async with local_rig(tmp_path, 2, capacity=1, overload_lease=LONG) as here:
        await here.held(2)
        for _ in range(2):
            with pytest.raises(AllBusy) as caught:
                await here.call()
            assert type(caught.value) is AllBusy
        assert {each.state for each in here.members} == {"leased"}


@pytest.mark.parametrize(("quarantine", "state"), [(0.0, "free"), (40.0, "quarantined")])
async def test_b119_a_quarantine_is_as_long_as_the_settings_say(
    tmp_path: Path, quarantine: float, state: str
) -> None:
    dead = [far_record("127.0.0.1:1/p", GO, instance) for instance in (8, 9)]
    async with router_rig(tmp_path, *dead, quarantine=quarantine, quarantine_longest=70.0) as here:
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                await here.client.call(GO, 1, instance=9)
        pool = here.actor.members.pools[GO]
        assert [each.state for each in pool.members.values()] == ["free", state]
        assert pool.calm is (state == "free")
        if quarantine:
            assert 0 < pool.faults.until(9) - time.monotonic() <= 40.0
            begun = pool.faults.until(9)  # the trial that comes then fails, too
            assert pool.faults.begin_trial(9, (1, 1), begun)
            pool.faults.strike(9, (1, 1), [], begun)
            assert pool.faults.until(9) == begun + 70.0  # and not twice as long


async def test_b113_a_permit_is_there_before_the_first_item_and_back_at_once(
    tmp_path: Path,
) -> None:
    async with local_rig(tmp_path, 1) as here:
        (held,) = await here.held(1)
        await wait_until(lambda: here.order)
        assert here.members[0].carried.permits == 1  # it has sent nothing yet
        here.gate.set()
        assert await held == 0
        await wait_until(lambda: not here.members[0].carried.permits)


async def test_b113_nor_is_one_of_another_node_late(tmp_path: Path) -> None:
    """Nor that of a stream each way, to which nothing was sent yet."""
    async with (
        node(tmp_path / "b", CHAT, COUNT) as far,
        router_rig(tmp_path / "a", *far.records) as here,
    ):
        engines.SEEN.clear()
        async with here.client.stream(COUNT[0], {"do": "stopped"}) as items:
            await wait_until(lambda: engines.SEEN)
            assert here.permits == 1
            items.stop()
            assert [item async for item in items] == ["last 0", "last 1", "last 2"]
            await wait_until(lambda: not here.permits)
        engines.SEEN.clear()
        async with here.client.open(CHAT[0]) as chat:
            await wait_until(lambda: here.permits)
            await wait_until(lambda: engines.SEEN == ["began"])
            assert here.permits == 1
            await chat.end()
            assert [item async for item in chat] == ["end 0", "end 1", "end 2"]
            await wait_until(lambda: not here.permits)
        await here.idle()


async def test_a_wait_ends_at_the_deadline_of_a_stream_whose_home_does_not_mind(
    tmp_path: Path, clock: Clock
) -> None:
    """Its Open alone says how long; a home of ours would end it by itself."""
    async with local_rig(
        tmp_path, 1, capacity=1, router={"queue": 9, "queue_timeout": 9 * LONG}
    ) as here:
        await here.held(1)
        home = Runtime(run=str(tmp_path), name="raw")
        try:
            ends: list[End] = []
            home.on(End, lambda sender, m: ends.append(m))
            rest: tuple[Any, ...] = ([], [], 8, 8, 5 * LONG, {}, "r-1")
            m = Open(7, home.address, GO, False, "msgpack", True, b"\xc0", *rest)
            home.port.send(here.router.address, m)
            await wait_until(lambda: here.waiting == 1)
            clock.turn(4 * LONG)
            await asyncio.sleep(TICK)
            assert not ends
            clock.turn(LONG)
            await wait_until(lambda: ends)
            assert ends[0].stream == 7
            assert ends[0].error is not None
            error = from_wire(*ends[0].error)
            assert (error.code, error.details["limit"]) == ("deadline", "total")
            assert here.waiting == 0
        finally:
            home.close()
        await asyncio.sleep(0)
