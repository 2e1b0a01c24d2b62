"""What a crashed node left is removed, and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from actors.cluster.folder import Claim, NodeInfo, remove_folder, write_info
from actors.cluster.force import Force
from actors.cluster.roll import Roll, read_roll
from actors.cluster.sweep import sweep_claimed, sweep_dead, sweep_folder, sweep_stale
from actors.kernel.peers import start_time
from actors.kernel.space import own_space
from actors.kernel.spawn import Child, Launch
from tests.waiting import LONG
from transport.bus.address import Address

DEAD = Address("node", 1, os.getpid(), 1)  # our pid, another start time


def sleeper() -> tuple[subprocess.Popen[bytes], Address]:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    return process, Address("engine", 2, process.pid, start_time(process.pid))


def crashed(root: str, name: str, *children: Address) -> Claim:
    claim = Claim(root, "demo", name)
    write_info(NodeInfo("demo", name, claim.folder, DEAD, children))
    lines = [f"{own_space()} {each.pid} {each.started}\n" for each in children]
    Path(claim.folder, "children").write_text("".join(lines))
    Path(claim.folder, "engine.2.d").touch()
    return claim


def test_processes_and_files_of_a_dead_node_go(tmp_path: Path) -> None:
    process, address = sleeper()
    claim = crashed(str(tmp_path), "a", address)
    claim.close()
    lines = sweep_stale(str(tmp_path))
    assert process.wait(10) == -9
    assert process.stdin is not None
    process.stdin.close()
    assert not os.path.exists(claim.folder)
    assert any(f"process {process.pid}" in line for line in lines)
    assert any(claim.folder in line for line in lines)
    assert sweep_stale(str(tmp_path)) == []


def test_a_pid_that_was_given_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    process, address = sleeper()
    crashed(str(tmp_path), "a", address._replace(started=address.started - 1)).close()
    sweep_stale(str(tmp_path))
    assert process.poll() is None
    process.communicate(b"\n", timeout=10)
    assert process.returncode == 0


def test_a_living_node_is_left_alone(tmp_path: Path) -> None:
    claim = crashed(str(tmp_path), "a")
    assert sweep_stale(str(tmp_path)) == []
    assert Path(claim.folder, "engine.2.d").exists()
    claim.close()
    remove_folder(claim.folder)


async def end(folder: str) -> None:
    Force(Child(Launch(spec={"name": "a"})), folder).end()


def test_whoever_ends_a_node_waits_for_a_fork_of_it_that_has_its_lock_yet(tmp_path: Path) -> None:
    left, address = sleeper()
    claim = crashed(str(tmp_path), "a", address)
    fork = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(claim.fd,))
    claim.close()
    try:
        assert sweep_stale(str(tmp_path)) == []  # somebody else's may as well be alive
        assert fork.stdin is not None
        threading.Timer(0.1, fork.stdin.close).start()
        asyncio.run(end(claim.folder))
        assert list(tmp_path.iterdir()) == []
        assert left.wait(LONG) == -9
    finally:
        for process in (left, fork):
            process.kill()
            process.communicate()


def test_nobody_waits_for_the_lock_of_whoever_has_claimed_the_name_anew(tmp_path: Path) -> None:
    claim = crashed(str(tmp_path), "a")
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert sweep_dead(claim.folder, "another") == []
        took.append(time.monotonic() - began)
    assert min(took) < 2.0  # for that long it waits for its own
    claim.close()
    assert len(sweep_dead(claim.folder, str(os.getpid()))) == 4


def test_a_claimed_folder_is_emptied_but_kept(tmp_path: Path) -> None:
    claim = crashed(str(tmp_path), "a")
    lines = sweep_claimed(claim.folder)
    assert len(lines) == 3
    assert os.listdir(claim.folder) == ["lock"]
    claim.close()
    remove_folder(claim.folder)


def test_a_folder_whose_node_was_killed_as_it_removed_it_goes(tmp_path: Path) -> None:
    claim = crashed(str(tmp_path), "a")
    for name in os.listdir(claim.folder):
        os.unlink(os.path.join(claim.folder, name))
    claim.close()
    sweep_folder(claim.folder)
    assert os.listdir(tmp_path) == []


def test_the_folder_of_a_cluster_goes_whose_last_node_was_killed_as_it_removed_that(
    tmp_path: Path,
) -> None:
    claim = crashed(str(tmp_path), "a")
    claim.close()
    shutil.rmtree(claim.folder)  # and the next step would have been its cluster's
    sweep_folder(claim.folder)
    assert list(tmp_path.iterdir()) == []


def test_the_roll_stays_short_and_keeps_who_may_have_left_something(tmp_path: Path) -> None:
    claim = crashed(str(tmp_path), "a")
    roll = Roll(claim.folder)
    os.unlink(os.path.join(claim.folder, "children"))
    process, address = sleeper()
    try:
        roll.add(process.pid)
        gone = subprocess.Popen(["true"])
        gone.wait()
        for _ in range(300):
            roll.add(gone.pid)
        assert len(read_roll(claim.folder)) <= 257
        kept = [pid for pid, _ in read_roll(claim.folder)]
        assert (address.pid, address.started) in read_roll(claim.folder)
        os.unlink(os.path.join(claim.folder, "children"))
        roll.keep()
        assert [pid for pid, _ in read_roll(claim.folder)] == kept
    finally:
        process.communicate(b"\n", timeout=10)
        claim.close()
        remove_folder(claim.folder)
