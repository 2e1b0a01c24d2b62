"""What shared memory has to show, as programs: ``python -m tests.e2e.frames NAME [COUNT]``.

``flat``        resident memory of both ends over 100,000 frames, told at each tenth
``slow``        1,000 frames through an arena of 8 slots to a slow reader, each checked
``small-shm``   a 64 MiB frame through a node whose /dev/shm is a tmpfs of 1 MiB, empty and full
``torn``        200,000 frames of 256 bytes between two pinned processes, each checked

The suite runs short forms of them. Each ends with an error where something is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actors import Client, Cluster, NodeSpec, Settings
from actors.errors import MemoryExhausted
from tests.e2e.frame_engines import ECHO, THREAD, WAITS, check
from tests.waiting import DEADLINE, wait_until

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def node(*engines: Any, **settings: Any) -> AsyncIterator[tuple[Client, dict[str, int]]]:
    """A client of a node of its own, and the pids of the node's actors."""
    spec = NodeSpec(engines=list(engines), settings=Settings.load(**settings))
    async with Cluster(spec) as cluster, cluster.client() as client:
        yield client, {child.name: child.pid for child in cluster.nodes[0].children}


def resident(pid: int) -> int:
    """Resident bytes of a process that it shares with nobody: an arena is bounded, and is touched
    as far as a reader lags behind, who may be late.
    """
    _, pages, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


async def flat(count: int = 100_000, size: int = 64 << 10) -> None:
    """Frames from an engine, of which nobody keeps any."""
    async with node(WAITS, arena_step=8 * MIB, arena_limit=8 * MIB) as (client, pids):
        await keep_none(client, pids["waits"], count, size)


