"""A client that shares the run folder of a node but not its PID, mount or user namespace: frames
pass, and the death of either side is seen, though no pid means anything to the other.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import NodeSpec
from actors.client import Client
from actors.cluster.launcher import find_node
from tests.e2e.engines import PART
from tests.e2e.standing import Standing, standing
from tests.waiting import LONG, require_root, wait_until

ROOT = Path(__file__).parents[2]
GO = "t.part.go"
#: How long a process of a loaded machine may take, in seconds.
SLOW = LONG
#: What is put before a program, and how each side then reaches the other's memory.
PLACES = {
    "pid": (["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"], "socket", "socket"),
    "bare pid": (["unshare", "--pid", "--fork", "--kill-child"], "socket", "socket"),
    "user": (["unshare", "--user"], "socket", "proc"),
    "mapped user": (["unshare", "--user", "--map-root-user"], "socket", "proc"),
}
OWN_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    require_root("namespaces of its own")
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare (util-linux)")
    with standing(NodeSpec(engines=[PART])) as found:
        yield found


def program(place: list[str], node: Standing, *arguments: str) -> subprocess.Popen[str]:
    folder = find_node(node.name).folder
    return subprocess.Popen(
        [*place, sys.executable, "-m", "tests.e2e.far", folder, GO, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def exchanged(place: list[str], node: Standing, count: int = 5) -> dict[str, Any]:
    """What the program tells after ``count`` frames each way."""
    process = program(place, node, str(count))
    out, errors = process.communicate(timeout=SLOW)
    assert process.returncode == 0, errors
    assert errors == ""
    found: dict[str, Any] = json.loads(out)
    assert found["frames"] == count
    return found


@contextmanager
def holding(place: list[str], node: Standing) -> Iterator[subprocess.Popen[str]]:
    """A program with a stream and two frames of the engine in its hands."""
    process = program(place, node, "0", "hold")
    try:
        assert told(process) == {"open": 2}
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of the program."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=SLOW)[1]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_frames_pass_between_namespaces(node: Standing, place: str) -> None:
    before, reads, read = PLACES[place]
    found = exchanged(before, node)
    assert (found["reads"], found["read"]) == ([reads], read)
    assert bool(found["space"]) == ("pid" in place)


def test_b07_a_consumer_with_its_own_dev_shm_gets_its_first_frame(node: Standing) -> None:
    found = exchanged(OWN_SHM, node)
    assert (found["reads"], found["read"]) == (["proc"], "proc")


async def slots(client: Client) -> int:
    found = await client.call(GO, {"do": "memory"}, timeout=SLOW)
    return int(found["slots"])


async def two_held(client: Client) -> bool:
    """Those of ``holding`` are held, and what tests before have used came back."""
    return await slots(client) == 2


async def test_the_death_of_a_client_of_another_pid_namespace_is_seen(node: Standing) -> None:
    async with node.client() as client:
        with holding(PLACES["pid"][0], node) as process:
            await wait_until(lambda: two_held(client), SLOW, "two frames are held")
            process.send_signal(signal.SIGKILL)

            async def over() -> bool:
                seen = await client.call(GO, {"do": "look", "of": "far"}, timeout=SLOW)
                return bool(seen["ended"]) and not await slots(client)

            await wait_until(over, SLOW, "the stream of the dead ended, its frames came back")
        folder = find_node(node.name).folder
        own = client.runtime.address.name

        def swept() -> bool:
            left = [each for each in os.listdir(folder) if each.startswith("client-")]
            return all(each.startswith(own) for each in left)

        await wait_until(swept, SLOW, "the sockets of the dead are removed")


async def test_a_client_of_another_pid_namespace_sees_a_death(node: Standing) -> None:
    with standing(NodeSpec(engines=[PART])) as other:
        with holding(PLACES["pid"][0], other) as process:
            os.kill(other.pids["part"], signal.SIGKILL)
            found = told(process)
        assert found["error"] == "PeerLost"
        assert "SIGKILL" in found["words"]


async def test_a_stopped_peer_of_another_pid_namespace_is_not_dead(node: Standing) -> None:
    async with node.client() as client:
        with holding(PLACES["pid"][0], node) as process:
            (inner,) = _children(process.pid)
            os.kill(inner, signal.SIGSTOP)
            try:
                await wait_until(lambda: two_held(client), SLOW, "two frames are held")
                for _ in range(20):
                    assert await slots(client) == 2
            finally:
                os.kill(inner, signal.SIGCONT)
            assert process.poll() is None


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
