"""What shared memory has to show, as programs: ``python -m tests.e2e.frames NAME [COUNT]``.

``flat``        resident memory of both ends over 100,000 frames, told at each tenth
``slow``        1,000 frames through an arena of 8 slots to a slow reader, each checked
``small-shm``   a 64 MiB frame through a node whose /dev/shm is a tmpfs of 1 MiB, empty and full
``torn``        200,000 frames of 256 bytes between two pinned processes, each checked

The suite runs short forms of them. Each ends with an error where something is wrong.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actors import Client, Cluster, NodeSpec, Settings
from actors.errors import MemoryExhausted
from tests.e2e.frame_engines import ECHO, THREAD, WAITS, check

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def node(*engines: Any, **settings: Any) -> AsyncIterator[tuple[Client, dict[str, int]]]:
    """A client of a node of its own, and the pids of the node's actors."""
    spec = NodeSpec(engines=list(engines), settings=Settings.load(**settings))
    async with Cluster(spec) as cluster, cluster.client() as client:
        yield client, {child.name: child.pid for child in cluster.nodes[0].children}


def resident(pid: int) -> int:
    """Resident bytes of a process, shared pages included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def flat(count: int = 100_000, size: int = 64 << 10) -> list[tuple[int, int]]:
    """Resident bytes of engine and client at each tenth of ``count`` frames."""
    seen: list[tuple[int, int]] = []
    async with node(WAITS, arena_step=8 * MIB, arena_limit=8 * MIB) as (client, pids):
        request = {"n": count, "size": size}
        async with client.stream("m.waits.go", request, timeout=None) as frames:
            number = 0
            async for frame in frames:
                check(frame.array, number)
                del frame
                number += 1
                if number % (count // 10) == 0:
                    seen.append((resident(pids["waits"]), resident(os.getpid())))
                    tell(f"{number:>9,} frames: engine {mib(seen[-1][0])}, reader "
                         f"{mib(seen[-1][1])}")  # fmt: skip
        if number != count:
            raise ValueError(f"{number} frames came in place of {count}")
    return seen


async def slow(count: int = 1_000, size: int = MIB, pause: float = 0.002) -> int:
    """Frames through an arena of 8 slots, from a coroutine and from a thread; how often one of
    them was seen to wait.
    """
    waited = 0
    async with node(WAITS, THREAD, arena_step=8 * size, arena_limit=8 * size) as (client, _):
        for endpoint, name in (("m.waits.go", "waits"), ("m.thread.go", "thread")):
            kept: list[Any] = []
            began, number = time.monotonic(), 0
            async with client.stream(endpoint, {"n": count, "size": size}, timeout=None) as frames:
                async for frame in frames:
                    check(frame.array, number)
                    kept = [*kept[-3:], frame]  # 4 of 8 slots are always the reader's
                    for back, each in enumerate(reversed(kept)):
                        check(each.array, number - back)
                    number += 1
                    if number % 100 == 0:
                        waited += len((await memory_of(client, name))["waiting"])
                    await asyncio.sleep(pause)
            kept.clear()
            if number != count:
                raise ValueError(f"{number} frames came in place of {count}")
            tell(f"{count:,} frames from {name} in order, each checked, in "
                 f"{time.monotonic() - began:.1f} s")  # fmt: skip
    return waited


async def memory_of(client: Client, name: str) -> dict[str, Any]:
    """What an actor says of its shared memory."""
    from actors.notices import InspectMemory

    found: dict[str, Any] = {}
    async with client.ref(name).stream(InspectMemory(), timeout=10.0) as answers:
        async for answer in answers:
            found = answer
    return found


async def torn(count: int = 200_000, size: int = 256) -> float:
    """Small frames between two processes that are pinned to cores of their own where there are
    two; frames a second.
    """
    cores = sorted(os.sched_getaffinity(0))
    engine = WAITS
    if len(cores) > 1:
        engine = replace(WAITS, cpus=[cores[0]])
    number = 0
    try:
        async with node(engine, arena_step=MIB, arena_limit=4 * MIB) as (client, _):
            os.sched_setaffinity(0, {cores[-1]})
            began = time.monotonic()
            request = {"n": count, "size": size}
            async with client.stream("m.waits.go", request, timeout=None) as frames:
                async for frame in frames:
                    check(frame.array, number)
                    del frame
                    number += 1
            rate = number / (time.monotonic() - began)
    finally:
        os.sched_setaffinity(0, cores)
    if number != count:
        raise ValueError(f"{number} frames came in place of {count}")
    tell(f"{count:,} frames of {size} bytes, none torn, {rate:,.0f} a second")
    return rate


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


def small_shm(size: int = 64 * MIB) -> None:
    """``through`` in a mount namespace of its own: /dev/shm a tmpfs of 1 MiB, then a full one,
    then one in which the frames have to be.
    """
    for full, road in ((False, "auto"), (True, "auto"), (True, "file")):
        script = "mount -t tmpfs -o size=1m tmpfs /dev/shm && "
        if full:
            script += "{ head -c 2M /dev/zero > /dev/shm/full 2>/dev/null || true; } && "
        script += f"exec {sys.executable} -m tests.e2e.frames through {size}"
        environ = os.environ | {"CALLHOME_FRAME_ROAD": road}
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        tell(f"full: {full}, road: {road}: {done.stdout.strip() or done.stderr.strip()}")
        if done.returncode or done.stderr:
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
        small_shm(*numbers)
        return
    programs: dict[str, Callable[..., Coroutine[Any, Any, object]]]
    programs = {"flat": flat, "slow": slow, "torn": torn, "through": through}
    asyncio.run(programs[name](*numbers))


if __name__ == "__main__":
    main()
