"""Field reports on how a launcher ends: killed, interrupted, hung up, as the first process of a
container, by the loss of what it was there for. Nothing of it is ever left.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from actors.cluster.folder import folders
from actors.cluster.sweep import sweep_stale
from tests.cli.tool import Tool, Up, up
from tests.e2e.launchers import (
    PLAYERS,
    ROOT,
    children,
    command_line,
    kept,
    launcher,
    mine,
    nothing_left,
    run_root,
    runs,
    toml,
)
from tests.waiting import LONG, wait_until_sync


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_b48_a_launcher_that_is_killed_leaves_nothing(number: int) -> None:
    with launcher() as (process, pids, listen):
        process.send_signal(number)
        assert process.wait(LONG) == -number
        nothing_left(pids, listen)


def test_b48_a_node_that_is_killed_leaves_nothing_of_its_actors() -> None:
    with launcher() as (process, pids, listen):
        os.kill(
            json.loads((Path(folders(run_root())[0]) / "node.json").read_text())["address"][2],
            signal.SIGKILL,
        )
        assert process.wait(LONG) == 1  # its stream has broken
        nothing_left(pids, listen)


@pytest.mark.parametrize("launcher_too", [False, True])
def test_b48_a_node_that_is_killed_as_it_starts_leaves_nothing(
    tool: Tool, tmp_path: Path, launcher_too: bool
) -> None:
    spec = toml(tmp_path, kept("group"), '[[actors]]\nname = "slow"', f'actor = "{PLAYERS}:Slow"')
    running = Up(tool, tmp_path / "log", spec)
    try:
        running.wait_for("keeper is ready")
        (node,) = children(running.process.pid)
        (keeper,) = [pid for pid in children(node) if "/keeper" in command_line(pid)]
        kept_ones = children(keeper)
        assert "sleep" in command_line(kept_ones[0])
        if launcher_too:
            running.process.send_signal(signal.SIGSTOP)  # it must not clean up
        os.kill(node, signal.SIGKILL)
        if launcher_too:
            wait_until_sync(lambda: not runs(node), what="the node is gone")
            running.process.kill()
            running.wait()
        else:
            assert running.wait() == 1

        def gone() -> bool:
            if launcher_too:
                sweep_stale(run_root())  # as each next start does
            return folders(run_root()) == [] and not any(map(runs, [keeper, *kept_ones]))

        wait_until_sync(gone, what="all are gone")
    finally:
        running.process.kill()
        running.process.wait()


def test_b48_all_killed_at_once_is_swept_by_the_next_start() -> None:
    with launcher() as (process, pids, _):
        node = json.loads((Path(folders(run_root())[0]) / "node.json").read_text())["address"][2]
        os.kill(process.pid, signal.SIGSTOP)  # it must not clean up
        os.kill(node, signal.SIGKILL)
        process.kill()
        process.wait()
        stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        try:
            with launcher() as (again, more, listen):
                wait_until_sync(lambda: not any(map(runs, pids)), what="the first ones are gone")
                assert runs(stranger.pid)
                again.send_signal(signal.SIGINT)
                again.wait(LONG)
                nothing_left(more, listen)
        finally:
            stranger.kill()
            stranger.wait()


def own_terminal() -> None:
    """In a child that is about to be exec'd: stdin is its terminal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_b48_a_terminal_that_closes_ends_a_script() -> None:
    master, slave = pty.openpty()
    with launcher(stdin=slave, stderr=slave, preexec_fn=own_terminal) as (process, pids, listen):
        os.close(slave)
        os.close(master)
        assert process.wait(LONG) == -signal.SIGHUP
        nothing_left(pids, listen)


