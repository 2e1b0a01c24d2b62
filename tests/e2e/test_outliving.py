"""Arrays that a program keeps beyond the end of its client."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Client, NodeSpec, Settings
from actors.errors import MemoryExhausted
from tests.e2e.frame_engines import ECHO, WAITS, check
from tests.e2e.frames import memory_of
from tests.e2e.standing import Standing, standing
from tests.waiting import LONG, wait_until

MIB = 1 << 20
#: 16 slots of 1 MiB.
SETTINGS = Settings.load(arena_step=16 * MIB, arena_limit=16 * MIB)
SIZE = MIB - 4096


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(engines=[WAITS, ECHO], settings=SETTINGS)) as found:
        yield found


async def take(client: Client, count: int) -> list[np.ndarray[Any, Any]]:
    """Arrays of so many frames of an engine, numbered from 0."""
    request = {"n": count, "size": SIZE}
    async with client.stream("m.waits.go", request, timeout=LONG) as items:
        return [each.array async for each in items]


async def lent(client: Client) -> list[dict[str, Any]]:
    """What the engine lends."""
    found: list[dict[str, Any]] = (await memory_of(client, "waits"))["leases"]
    return found


async def lends(client: Client, count: int) -> bool:
    """Whether the engine lends so many frames."""
    return len(await lent(client)) == count


def left_files(client: Client) -> list[Path]:
    return list(Path(client.runtime.run).glob("*.v"))


def keeping(program: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_b05_arrays_outlive_their_client_unchanged_and_go_back_with_the_last(
    node: Standing,
) -> None:
    async with node.client() as watcher:
        async with node.client() as client:
            kept = await take(client, 4)
            del kept[3]  # let go of before the end
        for _ in range(5):
            async with node.client() as other:
                for _ in range(2):
                    await take(other, 8)
        for number, array in enumerate(kept):
            check(array, number)
        await wait_until(lambda: lends(watcher, 3), what="what the others took came back")
        leases = await lent(watcher)
        assert {each["pid"] for each in leases} == {os.getpid()}
        assert len(left_files(watcher)) == 1
        part = kept[1][10:20]
        del kept, array
        gc.collect()
        await asyncio.sleep(0)
        assert len(await lent(watcher)) == 3
        assert part[-1] == 1
        del part

        await wait_until(lambda: lends(watcher, 0), what="all leases came back")
        await wait_until(lambda: not left_files(watcher), what="no file is left")


async def test_clients_that_are_opened_and_closed_all_the_time_leak_nothing(
    node: Standing,
) -> None:
    async with node.client() as watcher:
        for _ in range(12):
            async with node.client() as client:
                arrays = await take(client, 4)  # those before are let go of now
            for number, array in enumerate(arrays):
                check(array, number)
        del arrays, array

        await wait_until(lambda: lends(watcher, 0), what="all leases came back")
        await wait_until(lambda: not left_files(watcher), what="no file is left")


async def test_what_a_closed_client_keeps_is_named_when_there_is_no_room(node: Standing) -> None:
    async with node.client() as client:
        kept = await take(client, 16)
    async with node.client() as client:
        with pytest.raises(MemoryExhausted, match="which has closed, in arrays that it keeps"):
            await client.call("m.waits.go", {"n": 1, "size": SIZE, "patience": 0.5}, timeout=LONG)
        del kept
        assert len(await take(client, 16)) == 16


async def test_what_a_program_kept_comes_back_when_it_is_killed(node: Standing) -> None:
    async with node.client() as watcher:
        program = f"""
import asyncio, sys, time
from actors import connect
async def main():
    async with connect({node.name!r}) as client:
        async with client.stream("m.waits.go", {{"n": 5, "size": {SIZE}}}) as items:
            return [each.array async for each in items]
kept = asyncio.run(main())
print(len(kept), flush=True)
sys.stdin.read()
"""
        process = keeping(program)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert int(line) == 5
            await take(watcher, 11)
            assert len([each for each in await lent(watcher) if each["pid"] == process.pid]) == 5
            process.send_signal(signal.SIGKILL)

            await wait_until(lambda: lends(watcher, 0), what="all leases came back")
            await wait_until(lambda: not left_files(watcher), what="no file is left")
        finally:
            process.kill()
            process.communicate()
