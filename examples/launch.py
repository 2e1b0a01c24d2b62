"""The main job: start a router and engines on cores of their own, stream through the router, leave
nothing behind.

Run it from anywhere: ``python examples/launch.py``. ``callhome up examples/launch.py`` starts the
same node (``NODE``) for the command line.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from engines import Chat, Darken, Proxy, Shout, Tokens, length

from actors import (
    Annotated,
    CallHomeError,
    Client,
    Cluster,
    Context,
    DuplexStream,
    EngineSpec,
    NodeSpec,
    ResponseStream,
    RouterSpec,
)

CALLS = 1000
TOKENS = 20_000
PICTURES = 60
FULL_HD = (1080, 1920, 3)


async def patient(request: Any, ctx: Context) -> AsyncIterator[str]:
    """Says no more until it is asked to stop. An engine may be defined in the script itself."""
    yield "waiting"
    await ctx.wait_stopped()
    yield f"asked to stop because {ctx.reason}"


NODE = NodeSpec(
    name="a",
    routers=[RouterSpec(policy="least_loaded")],
    engines=[
        EngineSpec(endpoint="demo.length.count", engine=length),
        EngineSpec(endpoint="demo.tokens.generate", engine=Tokens),
        EngineSpec(endpoint="demo.chat.converse", engine=Chat),
        EngineSpec(endpoint="demo.darken.pictures", engine=Darken),
        EngineSpec(endpoint="demo.patient.wait", engine=patient),
        EngineSpec(endpoint="demo.shout.generate", engine=Shout, capacity=8),
        EngineSpec(endpoint="demo.proxy.generate", engine=Proxy),
    ],
)


def tell(what: str, text: str) -> None:
    print(f"{what:<10} {text}", flush=True)


async def unary(client: Client) -> None:
    """One request, one answer."""
    answer = await client.call("demo.length.count", {"text": "callhome"}, timeout=10.0)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await client.call("demo.length.count", {"text": "callhome"})
        times.append(time.perf_counter() - began)
    median = statistics.median(times) * 1e6
    tell("unary", f"length of 'callhome' is {answer}; {CALLS} calls, median {median:.0f} us")


async def count(items: ResponseStream) -> int:
    """Read a stream to its end."""
    found = 0
    async for _ in items:
        found += 1
    return found


async def tokens(client: Client) -> None:
    """One request, many items."""
    began = time.perf_counter()
    async with client.stream("demo.tokens.generate", {"count": TOKENS}) as items:
        first = await anext(items)
        waited = time.perf_counter() - began
        found = 1 + await count(items)
    rate = found / (time.perf_counter() - began)
    tell(
        "stream",
        f"{found} tokens from {first['text']!r} on, the first after {waited * 1e3:.1f} ms; "
        f"{rate:,.0f} a second",
    )


async def chat(client: Client) -> None:
    """A stream each way, one answer to each line."""
    began = time.perf_counter()
    async with client.open("demo.chat.converse") as talk:
        for line in ("hello", "how are you"):
            await talk.send(line)
            tell("chat", f"{line!r} -> {await talk.recv()!r}")
        await talk.end()  # our last word, and no cancel: the engine may still answer
        rest = [line async for line in talk]
    tell("chat", f"our end -> {rest[0]!r}; {(time.perf_counter() - began) * 1e3:.1f} ms in all")


async def _send_pictures(client: Client, stream: DuplexStream) -> None:
    for number in range(PICTURES):
        picture = client.frames.new(FULL_HD, "uint8")  # in shared memory, to be written in place
        picture.array[:] = number * 2
        await stream.send(picture)  # handed on: from here on it is the engine's
    await stream.end()


async def pictures(client: Client) -> None:
    """Numpy frames through shared memory, both ways, while the next ones are being made."""
    began = time.perf_counter()
    number = size = 0
    async with client.open("demo.darken.pictures") as stream, asyncio.TaskGroup() as tasks:
        tasks.create_task(_send_pictures(client, stream))
        async for darker in stream:
            with darker:  # the memory stays put inside the block, then goes back to the engine
                if darker.array.shape != FULL_HD or darker.array[-1, -1, -1] != number:
                    raise SystemExit(f"picture {number} is not what it should be")
                size += 2 * darker.nbytes
            number += 1
    took = time.perf_counter() - began
    tell(
        "frames",
        f"{number} pictures of 1920x1080 in, darkened, out: {number / took:.0f} a second, "
        f"{size / took / 1e9:.1f} GB/s",
    )


async def cancelled(client: Client) -> None:
    """Stop asks, leaving drops."""
    async with client.stream("demo.patient.wait") as items:
        await anext(items)
        began = time.perf_counter()
        items.stop("we have seen enough")
        words = [word async for word in items]  # what the engine still says arrives
    tell("stop", f"{words[0]!r}, {(time.perf_counter() - began) * 1e3:.1f} ms after stop()")
    taken = 0
    began = time.perf_counter()
    async with client.stream("demo.tokens.generate", {}) as items:  # endless
        async for _ in items:
            taken += 1
            if taken == 1000:
                break
    took = time.perf_counter() - began
    tell("drop", f"left an endless stream after {taken} tokens, {took * 1e3:.1f} ms in all")


async def more(client: Client) -> None:
    """An engine that calls an engine, and what a mistake looks like."""
    request = {"text": "engines call engines"}
    async with client.stream("demo.proxy.generate", request, annotated=True) as items:
        found: list[Annotated] = [item async for item in items]
    tell("proxy", f"{' '.join(each.data for each in found)!r}, {(found[0].comment or ['?'])[0]}")
    try:
        await client.call("demo.shout.generat", request)
    except CallHomeError as error:
        tell("mistake", f"{type(error).__name__}: {error}")


def left_behind(pids: list[int], folders: list[str]) -> list[str]:
    """Processes, files and shared memory that should be gone by now."""
    left = [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
    left += [folder for folder in folders if os.path.exists(folder)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    left += [line for line in maps if "memfd:callhome" in line]
    return left


async def main() -> int:
    cores = sorted(os.sched_getaffinity(0))[:2]  # router on the first, engines on the second
    began = time.perf_counter()
    async with Cluster(NODE, cores=cores) as cluster:
        tell("up", f"router and engines after {time.perf_counter() - began:.2f} s")
        for node in cluster.nodes:
            for child in node.children:
                tell("", f"{child} on core {sorted(os.sched_getaffinity(child.pid))}")
        pids = [each.pid for node in cluster.nodes for each in (node.address, *node.children)]
        folders = [node.folder for node in cluster.nodes]
        async with cluster.client() as client:
            for part in (unary, tokens, chat, pictures, cancelled, more):
                await part(client)
        began = time.perf_counter()
    tell("down", f"after {time.perf_counter() - began:.2f} s")
    left = left_behind(pids, folders)
    tell("left", ", ".join(left) or f"nothing: {len(pids)} processes, sockets and memory are gone")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
