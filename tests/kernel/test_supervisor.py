"""The supervisor with real processes: order, restarts, crash loops, escalation."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from actors.errors import SpawnError
from actors.kernel.children import State
from actors.kernel.peers import start_time
from actors.kernel.restart import Intensity
from actors.kernel.spawn import Child
from actors.kernel.supervisor import Supervisor
from tests.kernel.supervised import Notes, one, states
from tests.kernel.supervised import run as run
from tests.waiting import LONG, TICK, wait_until


async def test_stages_start_in_order_and_stop_in_reverse(run: str) -> None:
    notes = Notes()
    specs = [
        one(run, "Fine", "last", stage=2),
        one(run, "Fine", "first", stage=0),
        one(run, "Fine", "second-a", stage=1),
        one(run, "Fine", "second-b", stage=1),
    ]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        assert [address.name for address in notes.ups] == ["first", "second-a", "second-b", "last"]
        assert states(supervisor) == ["up"] * 4
        assert notes.stages == [0, 1, 2]
        assert len({address.incarnation for address in notes.ups}) == 4
        await supervisor.stop()
        assert states(supervisor) == ["stopped"] * 4
    downs = [address.name for address, _, _ in notes.downs]
    assert downs[0] == "last"
    assert set(downs[1:3]) == {"second-a", "second-b"}
    assert downs[3] == "first"
    assert all(reason == "exit code 0" and not again for _, reason, again in notes.downs)


async def test_a_failing_child_fails_the_start_and_stops_the_rest(run: str) -> None:
    notes = Notes()
    specs = [
        one(run, "Fine", "fine"),
        one(run, "SlowStart", "slow", stage=1, start_timeout=10 * LONG),
        one(run, "BadConstructor", "bad", stage=1),
        one(run, "Fine", "never", stage=2),
    ]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        with pytest.raises(SpawnError, match="'bad'"):
            async with asyncio.timeout(LONG):  # nobody waits for the slow one's time-out
                await supervisor.start()
        assert [status.pid for status in supervisor.status()] == [0] * 4
    assert [address.name for address in notes.ups] == ["fine"]


async def test_a_killed_child_is_started_again_with_a_new_incarnation(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "fine")], group, notes)
        await supervisor.start()
        os.kill(notes.ups[0].pid, signal.SIGKILL)
        await wait_until(lambda: len(notes.ups) == 2)
        first, second = notes.ups
        assert notes.downs == [(first, "killed by SIGKILL", True)]
        assert first.incarnation != second.incarnation
        (status,) = supervisor.status()
        assert (status.state, status.restarts, status.pid) == ("up", 1, second.pid)
        await supervisor.stop()
    assert start_time(notes.ups[1].pid) == 0


@pytest.mark.parametrize(
    ("restart", "number", "state"),
    [
        ("never", signal.SIGKILL, "failed"),
        ("never", signal.SIGTERM, "ended"),
        ("on-failure", signal.SIGTERM, "ended"),
    ],
)
async def test_a_child_that_stays_down(run: str, restart: Any, number: int, state: State) -> None:
    notes = Notes()
    specs = [one(run, "Fine", "fine", restart=restart), one(run, "Fine", "other")]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        os.kill(notes.ups[0].pid, number)
        await wait_until(lambda: notes.trouble)
        assert states(supervisor) == [state, "up"]
        assert "stays down" in notes.trouble[0]
        assert [again for _, _, again in notes.downs] == [False]
        await supervisor.stop()


async def test_always_restarts_after_a_clean_end(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "fine", restart="always")], group, notes)
        await supervisor.start()
        os.kill(notes.ups[0].pid, signal.SIGTERM)
        await wait_until(lambda: len(notes.ups) == 2)
        await supervisor.stop()


async def test_a_crash_loop_is_braked_and_given_up(run: str, tmp_path: Path) -> None:
    notes = Notes()
    args = {"file": str(tmp_path / "starts"), "starts": 1000}
    specs = [
        one(run, "Crashes", "loop", args, intensity=Intensity(2, 60.0)),
        one(run, "Fine", "other"),
    ]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        await wait_until(lambda: notes.trouble)
        assert states(supervisor) == ["failed", "up"]
        assert "2 restarts are its limit" in notes.trouble[0]
        assert (tmp_path / "starts").read_text() == "xxx"
        assert [again for _, _, again in notes.downs] == [True, True, False]
        assert {reason for _, reason, _ in notes.downs} == {"exit code 7"}
        await supervisor.stop()


async def test_a_child_that_recovers_is_up_again(run: str, tmp_path: Path) -> None:
    notes = Notes()
    args = {"file": str(tmp_path / "starts"), "starts": 2}
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Crashes", "loop", args)], group, notes)
        await supervisor.start()
        # A life that ends before the loop has seen it begin is no "up"; a restart it is.
        await wait_until(lambda: supervisor.status()[0].restarts == 2)
        await wait_until(lambda: states(supervisor) == ["up"])
        await supervisor.stop()


async def test_restarts_that_fail_count_and_are_told(run: str, tmp_path: Path) -> None:
    notes = Notes()
    args = {"file": str(tmp_path / "started")}
    # No start takes less than the period: to load is no life.
    specs = [one(run, "StartsOnce", "once", args, intensity=Intensity(2, 0.05))]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        await wait_until(lambda: len(notes.trouble) == 3)
        assert "restart failed" in notes.trouble[0]
        assert "only once" in notes.trouble[0]
        assert "stays down" in notes.trouble[2]
        # A life that ends before the loop has seen it begin is no "up".
        assert len(notes.ups) <= len(notes.downs) == 1
        await supervisor.stop()


async def test_deaf_children_are_killed_after_their_grace_time(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One grace time for all of a stage: it is over for the others when the first one's is, which
    is the shortest, as the clock says that an hour is over then.
    """
    notes = Notes()
    specs = [one(run, "Deaf", f"deaf-{number}", grace=10 * LONG) for number in range(3)]
    specs.append(one(run, "Deaf", "deaf-3", grace=10 * TICK))
    ahead, killed, kill = 0.0, 0, Child.kill

    def killing(child: Child) -> None:
        nonlocal ahead, killed
        ahead, killed = 60 * LONG, killed + 1
        kill(child)

    monkeypatch.setattr(Child, "kill", killing)
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes, lambda: time.monotonic() + ahead)
        await supervisor.start()
        async with asyncio.timeout(LONG):
            await supervisor.stop()
        assert killed == 4
    assert {reason for _, reason, _ in notes.downs} == {"killed by SIGKILL"}


async def test_stop_during_the_wait_before_a_restart(run: str, tmp_path: Path) -> None:
    notes = Notes()
    args = {"file": str(tmp_path / "starts"), "starts": 1000}
    specs = [one(run, "Crashes", "loop", args, intensity=Intensity(1000, 60.0))]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        await wait_until(lambda: len(notes.downs) >= 3)
        await supervisor.stop()
        assert states(supervisor) == ["stopped"]
    assert [status.pid for status in supervisor.status()] == [0]


async def test_a_cancelled_start_leaves_nothing(run: str) -> None:
    notes = Notes()
    specs = [one(run, "Fine", "fine"), one(run, "SlowStart", "slow", stage=1)]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        starting = group.create_task(supervisor.start())
        await wait_until(lambda: notes.ups)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        assert [status.pid for status in supervisor.status()] == [0, 0]
