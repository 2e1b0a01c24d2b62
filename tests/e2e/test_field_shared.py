"""Field reports on shared memory between deployments: neighbours, equal pids, other users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.folder import Claim, remove_folder
from actors.cluster.sweep import sweep_stale
from tests.waiting import LONG, require_root, wait_until_sync

ROOT = Path(__file__).parents[2]
SHM = "/dev/shm"
#: Both nodes are called so: nothing but what is random tells their files apart.
CLUSTER = "twin"
SPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Twin:
    """A node of ``tests.e2e.twin`` in a PID namespace of its own, so that its pids repeat."""

    def __init__(self, run: Path, seed: int) -> None:
        self.process = subprocess.Popen(
            [*SPACE, sys.executable, "-m", "tests.e2e.twin", str(run), CLUSTER, str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids: tuple[int, int] = (0, 0)

    def wait_ready(self) -> None:
        found = self.told()
        self.pids = (found["ready"], found["engine"])

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=LONG)[1]
        found: dict[str, Any] = json.loads(line)
        return found

    def send(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"frames {count}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """In order."""
        _, errors = self.process.communicate(timeout=LONG)
        assert self.process.returncode == 0, errors

    def kill(self) -> None:
        """SIGKILL to all that it has started."""
        self.process.kill()  # --kill-child: the namespace ends with its first process
        self.process.communicate()


def ours() -> set[str]:
    """Folders of such nodes in /dev/shm."""
    return {name for name in os.listdir(SHM) if f"-{CLUSTER}-" in name}


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[list[Twin]]:
    require_root("PID namespaces of its own")
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare (util-linux)")
    # Short: a socket's path has 107 bytes.
    roots = [Path(os.environ["CALLHOME_RUN"], f"twin{number}") for number in range(2)]
    found: list[Twin] = []
    try:
        for _ in range(5):  # threads have pids, too: which comes first is a matter of luck
            found = [Twin(root, 10 + number) for number, root in enumerate(roots)]
            for each in found:
                each.wait_ready()
            if found[0].pids == found[1].pids:
                break
            for each in found:
                each.stop()
        yield found
    finally:
        for each in found:
            each.kill()
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)


def test_b19_equal_pids_and_equal_names_share_nothing(twins: list[Twin]) -> None:
    one, other = twins
    assert one.pids == other.pids  # inside
    for each in twins:
        each.send(100)
    assert [each.told() for each in twins] == [{"frames": 105}, {"frames": 105}]
    both = ours()
    assert len(both) == 2
    one.stop()
    left = ours()
    assert len(left) == 1 < len(both)
    other.send(10)  # and the five that it held all the time
    assert other.told() == {"frames": 15}
    other.stop()
    assert not ours()


def test_b16_a_start_sweeps_the_dead_and_no_living_neighbour(
    twins: list[Twin], tmp_path: Path
) -> None:
    dead, neighbour = twins
    both = ours()
    dead.kill()
    assert ours() == both  # nobody was left to remove them
    third = Twin(Path(os.environ["CALLHOME_RUN"], "twin0"), 12)
    try:
        wait_until_sync(lambda: len(ours() & both) == 1, LONG, "the leftovers are gone")
        third.wait_ready()
        neighbour.send(10)
        assert neighbour.told() == {"frames": 15}
        assert len(ours() & both) == 1
        third.stop()
        neighbour.stop()
    finally:
        third.kill()


_OTHER_USER = """
import sys
from actors import connect
from actors.client import read_node
from actors.errors import CallHomeError
import asyncio, json, os
asyncio.new_event_loop().close()
os.setuid(65534)
for what, where in ((lambda: connect(run=sys.argv[1]), 0), (lambda: read_node(sys.argv[2]), 1)):
    try:
        what()
    except CallHomeError as error:
        print(type(error).__name__, error)
"""


def test_b20_another_user_is_told_the_path_and_both_users(tmp_path: Path) -> None:
    require_root("processes of two users")
    root = Path("/tmp", f"ch-b20-{os.getpid():x}")
    claim = Claim(str(root), "demo", "a")
    try:
        os.chmod(root, 0o755)
        command = [sys.executable, "-c", _OTHER_USER, str(root), claim.folder]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["SpecError", "ActorDead"]
        for line in lines:
            assert f"'{root}/demo' belongs to uid 0, this process runs as uid 65534" in line
        for folder, _, files in os.walk(claim.folder):
            assert os.stat(folder).st_mode & 0o777 == 0o700
            assert all(os.stat(Path(folder, each)).st_mode & 0o777 == 0o600 for each in files)
    finally:
        claim.close()
        shutil.rmtree(root)


def test_b20_leftovers_of_another_user_stop_no_start(tmp_path: Path) -> None:
    require_root("files of another user")
    stale = Path(SHM, f"callhome-{os.geteuid()}-demo-a-0123456789abcdef")
    theirs = tmp_path / "run" / "demo" / "a"
    for folder in (stale, theirs):
        folder.mkdir(parents=True)
        (folder / "lock").touch(0o600)
        for each in (folder, folder / "lock"):
            os.chown(each, 65534, 65534)
    try:
        os.chown(theirs.parent, 65534, 65534)
        claim = Claim(str(tmp_path / "run"), "mine", "a")
        sweep_stale(str(tmp_path / "run"))
        claim.close()
        remove_folder(claim.folder)
        assert stale.exists()  # not ours to remove, and in nobody's way
    finally:
        shutil.rmtree(stale)
