"""What tests on the end of launchers share: a launcher script, a spec, who runs, what is left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.cluster.folder import folders
from tests.leaks import MARKER, our_processes, shared
from tests.waiting import DEADLINE, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]

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


def nothing_left(pids: list[int], listen: str, limit: float = DEADLINE) -> None:
    """No process, no file, nobody who listens."""
    wait_until_sync(lambda: not any(map(runs, pids)), limit, "all processes are gone")
    wait_until_sync(lambda: folders(run_root()) == [], limit, "the run folder is empty")
    port = int(listen.rpartition(":")[2])
    sockets = Path("/proc/net/tcp").read_text()
    assert f":{port:04X} 00000000:0000 0A" not in sockets
    # The folder of another run of these tests is nobody's for a moment.
    wait_until_sync(lambda: not shared(), limit, "no shared memory is left")


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


KEEPER = """
[settings]
drain_limit = 60.0
start_timeout = 30.0
[[engines]]
endpoint = "t.counts.go"
engine = "tests.e2e.process_engines:Counts"
"""


PLAYERS = "tests.e2e.process_engines"


def kept(own: str = "") -> str:
    return f"""
[[engines]]
name = "keeper"
endpoint = "t.keeper.go"
engine = "{PLAYERS}:Keeper"
args = {{ own = "{own}" }}
"""


def toml(folder: Path, *tables: str) -> str:
    path = folder / "node.toml"
    path.write_text("\n".join([KEEPER, *tables]))
    return str(path)


def mine() -> list[str]:
    return [what for _, what in our_processes(os.environ[MARKER]) if "callhome:" in what]


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
