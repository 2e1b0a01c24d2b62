"""Signs of life as they are written and read: files, processes and signals, no messages."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors import Settings
from actors.kernel.beats import Heart, Lookout, Vigil, process_of
from actors.kernel.runtime import Runtime
from actors.kernel.signs import SIZE, TOLD, read_sign
from actors.kernel.verdicts import HIDDEN, IDLE, RUNNING, STOPPED
from tests.kernel.test_peers_scarce import no_descriptors
from tests.waiting import require_root, wait_until, wait_until_sync
from transport.bus.address import Address, remove_inboxes

PATIENCE = 60.0


@contextlib.asynccontextmanager
async def beating(run: Path) -> AsyncIterator[tuple[Runtime, Heart]]:
    """A runtime that gives signs of life."""
    os.makedirs(run, 0o700)
    runtime = Runtime(run=str(run), name="actor", settings=Settings())
    heart = Heart(runtime)
    heart.start()
    try:
        yield runtime, heart
    finally:
        heart.stop()
        runtime.close()


def stranger(address: Address) -> Address:
    """Somebody in another process, for whom we stand in."""
    return address._replace(pid=1, incarnation=address.incarnation + 1)


def beats(run: Path) -> list[Path]:
    return sorted(run.glob("*.b"))


async def test_beats_come_the_loop_is_seen_to_turn_and_the_file_goes(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, heart):
        (file,) = beats(tmp_path / "r")
        assert file.stat().st_mode & 0o777 == 0o600
        first = file.read_bytes()
        await wait_until(lambda: file.read_bytes()[16:24] != first[16:24], PATIENCE, "a beat")
        await wait_until(lambda: file.read_bytes()[24:] != first[24:], PATIENCE, "a turn")
        vigil = Vigil(str(tmp_path / "r"), 3.0, stranger(runtime.address))
        assert vigil.well(runtime.address)
        vigil.close()
        heart.stop()
        assert not beats(tmp_path / "r")


async def test_c36_an_engine_says_whether_it_is_ready(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, heart):
        vigil = Vigil(str(tmp_path / "r"), 60.0, stranger(runtime.address))
        now = time.monotonic()
        assert vigil.of(runtime.address, now).well
        heart.ready("its canary\x1b[31m raised ValueError: " + "\u00e4" * 500)
        found = vigil.of(runtime.address, now + 1.0)
        assert found.code == "unready"
        assert not found.mute
        assert found.why.startswith("its canary [31m raised ValueError: \u00e4\u00e4")
        assert abs(found.since - time.monotonic()) < PATIENCE
        assert len(found.why.encode()) <= 240, "and no half of a character is left at its end"
        assert runtime.vigil.of(runtime.address, now).code == "unready", "in its process, too"
        assert vigil.of(runtime.address, now + 2.0) is found, "it is told as one trouble, not many"
        heart.ready("")
        assert vigil.of(runtime.address, now + 3.0).well
        vigil.close()


async def test_c36_files_of_other_versions_are_no_verdict(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, heart):
        heart.ready("its canary")
        (file,) = beats(tmp_path / "r")
        heart._stopping.set()
        heart._thread.join()
        data, who = file.read_bytes(), runtime.address.incarnation
        assert len(data) == SIZE
        now = read_sign(data, who)
        assert now is not None
        assert now.unready
        older = read_sign(data[:32], who)
        assert older is not None
        assert (older.beat, older.turn, older.unready) == (now.beat, now.turn, 0.0)
        for other in (data[:TOLD], data + b"\0", data[:-1], b"", b"chbeat2\n" + data[8:]):
            assert read_sign(other, who) is None
        assert read_sign(data, who + 1) is None


async def test_the_lag_of_a_loop_is_told(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, _):
        vigil = Vigil(str(tmp_path / "r"), 60.0, stranger(runtime.address))

        def lag() -> float:
            return vigil.lag(runtime.address, time.monotonic()) or 0.0

        wait_until_sync(lambda: lag() >= 0.5, PATIENCE, "a loop that does not turn is late")
        await wait_until(lambda: lag() < 0.5, PATIENCE, "it turns")
        vigil.close()


async def test_a_blocked_loop_is_stalled_and_its_thread_beats_on(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, _):
        vigil = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        assert vigil.well(runtime.address)

        def blocked() -> bool:
            return not vigil.well(runtime.address)

        wait_until_sync(blocked, PATIENCE, "this loop, which waits without turning, is stalled")
        verdict = vigil.of(runtime.address, time.monotonic())
        assert verdict.code == "stalled"
        assert "event loop" in verdict.text(runtime.address)
        await wait_until(lambda: vigil.well(runtime.address), PATIENCE, "it turns again")
        vigil.close()


async def test_who_was_told_of_trouble_is_told_of_its_end_though_he_asks_no_more(
    tmp_path: Path,
) -> None:
    async with beating(tmp_path / "r") as (runtime, _):
        other, gone = runtime.address, runtime.address._replace(incarnation=1, pid=1 << 30)
        runtime.vigil = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        asked, told = [other], list[tuple[Address, str]]()
        lookout = Lookout(runtime, lambda: asked, lambda who, how: told.append((who, how.code)))

        def looked() -> object:
            lookout._look()
            return told

        wait_until_sync(looked, PATIENCE, "this loop, which waits without turning, is stalled")
        assert told == [(other, "stalled")]
        asked.clear()
        lookout.unwell[gone.incarnation] = lookout.unwell[other.incarnation]
        lookout._addresses[gone.incarnation] = gone
        well = (other, "well")  # though it may have been stalled again before
        await wait_until(lambda: told[-1] == well, PATIENCE, "it turns again")
        assert {each for each, _ in told} == {other}, "and of one that is gone nothing is told"
        assert not lookout.unwell
        lookout.stop()
        runtime.vigil.close()


async def test_rubbish_in_the_file_harms_nobody(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, heart):
        (file,) = beats(tmp_path / "r")
        vigil = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        heart._stopping.set()
        heart._thread.join()
        for data in (b"", b"\0", b"\xff" * 40, os.urandom(40), b"x" * 100_000, b"chbeat1\n"):
            file.write_bytes(data)
            assert vigil.of(runtime.address, time.monotonic() + 1.0).well
        file.unlink()
        os.mkfifo(file)
        another = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        assert another.well(runtime.address), "and a pipe blocks nobody"
        another.close()
        file.unlink()
        file.symlink_to("/dev/zero")
        link = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        assert link.well(runtime.address)
        link.close()
        vigil.close()


async def test_a_full_disk_costs_the_beats_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        async with beating(tmp_path / "r"):
            assert not beats(tmp_path / "r")
    (record,) = caplog.records
    assert "No space left" in record.getMessage()


async def test_a_disk_that_fails_later_makes_nobody_look_frozen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beating(tmp_path / "r") as (runtime, _):

        def broken(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        (file,) = beats(tmp_path / "r")
        monkeypatch.setattr(os, "pwrite", broken)
        await wait_until(lambda: file.stat().st_size == 0, PATIENCE, "the file is cut")
        vigil = Vigil(str(tmp_path / "r"), 1.5, stranger(runtime.address))
        assert vigil.of(runtime.address, time.monotonic() + 60).well
        vigil.close()
    assert [each.getMessage() for each in caplog.records if "Input/output" in each.getMessage()]


async def test_what_a_killed_one_leaves_behind_is_removed_with_its_inboxes(tmp_path: Path) -> None:
    run = tmp_path / "r"
    async with beating(run) as (runtime, heart):
        heart._stopping.set()
        heart._thread.join()
        assert beats(run)
        remove_inboxes(str(run), runtime.address)
        assert not beats(run)


async def test_who_is_not_asked_about_is_forgotten(tmp_path: Path) -> None:
    async with beating(tmp_path / "r") as (runtime, _):
        before = len(os.listdir("/proc/self/fd"))
        vigil = Vigil(str(tmp_path / "r"), 3.0, stranger(runtime.address))
        now = time.monotonic()
        assert vigil.of(runtime.address, now).well
        assert len(os.listdir("/proc/self/fd")) == before + 1
        other = runtime.address._replace(incarnation=5)
        assert vigil.of(other, now + 60).well
        assert len(os.listdir("/proc/self/fd")) == before
        vigil.close()


@pytest.mark.parametrize(("code", "state"), [("time.sleep(60)", IDLE), ("while 1: 0", RUNNING)])
def test_how_a_process_is(code: str, state: str) -> None:
    command = [sys.executable, "-S", "-c", f"import time\n{code}"]
    with subprocess.Popen(command) as child:
        try:
            wait_until_sync(lambda: _state(child.pid) == state, PATIENCE, state)
            child.send_signal(signal.SIGSTOP)
            wait_until_sync(lambda: _state(child.pid) == STOPPED, PATIENCE, "stopped")
        finally:
            child.kill()
        wait_until_sync(lambda: _state(child.pid) is None, PATIENCE, "a zombie is gone")
    assert process_of(1 << 30) is None


def test_b17_under_another_proc_a_stopped_process_is_seen_as_such() -> None:
    require_root("a PID namespace of its own")
    code = (
        "import os, signal, subprocess, time\n"
        "from actors.kernel.beats import process_of\n"
        "with subprocess.Popen(['sleep', '60']) as child:\n"
        "    child.send_signal(signal.SIGSTOP)\n"
        "    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)\n"
        "    print(process_of(child.pid).state)\n"
        "    child.kill()\n"
        "print(process_of(child.pid))\n"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [STOPPED, "None"]


def test_who_cannot_be_looked_at_for_want_of_a_descriptor_is_not_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        with no_descriptors():
            assert _state(child.pid) == HIDDEN
        child.kill()


def _state(pid: int) -> str | None:
    found = process_of(pid)
    return None if found is None else found.state