async def keep_none(client: Client, pid: int, count: int, size: int) -> list[tuple[int, int]]:
    """Resident bytes of engine and client at each tenth of ``count`` frames."""
    seen: list[tuple[int, int]] = []
    async with client.stream("m.waits.go", {"n": count, "size": size}, timeout=None) as frames:
        number = 0
        async for frame in frames:
            check(frame.array, number)
            del frame
            number += 1
            if number % (count // 10) == 0:
                seen.append((resident(pid), resident(os.getpid())))
                engine, reader = (mib(each) for each in seen[-1])
                tell(f"{number:>9,} frames: engine {engine}, reader {reader}")
    if number != count:
        raise ValueError(f"{number} frames came in place of {count}")
    return seen


async def slow(count: int = 1_000, size: int = MIB) -> None:
    """Frames through an arena of 8 slots, from a coroutine and from a thread."""
    async with node(WAITS, THREAD, arena_step=8 * size, arena_limit=8 * size) as (client, _):
        for name in ("waits", "thread"):
            await read_slowly(client, name, count, size, 0.002)


async def read_slowly(client: Client, name: str, count: int, size: int, pause: float) -> None:
    """Check each frame as it comes and again as long as it is kept, which half of the slots are."""
    kept: list[Any] = []
    began, number = time.monotonic(), 0
    async with client.stream(f"m.{name}.go", {"n": count, "size": size}, timeout=None) as frames:
        async for frame in frames:
            check(frame.array, number)
            kept = [*kept[-3:], frame]
            for back, each in enumerate(reversed(kept)):
                check(each.array, number - back)
            number += 1
            await asyncio.sleep(pause)
    if number != count:
        raise ValueError(f"{number} frames came in place of {count}")
    took = time.monotonic() - began
    tell(f"{count:,} frames from {name} in order, each checked, in {took:.1f} s")


async def memory_of(client: Client, name: str) -> dict[str, Any]:
    """What an actor says of its shared memory."""
    from actors.notices import InspectMemory

    found: dict[str, Any] = {}
    async with client.ref(name).stream(InspectMemory(), timeout=DEADLINE) as answers:
        async for answer in answers:
            found = answer
    return found


async def wait_free(client: Client, *names: str) -> None:
    """Wait until nobody holds a frame of these actors."""

    async def free() -> bool:
        gc.collect()
        return not any([(await memory_of(client, name))["leases"] for name in names])

    await wait_until(free, what=f"the frames of {names} are free")


async def torn(count: int = 200_000, size: int = 256) -> None:
    """Small frames between two processes that are pinned to cores of their own where there are
    two.
    """
    cores = sorted(os.sched_getaffinity(0))
    engine = WAITS if len(cores) < 2 else replace(WAITS, cpus=[cores[0]])
    try:
        async with node(engine, arena_step=MIB, arena_limit=4 * MIB) as (client, _):
            os.sched_setaffinity(0, {cores[-1]})
            began = time.monotonic()
            await read_all(client, count, size)
            rate = count / (time.monotonic() - began)
    finally:
        os.sched_setaffinity(0, cores)
    tell(f"{count:,} frames of {size} bytes, none torn, {rate:,.0f} a second")


async def read_all(client: Client, count: int, size: int) -> None:
    """Check ``count`` frames one after the other."""
    number = 0
    async with client.stream("m.waits.go", {"n": count, "size": size}, timeout=None) as frames:
        async for frame in frames:
            check(frame.array, number)
            del frame
            number += 1
    if number != count:
        raise ValueError(f"{number} frames came in place of {count}")


async def through(size: int) -> None:
    """A frame and an array of ``size`` bytes there and back, by what road there is."""
    async with node(ECHO) as (client, _):
        try:
            frame = client.frames.new(size, "u1")
        except MemoryExhausted as error:
            if Settings.load().frame_road != "file":
                raise
            tell(f"no frame, as has to be where files are prescribed: {error}")
        else:
            frame.array[:] = 7
            back = await client.call("m.echo.go", frame, timeout=60.0)
            if int(back.array.min()) != 7 or back.nbytes != size:
                raise ValueError("another frame came back")
            del back, frame
        array = np.arange(size // 8, dtype="<u8")
        if not np.array_equal(await client.call("m.echo.go", array, timeout=60.0), array):
            raise ValueError("another array came back")
        segments, room = client.memory()["segments"], os.statvfs("/dev/shm")
        left = room.f_bavail * room.f_frsize
        tell(f"{size // MIB} MiB there and back, {len(segments)} segments here, {left} bytes left")


#: Whether /dev/shm is full, by which road frames go, and their bytes.
SMALL_SHM = ((False, "auto", 64 * MIB), (True, "auto", 64 * MIB), (True, "file", 64 * MIB))


def small_shm(runs: Sequence[tuple[bool, str, int]] = SMALL_SHM) -> None:
    """``through`` in a mount namespace of its own: /dev/shm a tmpfs of 1 MiB, then a full one,
    then one in which the frames have to be.
    """
    for full, road, size in runs:
        script = "mount -t tmpfs -o size=1m tmpfs /dev/shm && "
        if full:
            script += "{ head -c 2M /dev/zero > /dev/shm/full 2>/dev/null || true; } && "
        script += f"exec {sys.executable} -m tests.e2e.frames through {size}"
        environ = os.environ | {"CALLHOME_FRAME_ROAD": road}
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=150, check=False
        )
        tell(f"full: {full}, road: {road}: {done.stdout.strip() or done.stderr.strip()}")
        if done.returncode or "Traceback" in done.stderr:
            raise ValueError(f"code {done.returncode}: {done.stderr}")


def mib(size: int) -> str:
    """Bytes for a person."""
    return f"{size / MIB:.1f} MiB"


def tell(line: str) -> None:
    """A line for whoever runs this as a program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run what the command line names, with the count that it gives."""
    name, *count = sys.argv[1:]
    numbers = [int(each.replace("_", "")) for each in count]
    if name == "small-shm":
        small_shm()
        return
    programs: dict[str, Callable[..., Coroutine[Any, Any, object]]]
    programs = {"flat": flat, "slow": slow, "torn": torn, "through": through}
    asyncio.run(programs[name](*numbers))


if __name__ == "__main__":
    main()
