"""What is left of children whose place another has, or that were never ready: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.errors import SpawnError
from actors.kernel.supervisor import Supervisor
from tests.kernel.supervised import Notes, one, states
from tests.kernel.supervised import run as run
from tests.kernel.test_supervisor_wishes import proven
from tests.waiting import DEADLINE, LONG, wait_until
from transport.bus.address import Address

#: Who is not ready in that time is killed: no test takes so long.
FOR_EVER = 20 * LONG


def troubled(run: str, tmp_path: Path, **keys: Any) -> tuple[Any, Path]:
    """A child that does not come to be ready while the file is there."""
    mark = tmp_path / "mark"
    keys = {"start_timeout": FOR_EVER, **keys}
    return one(run, "ReadyUnless", "a", {"file": str(mark)}, **keys), mark


async def test_one_that_had_fallen_and_is_not_up_again_is_killed_by_its_succession(
    run: str, tmp_path: Path
) -> None:
    notes = Notes()
    child, mark = troubled(run, tmp_path)
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        mark.touch()
        os.kill(notes.ups[0].pid, signal.SIGKILL)
        await wait_until(lambda: mark.read_text() == "seen", what="its policy tries it again")
        mark.unlink()
        old, new = await supervisor.succeed("a", proven)
        assert old is None
        await wait_until(lambda: supervisor.pids == {new.pid}, what="the end of the one between")
        assert states(supervisor) == ["up"]
        assert [each for each, _, _ in notes.downs] == notes.ups[:1]
        await supervisor.stop()
    assert not os.listdir(run)


async def test_a_restart_that_nobody_waits_for_any_more_is_ended(run: str, tmp_path: Path) -> None:
    notes = Notes()
    child, mark = troubled(run, tmp_path, restart="never")
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        mark.touch()
        restart = asyncio.create_task(supervisor.restart("a"))
        await wait_until(lambda: len(notes.execs) == 2, what="the second process")
        restart.cancel()
        await asyncio.wait({restart})
        assert restart.cancelled()
        await wait_until(lambda: not supervisor.pids, what="its end")
        await wait_until(lambda: states(supervisor) == ["failed"], what="its policy has it")
        mark.unlink()
        await supervisor.restart("a")
        assert states(supervisor) == ["up"]
        await supervisor.stop()
    assert not os.listdir(run)


async def test_one_that_is_killed_for_a_wish_leaves_no_sockets(run: str) -> None:
    notes = Notes()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([one(run, "Deaf", "deaf", grace=0.0)], group, notes)
        await supervisor.start()
        before = set(os.listdir(run))
        assert before
        await asyncio.wait_for(supervisor.restart("deaf"), DEADLINE)
        assert before.isdisjoint(os.listdir(run))
        await supervisor.stop()
    assert not os.listdir(run)


@pytest.mark.parametrize("ready", [True, False])
async def test_a_successor_that_is_killed_leaves_no_sockets(
    run: str, tmp_path: Path, ready: bool
) -> None:
    notes = Notes()
    child, mark = troubled(run, tmp_path)
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor([child], group, notes)
        await supervisor.start()
        before = set(os.listdir(run))
        if not ready:
            mark.touch()

        async def prove(address: Address) -> None:
            os.kill(address.pid, signal.SIGKILL)
            raise SpawnError("it is not well", actor="a")

        succession = asyncio.create_task(supervisor.succeed("a", prove))
        if not ready:
            await wait_until(lambda: set(os.listdir(run)) > before, what="its sockets")
            os.kill(notes.execs[1], signal.SIGKILL)
        with pytest.raises(SpawnError):
            await succession
        await wait_until(lambda: set(os.listdir(run)) == before, what="its sockets are gone")
        assert [each.address for each in supervisor.status()] == notes.ups[:1]
        await supervisor.stop()
    assert not os.listdir(run)
