"""Children that are started anew by somebody's wish: in place, or by a successor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import pytest

from actors.errors import SpawnError, SpecError
from actors.kernel.restart import Intensity
from actors.kernel.supervisor import Supervisor
from tests.kernel.supervised import Notes, one, states
from tests.kernel.supervised import run as run
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address


async def proven(address: Address) -> None:
    """Every successor will do."""


def succeeds(supervisor: Supervisor, name: str) -> Coroutine[None, None, object]:
    return supervisor.succeed(name, proven)


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
        old, new = await supervisor.succeed("a", proven)
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
            await succeeds(supervisor, "a")
        assert supervisor.status() == before
        assert not notes.downs
        os.unlink(mark)
        await supervisor.stop()


@pytest.mark.parametrize("dies", [False, True])
async def test_an_essential_childs_successor_that_proves_nothing_changes_nothing(
    run: str, dies: bool
) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        child = one(run, "Fine", "a", essential=True, restart="never")
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        before = supervisor.status()

        async def prove(address: Address) -> None:
            if dies:
                os.kill(address.pid, signal.SIGKILL)
                await wait_until(lambda: address.pid not in supervisor.pids, what="its end")
            raise SpawnError("it is not well", actor="a")

        with pytest.raises(SpawnError, match="not well"):
            await supervisor.succeed("a", prove)
        assert supervisor.status() == before
        assert supervisor.pids == {notes.ups[0].pid}
        await wait_until(lambda: bool(notes.downs))
        assert [(each, again) for each, _, again in notes.downs] == [(notes.ups[1], False)]
        assert not notes.trouble
        os.kill(notes.ups[0].pid, signal.SIGKILL)  # whoever has the place is kept
        await wait_until(lambda: any("a is lost" in each for each in notes.trouble))
        await supervisor.stop()
    assert not os.listdir(run)


async def test_a_successor_that_proves_nothing_has_the_place_where_nobody_else_is(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Fine", "a")], group, notes)
        await supervisor.start()
        (pid,) = supervisor.pids

        async def prove(address: Address) -> None:
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: pid not in supervisor.pids, what="the end of the old one")
            raise SpawnError("it is not well", actor="a")

        with pytest.raises(SpawnError, match="not well"):
            await supervisor.succeed("a", prove)
        assert [each.address for each in supervisor.status()] == [notes.ups[1]]
        os.kill(notes.ups[1].pid, signal.SIGKILL)
        await wait_until(lambda: len(notes.ups) == 3, what="its policy has it")
        await supervisor.stop()


async def test_all_of_them_stop_in_the_midst_of_a_succession(run: str, tmp_path: Path) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        b = one(run, "ReadyOnce", "b", {"file": str(tmp_path / "mark")})
        supervisor = Supervisor([one(run, "Fine", "a"), b], group, notes)
        await supervisor.start()
        await succeeds(supervisor, "a")
        succession = asyncio.create_task(succeeds(supervisor, "b"))
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
        for wished in (supervisor.restart, partial(succeeds, supervisor)):
            before = len(notes.ups)
            os.kill(supervisor.status()[0].pid, signal.SIGKILL)
            await wait_until(lambda before=before: len(notes.ups) == before + 1)
            await wished("a")
        os.kill(supervisor.status()[0].pid, signal.SIGKILL)
        await wait_until(lambda: len(notes.ups) == 6, what="it is not the second in a row")
        assert not [each for each in notes.trouble if "stays down" in each]
        await supervisor.stop()


async def test_a_successor_that_nobody_waits_for_any_more_is_ended(
    run: str, tmp_path: Path
) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        child = one(run, "ReadyOnce", "a", {"file": str(tmp_path / "mark")})
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        (pid,) = supervisor.pids
        succession = asyncio.create_task(succeeds(supervisor, "a"))
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
        await asyncio.wait_for(supervisor.restart("deaf"), LONG)
        assert [reason for _, reason, _ in notes.downs] == ["it is started anew"]
        assert "did not stop within" in notes.trouble[0]
        await supervisor.stop()
        for wished in (supervisor.restart, partial(succeeds, supervisor)):
            with pytest.raises(SpawnError, match="all stops"):
                await wished("deaf")
        assert not supervisor.pids
        assert len(notes.execs) == 2
