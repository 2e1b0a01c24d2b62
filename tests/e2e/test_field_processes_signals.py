"""Field reports on how a launcher ends: killed, interrupted, hung up, as the first process of a
container, by the loss of what it was there for. Nothing of it is ever left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.folder import folders
from tests.cli.tool import Tool, Up, up
from tests.leaks import MARKER, our_processes
from tests.waiting import PATIENCE, require_root, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
LONG = 6 * PATIENCE

#: A launcher with two engines that have a process of their own each, and frames in use.
LAUNCHER = """
import asyncio, json, sys
from actors import Cluster, EngineSpec, NodeSpec, Settings

async def main():
    engines = [EngineSpec("t.keeper.go", "tests.e2e.process_engines:Keeper", replicas=2),
               EngineSpec("t.counts.go", "tests.e2e.process_engines:Counts")]
    spec = NodeSpec(engines=engines, listen="127.0.0.1:0", settings=Settings.load(drain_limit=60.0))
    async with Cluster(spec, cluster="signals") as cluster, cluster.client() as client:
        pids = [cluster.nodes[0].address.pid, *(each.pid for each in cluster.nodes[0].children)]
        for record in client.records():
            if record.endpoint == "t.keeper.go":
                pids += await client.call("t.keeper.go", None, instance=record.instance)
        frames = [client.frames.new((1000,), "u1") for _ in range(10)]
        stream = client.stream("t.counts.go", {})
        await stream.__aenter__()
        print(json.dumps([sorted(set(pids)), cluster.nodes[0].listen]), flush=True)
        async for item in stream:
            pass

asyncio.run(main())
"""


def run_root() -> str:
    return os.environ["CALLHOME_RUN"]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def nothing_left(pids: list[int], listen: str, limit: float = PATIENCE) -> None:
    """No process, no file, nobody who listens."""
    wait_until_sync(lambda: not any(map(runs, pids)), limit, "all processes are gone")
    wait_until_sync(lambda: folders(run_root()) == [], limit, "the run folder is empty")
    port = int(listen.rpartition(":")[2])
    sockets = Path("/proc/net/tcp").read_text()
    assert f":{port:04X} 00000000:0000 0A" not in sockets
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("callhome")]


@contextlib.contextmanager
def launcher(**options: Any) -> Iterator[tuple[subprocess.Popen[str], list[int], str]]:
    """A launcher script whose cluster is up, its processes, and where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **{"stderr": subprocess.PIPE, **options},
    )
    try:
        assert process.stdout is not None
        pids, listen = json.loads(process.stdout.readline())
        assert len(pids) == 1 + 1 + 1 + 2 * 2 + 1
        yield process, pids, listen
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_b48_a_launcher_that_is_killed_leaves_nothing(number: int) -> None:
    with launcher() as (process, pids, listen):
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number
        nothing_left(pids, listen)


def test_b48_a_node_that_is_killed_leaves_nothing_of_its_actors() -> None:
    with launcher() as (process, pids, listen):
        os.kill(
            json.loads((Path(folders(run_root())[0]) / "node.json").read_text())["address"][2],
            signal.SIGKILL,
        )
        assert process.wait(LONG) == 1  # its stream has broken
        nothing_left(pids, listen)


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
        assert process.wait(PATIENCE) == -signal.SIGHUP
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


@pytest.mark.parametrize("gap", [None, 0.05])
def test_b54_ctrl_c_once_and_twice_leaves_nothing(gap: float | None) -> None:
    with launcher(start_new_session=True) as (process, pids, listen):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the whole group
        if gap is not None:
            time.sleep(gap)  # between the two signals of an impatient hand
            os.killpg(process.pid, signal.SIGINT)
        process.wait(LONG)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        nothing_left(pids, listen)


KEEPER = """
[settings]
drain_limit = 60.0
start_timeout = 30.0
[[engines]]
endpoint = "t.counts.go"
engine = "tests.e2e.process_engines:Counts"
"""


def toml(folder: Path, *tables: str) -> str:
    path = folder / "node.toml"
    path.write_text("\n".join([KEEPER, *tables]))
    return str(path)


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


@pytest.mark.parametrize("after", [0.0, 0.25, 0.6])
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


def mine() -> list[str]:
    return [what for _, what in our_processes(os.environ[MARKER]) if "callhome:" in what]


def essential(code: str) -> str:
    return f"""
[[actors]]
name = "core"
actor = "tests.e2e.process_engines:Breaks"
args = {{ file = "/dev/null", life = 1.5, code = {code} }}
restart = "never"
essential = true
"""


@pytest.mark.parametrize("code", [9, 7])
def test_b152_b156_a_node_ends_with_the_exit_code_of_an_essential_actor(
    tool: Tool, tmp_path: Path, code: int
) -> None:
    # The caller is in the process group of what it has started, and survives its end.
    spec = toml(tmp_path, essential(str(code)))
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
    assert found.stdout == f"code {code}\n", found.stderr
    assert f"core is essential: the node stops, with exit code {code}" in found.stderr
    assert f"ended by itself: exit code {code}" in found.stderr
    assert folders(run_root()) == []


SCRIPT = """
import asyncio, sys
from actors import ActorSpec, Cluster, NodeSpec

async def main():
    core = ActorSpec("core", "tests.e2e.process_engines:Shot", restart="never", essential=True)
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


@pytest.mark.parametrize("how", ["up", "script"])
def test_b64_the_first_process_reaps_and_hears_sigterm(
    tool: Tool, tmp_path: Path, how: str
) -> None:
    require_root("a PID namespace of its own")
    command = [sys.executable, "-c", LAUNCHER]
    if how == "up":
        keeper = (
            '[[engines]]\nendpoint = "t.keeper.go"\nengine = "tests.e2e.process_engines:Keeper"'
        )
        command = [sys.executable, "-m", "actors", "up", toml(tmp_path, keeper)]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["unshare", "-pf", "--kill-child", "--mount-proc", *command],
            env=tool.environ,
            cwd=ROOT,
            stdout=file,
            stderr=file,
        )
    try:
        word = "try, from another shell" if how == "up" else "]"
        wait_until_sync(lambda: word in log.read_text() or process.poll() is not None, LONG)
        assert process.poll() is None, log.read_text()
        (first,) = children(process.pid)
        engines = [pid for pid in descendants(first) if "t.keeper.go" in command_line(pid)]
        assert engines
        for engine in engines:
            kept = descendants(engine)
            os.kill(engine, signal.SIGKILL)
            wait_until_sync(partial(unknown, kept), what="they are reaped")
        zombies = [pid for pid in descendants(first) if not runs(pid)]
        wait_until_sync(partial(unknown, zombies), what="no zombie stays")
        began = time.monotonic()
        os.kill(first, signal.SIGTERM)
        code = process.wait(LONG)
        assert code == (0 if how == "up" else 143), log.read_text()
        assert time.monotonic() - began < LONG
    finally:
        process.kill()
        process.wait()
    wait_until_sync(lambda: folders(run_root()) == [], what="the run folder is empty")


def unknown(pids: list[int]) -> bool:
    """Whether there is no trace of them, zombies neither."""
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def children(pid: int) -> list[int]:
    text = ""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            text += Path(f"/proc/{pid}/task/{task}/children").read_text()
    return list(map(int, text.split()))


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
