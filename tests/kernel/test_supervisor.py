"""The supervisor with real processes: order, restarts, crash loops, escalation."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.errors import SpawnError, SpecError
from actors.kernel.children import ChildSpec, State
from actors.kernel.exits import Exit
from actors.kernel.peers import start_time
from actors.kernel.restart import Intensity
from actors.kernel.supervisor import Supervisor
from tests.kernel.test_spawn import spec
from tests.waiting import PATIENCE, TICK, wait_until
from transport.bus.address import Address


class Notes:
    """A watcher that writes down what it hears."""

    def __init__(self) -> None:
        self.execs: list[int] = []
        self.ups: list[Address] = []
        self.downs: list[tuple[Address, str, bool]] = []
        self.trouble: list[str] = []
        self.progress: list[str] = []
        self.stages: list[int] = []

    def on_exec(self, spec: ChildSpec, pid: int) -> None:
        self.execs.append(pid)

    def on_up(self, spec: ChildSpec, address: Address, facts: Mapping[str, Any]) -> None:
        self.ups.append(address)

    def on_down(self, spec: ChildSpec, address: Address, reason: str, *, again: bool) -> None:
        self.downs.append((address, reason, again))

    def on_trouble(self, spec: ChildSpec, text: str) -> None:
        self.trouble.append(text)

    def on_lost(self, spec: ChildSpec, how: Exit) -> None:
        self.trouble.append(f"{spec.name} is lost: {how}")

    def on_progress(self, spec: ChildSpec, text: str) -> None:
        self.progress.append(text)

    async def on_stage(self, stage: int) -> None:
        self.stages.append(stage)


@pytest.fixture
def run() -> Iterator[str]:
    folder = Path(os.environ["CALLHOME_RUN"], secrets.token_hex(3))
    folder.mkdir(0o700)
    yield str(folder)
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()


def one(run: str, cls: str, name: str, args: Mapping[str, Any] | None = None, **keys: Any) -> Any:
    keys = {"start_timeout": PATIENCE, "grace": PATIENCE, **keys}
    return ChildSpec(name=name, spec=spec(run, cls, args=dict(args or {})), **keys)


def states(supervisor: Supervisor) -> list[State]:
    return [status.state for status in supervisor.status()]


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
        one(run, "SlowStart", "slow", stage=1),
        one(run, "BadConstructor", "bad", stage=1),
        one(run, "Fine", "never", stage=2),
    ]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        began = time.monotonic()
        with pytest.raises(SpawnError, match="'bad'"):
            await supervisor.start()
        assert time.monotonic() - began < PATIENCE  # nobody waited for the slow one's time-out
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


async def test_deaf_children_are_killed_after_their_grace_time(run: str) -> None:
    notes = Notes()
    specs = [one(run, "Deaf", f"deaf-{number}", grace=10 * TICK) for number in range(4)]
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(specs, group, notes)
        await supervisor.start()
        began = time.monotonic()
        await supervisor.stop()
        assert time.monotonic() - began < 38 * TICK  # one grace time for all of a stage
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


async def test_a_wished_restart_counts_as_none_and_a_crash_behind_it_does(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a"), one(run, "Fine", "b")], group, notes)
        await supervisor.start()
        before = {status.spec.name: status.address for status in supervisor.status()}
        address = await supervisor.restart("a")
        now = {status.spec.name: status for status in supervisor.status()}
        assert now["a"].address == address != before["a"]
        assert now["b"].address == before["b"]
        assert (now["a"].state, now["a"].restarts) == ("up", 0)
        assert [(each, again) for each, _, again in notes.downs] == [(before["a"], True)]
        os.kill(address.pid, signal.SIGKILL)
        await wait_until(lambda: len(notes.ups) == 4, what="its policy has it")
        assert supervisor.status()[0].restarts == 1
        await supervisor.stop()


async def test_a_child_that_is_given_up_comes_back_by_a_wish(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a", restart="never")], group, notes)
        await supervisor.start()
        os.kill(notes.ups[0].pid, signal.SIGKILL)
        await wait_until(lambda: states(supervisor) == ["failed"], what="it stays down")
        await supervisor.restart("a")
        assert states(supervisor) == ["up"]
        assert len(notes.downs) == 1
        with pytest.raises(SpecError, match="no child is called 'c'"):
            await supervisor.restart("c")
        await supervisor.stop()


async def test_a_wished_restart_that_fails_is_told_and_left_to_the_policy(run: str) -> None:
    notes = Notes()
    mark = Path(run, "mark")
    child = one(
        run, "StartsOnce", "a", {"file": str(mark), "lives": True}, intensity=Intensity(1, 30.0)
    )
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        with pytest.raises(SpawnError, match="only once"):
            await supervisor.restart("a")
        await wait_until(lambda: states(supervisor) == ["failed"], what="it is given up")
        os.unlink(mark)
        await supervisor.restart("a")
        assert states(supervisor) == ["up"]
        os.unlink(mark)
        await supervisor.stop()


async def test_a_successor_has_the_place_while_the_old_one_goes_on(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a")], group, notes)
        await supervisor.start()
        old, new = await supervisor.succeed("a")
        assert old == notes.ups[0]
        assert new == notes.ups[1]
        assert [(each.state, each.address) for each in supervisor.status()] == [
            ("up", new),
            ("leaving", old),
        ]
        assert {old.pid, new.pid} == supervisor.pids
        os.kill(new.pid, signal.SIGKILL)  # whoever has the place is kept
        await wait_until(lambda: len(notes.ups) == 3, what="its policy has it")
        await supervisor.see_off(old)
        assert [(each, again) for each, _, again in notes.downs] == [(new, True), (old, False)]
        assert states(supervisor) == ["up"]
        await supervisor.stop()
    assert not os.listdir(run)


async def test_a_successor_that_fails_changes_nothing(run: str) -> None:
    notes = Notes()
    mark = Path(run, "mark")
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(
            [one(run, "StartsOnce", "a", {"file": str(mark), "lives": True})], group, notes
        )
        await supervisor.start()
        before = supervisor.status()
        with pytest.raises(SpawnError, match="only once"):
            await supervisor.succeed("a")
        assert supervisor.status() == before
        assert not notes.downs
        os.unlink(mark)
        await supervisor.stop()


async def test_all_of_them_stop_in_the_midst_of_a_succession(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a"), one(run, "Fine", "b")], group, notes)
        await supervisor.start()
        await supervisor.succeed("a")
        succession = asyncio.create_task(supervisor.succeed("b"))
        await wait_until(lambda: len(notes.execs) == 4, what="the fourth process")
        await supervisor.stop()
        with pytest.raises(SpawnError):
            await succession
        assert not supervisor.pids
    assert not os.listdir(run)


async def test_a_wish_gives_a_child_all_its_restarts_again(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        child = one(run, "Fine", "a", intensity=Intensity(1, 600.0))
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        for wished in (supervisor.restart, supervisor.succeed):
            before = len(notes.ups)
            os.kill(supervisor.status()[0].pid, signal.SIGKILL)
            await wait_until(lambda before=before: len(notes.ups) == before + 1)
            await wished("a")
        os.kill(supervisor.status()[0].pid, signal.SIGKILL)
        await wait_until(lambda: len(notes.ups) == 6, what="it is not the second in a row")
        assert not [each for each in notes.trouble if "stays down" in each]
        await supervisor.stop()


async def test_a_successor_that_nobody_waits_for_any_more_is_ended(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a")], group, notes)
        await supervisor.start()
        (pid,) = supervisor.pids
        succession = asyncio.create_task(supervisor.succeed("a"))
        await wait_until(lambda: len(notes.execs) == 2, what="the second process")
        succession.cancel()
        await asyncio.wait({succession})
        await wait_until(lambda: supervisor.pids == {pid}, what="only the first is left")
        assert states(supervisor) == ["up"]
        await supervisor.stop()
    assert not os.listdir(run)


async def test_who_does_not_stop_for_a_wish_is_killed_and_none_starts_at_the_end(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Deaf", "deaf", grace=2 * TICK)], group, notes)
        await supervisor.start()
        await asyncio.wait_for(supervisor.restart("deaf"), 4 * PATIENCE)
        assert [reason for _, reason, _ in notes.downs] == ["it is started anew"]
        assert "did not stop within" in notes.trouble[0]
        await supervisor.stop()
        for wished in (supervisor.restart, supervisor.succeed):
            with pytest.raises(SpawnError, match="all stops"):
                await wished("deaf")
        assert not supervisor.pids
        assert len(notes.execs) == 2