def test_b48_a_terminal_that_closes_stops_up_in_order(tool: Tool, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = tool.start(
        "up", toml(tmp_path), stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal
    )
    os.close(slave)
    said = b""
    while b"try, from another shell" not in said:
        said += os.read(master, 4096)
    os.close(master)
    assert process.wait(LONG) in (0, 129)  # 129: it was still saying what to try
    wait_until_sync(lambda: folders(run_root()) == [] and not mine(), what="nothing is left")


@pytest.mark.parametrize(("times", "gap"), [(1, 0.0), (2, 0.05), (6, 0.015)])
def test_b54_ctrl_c_however_often_leaves_nothing(times: int, gap: float) -> None:
    with launcher(start_new_session=True) as (process, pids, listen):
        for _ in range(times):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the whole group
                time.sleep(gap)  # between two signals of an impatient hand
        process.wait(LONG)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        nothing_left(pids, listen)


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """The command, in the run folder of the tests."""
    return Tool(run_root())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_b54_a_second_signal_is_force(tool: Tool, tmp_path: Path, number: int) -> None:
    with up(tool, tmp_path / "log", toml(tmp_path)) as running:
        reader = tool.start("stream", "t.counts.go", "{}", stdin=subprocess.DEVNULL)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "0\n"
        began = time.monotonic()
        running.process.send_signal(number)
        running.wait_for("once more ends it by force")
        time.sleep(0.05)
        assert running.process.poll() is None  # the stream may end
        assert running.end(number) == 128 + number
        assert time.monotonic() - began < LONG
        reader.communicate(timeout=LONG)
        assert reader.returncode == 1
    wait_until_sync(lambda: folders(run_root()) == [], what="the run folder is empty")


@pytest.mark.parametrize("gap", [0.005, 0.03])
def test_b54_hammered_signals_leave_nothing(tool: Tool, tmp_path: Path, gap: float) -> None:
    with up(tool, tmp_path / "log", toml(tmp_path, kept())) as running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            running.process.send_signal(number)
            time.sleep(gap)
        running.wait()
        wait_until_sync(lambda: folders(run_root()) == [], what="the run folder is empty")
        assert "Traceback" not in running.text
    wait_until_sync(lambda: not mine(), what="no process is left")


@pytest.mark.parametrize("after", [0.0, 0.4])
def test_b54_a_signal_during_the_start_leaves_nothing(
    tool: Tool, tmp_path: Path, after: float
) -> None:
    running = Up(tool, tmp_path / "log", toml(tmp_path))
    wait_until_sync(lambda: folders(run_root()) != [], LONG)
    time.sleep(after)  # into another phase of the start each time
    assert running.end(signal.SIGTERM) in (143, 0)
    assert "Traceback" not in running.text
    wait_until_sync(lambda: folders(run_root()) == [], what="the run folder is empty")
    wait_until_sync(lambda: not mine(), what="no process is left")


def essential(code: str) -> str:
    return f"""
[[actors]]
name = "core"
actor = "tests.e2e.process_engines:Shot"
args = {{ how = "exit {code}" }}
restart = "never"
essential = true
"""


def test_b152_b156_a_node_ends_with_the_exit_code_of_an_essential_actor(
    tool: Tool, tmp_path: Path
) -> None:
    # The caller is in the process group of what it has started, and survives its end.
    spec = toml(tmp_path, essential("7"))
    script = f"{sys.executable} -m actors up {spec}; echo code $?"
    found = subprocess.run(
        ["bash", "-c", script],
        env=tool.environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        start_new_session=True,
        check=False,
    )
    assert found.returncode == 0
    assert found.stdout == "code 7\n", found.stderr
    assert "core is essential: the node stops, with exit code 7" in found.stderr
    assert "ended by itself: exit code 7" in found.stderr
    assert folders(run_root()) == []


def ignore_children() -> None:
    """In a child that is about to be exec'd: as after ``trap '' CHLD`` in a shell."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_b152_the_exit_code_is_known_where_sigchld_was_ignored(tool: Tool, tmp_path: Path) -> None:
    process = tool.start("up", toml(tmp_path, essential("9")), preexec_fn=ignore_children)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 9, said
    assert folders(run_root()) == []


SCRIPT = """
import asyncio, sys
from actors import ActorSpec, Cluster, NodeSpec

async def main():
    core = ActorSpec("core", "tests.e2e.process_engines:Shot", args={"how": "signal 11"},
                     restart="never", essential=True)
    rest = [ActorSpec(f"r{n}", "tests.cluster.workers:Counter") for n in range(3)]
    async with Cluster(NodeSpec(actors=[core, *rest])) as cluster:
        name, how = await cluster.wait_ended()
    sys.exit(how.status)

asyncio.run(main())
"""


def test_b152_a_script_hands_on_how_its_essential_actor_was_killed() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert found.returncode == 128 + signal.SIGSEGV, found.stderr
    assert folders(run_root()) == []
