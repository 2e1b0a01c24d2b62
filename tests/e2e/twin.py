"""A node whose frames are files, to be started several times beside each other:
``python -m tests.e2e.twin RUN CLUSTER SEED``.

Says ``ready`` once it holds five frames of its engine; ``frames N`` on stdin takes N more, checks
them all and says how many there are; the end of stdin stops it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from actors import Client, Cluster, Context, EngineSpec, Frame, NodeSpec, Settings

_SIZE = 100_000
HELD = 5


async def seeded(request: dict[str, int], ctx: Context) -> AsyncIterator[Any]:
    """Frames filled with ``seed``, numbered in their first byte."""
    for number in range(request["n"]):
        frame = ctx.frames.new(_SIZE, "u1")
        frame.array[:] = request["seed"]
        frame.array[0] = number % 251
        yield frame


async def take(client: Client, seed: int, count: int) -> list[Frame]:
    request = {"n": count, "seed": seed}
    async with client.stream("t.seeded.go", request, timeout=60.0) as items:
        frames: list[Frame] = [frame async for frame in items]
    check(frames, seed)
    return frames


def check(frames: list[Frame], seed: int) -> None:
    for number, frame in enumerate(frames):
        if frame.array[0] != number % 251 or not (frame.array[1:] == seed).all():
            raise ValueError(f"frame {number} of node {seed} holds another's bytes")


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


async def main() -> None:
    run, cluster, text = sys.argv[1:]
    seed = int(text)
    settings = Settings.load(run=run, frame_road="file")
    engine = EngineSpec(endpoint="t.seeded.go", engine="tests.e2e.twin:seeded", name="seeded")
    node = NodeSpec(engines=[engine], settings=settings)
    async with Cluster(node, cluster=cluster) as nodes, nodes.client() as client:
        held = await take(client, seed, HELD)
        say(ready=os.getpid(), engine=nodes.nodes[0].children[-1].pid)
        while line := await asyncio.to_thread(sys.stdin.readline):
            more = await take(client, seed, int(line.split()[1]))
            check(held, seed)
            say(frames=len(held) + len(more))


if __name__ == "__main__":
    asyncio.run(main())
