"""Field reports on the first process of a container (pid 1), which nobody reaps for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from actors.cluster.folder import folders
from tests.cli.tool import Tool
from tests.e2e.launchers import (
    LAUNCHER,
    ROOT,
    children,
    command_line,
    descendants,
    kept,
    run_root,
    runs,
    toml,
    unknown,
)
from tests.waiting import LONG, require_root, wait_until_sync


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """The command, in the run folder of the tests."""
    return Tool(run_root())


@pytest.mark.parametrize("how", ["up", "script"])
def test_b64_the_first_process_reaps_and_hears_sigterm(
    tool: Tool, tmp_path: Path, how: str
) -> None:
    require_root("a PID namespace of its own")
    command = [sys.executable, "-c", LAUNCHER]
    if how == "up":
        command = [sys.executable, "-m", "actors", "up", toml(tmp_path, kept())]
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
        engines = [pid for pid in descendants(first) if "keeper" in command_line(pid)]
        assert engines
        for engine in engines:
            theirs = descendants(engine)
            os.kill(engine, signal.SIGKILL)
            wait_until_sync(partial(unknown, theirs), what="they are reaped")
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


LEAVES = """
import asyncio, os, signal
from actors import ActorSpec, Cluster, NodeSpec

async def main():
    async with Cluster(NodeSpec(actors=[ActorSpec("a", "tests.cluster.workers:Counter")])):
        assert os.getpid() == 1
        asyncio.get_running_loop().call_soon(os.kill, 1, signal.SIGTERM)

asyncio.run(main())
"""


def test_b64_sigterm_to_the_first_process_as_it_leaves_the_block() -> None:
    require_root("a PID namespace of its own")
    found = subprocess.run(
        ["unshare", "-pf", "--kill-child", "--mount-proc", sys.executable, "-c", LEAVES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert found.returncode == 143, found.stderr
    assert "Traceback" not in found.stderr
    wait_until_sync(lambda: folders(run_root()) == [], what="the run folder is empty")
