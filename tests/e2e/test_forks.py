"""Forks that come back to what is their parent's: the loop of an actor, the block of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Cluster, Context, EngineSpec, NodeSpec
from tests.waiting import DEADLINE, LONG, wait_until

ROOT = Path(__file__).resolve().parents[2]
GO, SYNC = "t.fork.go", "t.fork.sync"


async def go(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Forks, and both go on as if nothing had been."""
    child = os.fork() if request == "fork" else 0
    yield child
    yield os.getpid()


def sync(request: Any, ctx: Context) -> Iterator[Any]:
    """The same in a thread."""
    child = os.fork() if request == "fork" else 0
    yield child
    yield os.getpid()


async def test_a_fork_that_comes_back_to_the_loop_of_its_engine_ends() -> None:
    engines = [EngineSpec(GO, go), EngineSpec(SYNC, sync)]
    async with Cluster(NodeSpec(engines=engines)) as cluster, cluster.client() as client:
        for endpoint in (GO, SYNC):
            pid = client.ref(endpoint).address.pid
            async with client.stream(endpoint, "fork", timeout=DEADLINE) as items:
                child, parent = [item async for item in items]
            assert child
            assert parent == pid
            await wait_until(lambda child=child: ended(child), LONG, "the fork ends")
            async with client.stream(endpoint, "", timeout=DEADLINE) as items:
                assert [item async for item in items] == [0, pid]


def ended(pid: int) -> bool:
    """It is a zombie that its parent has not asked for, or gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


BLOCK = """
import asyncio, os, sys, time
from actors import Cluster, EngineSpec, NodeSpec, connect

async def main():
    async with Cluster(NodeSpec(engines=[EngineSpec("t.fork.go", "tests.e2e.test_forks:go")])) as c:
        async with {client} as client:
            child = os.fork()
            if not child:
                {what}
            else:
                deadline = time.monotonic() + 60
                code = None
                while code is None and time.monotonic() < deadline:
                    pid, status = os.waitpid(child, os.WNOHANG)
                    code = os.waitstatus_to_exitcode(status) if pid else None
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(int)  # the loop can be woken by threads still
                async with client.stream("t.fork.go", "") as items:
                    assert [item async for item in items][0] == 0
                print("code", code)
    print("left", flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("what", "code", "client"),
    [
        ("raise SystemExit(7)", 7, "c.client()"),
        ("raise ValueError('in the fork')", 1, "c.client()"),
        ("pass", 1, "c.client()"),
        ("sys.exit()", 0, "connect(f'tcp://{c.nodes[0].listen}')"),
    ],
)
def test_a_fork_that_leaves_the_block_ends_and_the_cluster_stays(
    tmp_path: Path, what: str, code: int, client: str
) -> None:
    script = tmp_path / "forking.py"
    text = BLOCK.replace("{what}", what).replace("{client}", client)
    if "tcp" in client:
        text = text.replace('")]))', '")], listen="127.0.0.1:0"))')
    script.write_text(text)
    found = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * LONG,
        check=False,
    )
    assert found.stdout == f"code {code}\nleft\n", found.stderr
    assert found.returncode == 0, found.stderr
    assert ("is a fork of" in found.stderr) == (code == 1)
    assert ("in the fork" in found.stderr) == ("ValueError" in what)
