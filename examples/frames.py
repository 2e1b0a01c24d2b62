"""Frames in shared memory: written in place or copied in, read-only at the reader, handed on once.

Run it from anywhere: ``python examples/frames.py``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

import numpy as np
from engines import Halve

from actors import (
    CallHomeError,
    Client,
    Cluster,
    Context,
    EngineSpec,
    Frame,
    NodeSpec,
    RouterSpec,
    Settings,
)

MIB = 1 << 20


async def describe(request: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Arrays may stand anywhere inside a request; their type does not depend on size or road."""
    picture = request["pictures"][0]
    return {
        "type": type(picture).__name__,
        "shape": list(picture.shape),
        "mean": float(picture.mean()),
        "writeable": picture.flags.writeable,
    }


async def noise(count: int, ctx: Context) -> AsyncIterator[Frame]:
    """A source: a fresh frame for every item, filled in place."""
    for number in range(count):
        frame = ctx.frames.new((1024, 1024), "uint8")
        frame.array[:] = number
        yield frame


async def film(count: int, ctx: Context) -> AsyncIterator[Frame]:
    """A source that goes no faster than its reader: it waits for room in the arena."""
    for number in range(count):
        frame = await ctx.frames.wait_new((4, 1024, 1024), "uint8", timeout=30.0)
        frame.array[:] = number
        yield frame


def film_in_a_thread(count: int, ctx: Context) -> Iterator[Frame]:
    """The same as a generator that is not async: it has a thread of its own, which may wait."""
    for number in range(count):
        frame = ctx.frames.new((4, 1024, 1024), "uint8", wait=30.0)
        frame.array[:] = number
        yield frame


NODE = NodeSpec(
    routers=[RouterSpec(place="here")],  # in this process: one hop less
    engines=[
        EngineSpec(endpoint="demo.halve.generate", engine=Halve),
        EngineSpec(endpoint="demo.describe.picture", engine=describe),
        EngineSpec(endpoint="demo.noise.generate", engine=noise),
        EngineSpec(endpoint="demo.film.play", engine=film),
        EngineSpec(endpoint="demo.film.thread", engine=film_in_a_thread),
    ],
    settings=Settings.load(arena_step=32 * MIB, arena_limit=64 * MIB),
)


async def in_place(client: Client) -> None:
    """The fast road: no copy at all."""
    image = client.frames.new((1080, 1920, 3), "uint8")
    image.array[:] = 14
    async with client.stream("demo.halve.generate", image) as frames:
        async for frame in frames:
            with frame:
                print(f"in place: {frame.dtype} {frame.shape}, largest {int(frame.array.max())}")
    try:
        async with client.stream("demo.halve.generate", image):
            pass
    except CallHomeError as error:
        print(f"twice: {type(error).__name__}: {error}")


async def copied(client: Client) -> None:
    """A plain array is copied into shared memory once, wherever it stands."""
    picture = np.full((480, 640), 3.0)
    print("copied:", await client.call("demo.describe.picture", {"pictures": [picture]}))


async def kept(client: Client) -> None:
    """The memory of an item is the reader's until the last view of it is gone."""
    rows = []
    began = time.perf_counter()
    async with client.stream("demo.noise.generate", 200) as frames:
        async for frame in frames:
            rows.append(frame.array[512].copy())  # 1 KiB kept instead of a view on 1 MiB
    took = time.perf_counter() - began
    right = all(row[0] == number for number, row in enumerate(rows))
    print(f"kept a row of each of {len(rows)} frames (right: {right}) in {took * 1e3:.0f} ms")


async def in_step(client: Client) -> None:
    """The arena holds 16 of these frames; a reader that keeps some makes the source wait."""
    for endpoint in ("demo.film.play", "demo.film.thread"):
        last: list[Frame] = []
        async with client.stream(endpoint, 30) as frames:
            async for frame in frames:
                last = [*last[-7:], frame]
        print(f"in step: {[int(each.array[0, 0, 0]) for each in last]} of {endpoint}")
    told = client.memory()  # what `callhome ps --memory` shows of actors
    print("borrowed:", [(each["actor"], each["frames"]) for each in told["borrowed"]])


async def full(client: Client) -> None:
    """An arena has a limit; what is dropped makes room."""
    held = []
    try:
        while True:
            held.append(client.frames.new(MIB, "uint8"))
    except CallHomeError as error:
        print(
            f"after {len(held)} frames of 1 MiB: {type(error).__name__} (try again: {error.retry})"
        )
    held.clear()
    print("after dropping them:", client.frames.new(MIB, "uint8"))


async def main() -> None:
    async with Cluster(NODE) as cluster, cluster.client() as client:
        await in_place(client)
        await copied(client)
        await kept(client)
        await in_step(client)
        await full(client)


if __name__ == "__main__":
    asyncio.run(main())
