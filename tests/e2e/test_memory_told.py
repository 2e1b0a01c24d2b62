"""What ``callhome ps --memory`` tells of a node's shared memory while it is in use."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from actors import Client, NodeSpec, Settings
from tests.e2e.frame_engines import ECHO, WAITS
from tests.e2e.frames import memory_of, wait_free
from tests.e2e.standing import Standing, standing
from tests.waiting import LONG, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    """An engine whose arena of 4 slots is soon full, and one that makes no frames."""
    settings = Settings.load(arena_step=MIB, arena_limit=4 * MIB)
    with standing(NodeSpec(engines=[WAITS, ECHO], settings=settings)) as found:
        yield found


async def test_ps_tells_who_holds_which_memory_for_how_long(node: Standing) -> None:
    async with node.client() as client:
        me = client.runtime.address
        async with client.stream("m.waits.go", {"n": 9, "size": MIB}, timeout=LONG) as items:
            kept = [await anext(items) for _ in range(3)]
            assert kept
            await wait_until(lambda: full(client), what="no frame finds room any more")
            found = await asyncio.to_thread(ps, node.name, "--json")
            (line,) = found.splitlines()
            actors = {each["name"]: each for each in json.loads(line)["actors"]}
            leases = [each for each in actors["waits"]["leases"] if each["actor"] == me.name]
            assert len(leases) >= 3
            assert {(each["pid"], each["size"]) for each in leases} == {(os.getpid(), MIB)}
            assert all(each["age"] >= 0 and each["stream"] for each in leases)
            assert {each["kind"] for each in actors["waits"]["segments"]} == {"memfd"}
            assert sum(each["used"] for each in actors["waits"]["segments"]) == 4 * MIB
            assert actors["echo"]["limit"] == 4 * MIB
            shown = await asyncio.to_thread(ps, node.name)
            assert f"{me.name} (pid {me.pid})" in shown
            assert "lent to" in shown
            assert "waiting for" in shown
            borrowed = [each for each in client.memory()["borrowed"] if each["actor"] == "waits"]
            assert borrowed[0]["frames"] == 3
            assert borrowed[0]["size"] == 3 * MIB
            assert borrowed[0]["pid"] == node.pids["waits"]
            kept.clear()
        await wait_free(client, "waits")


async def test_ps_is_bounded_however_many_frames_there_are(node: Standing) -> None:
    async with node.client() as client:
        async with client.stream("m.waits.go", {"n": 400, "size": 64}, timeout=LONG) as items:
            kept = [frame async for frame in items]
        assert len(kept) == 400
        lines = (await asyncio.to_thread(ps, node.name)).splitlines()
        assert sum("lent to" in line for line in lines) == 200
        assert lines[-1].startswith("and 200 more")
        kept.clear()
        await wait_free(client, "waits")


async def full(client: Client) -> bool:
    """Whether all slots of the engine are in use, and it waits for one."""
    found = await memory_of(client, "waits")
    return sum(each["used"] for each in found["segments"]) == 4 * MIB and bool(found["waiting"])


def ps(cluster: str, *options: str) -> str:
    command = [sys.executable, "-m", "actors", "ps", "--memory", "--cluster", cluster, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
