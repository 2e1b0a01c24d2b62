"""Two nodes on this machine from one script: engines on ``b``, router and client on ``a``.

Between the nodes everything goes over TCP, as it would between two machines: there each would have
a script of its own (or ``callhome up``), ``b`` with ``listen`` an address that ``a`` can reach, and
``a`` with that address among its ``peers``. Run it from anywhere:
``python examples/two_nodes.py [HOST:PORT]``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from engines import Chat, Darken, Tokens, length

from actors import (
    CallHomeError,
    Client,
    Cluster,
    DuplexStream,
    EngineSpec,
    IngressSpec,
    NodeSpec,
    RouterSpec,
    connect,
)

CALLS = 500
TOKENS = 20_000
PICTURES = 24
EIGHT_MIB = (2048, 4096)


def nodes(listen: str) -> list[NodeSpec]:
    """``b`` lets others in at ``listen``; ``a`` finds there what it does not serve itself."""
    near = NodeSpec(name="a", routers=[RouterSpec()], peers=[listen])
    far = NodeSpec(
        name="b",
        engines=[
            EngineSpec(endpoint="demo.length.count", engine=length),
            EngineSpec(endpoint="demo.tokens.generate", engine=Tokens, restart="never"),
            EngineSpec(endpoint="demo.chat.converse", engine=Chat),
            EngineSpec(endpoint="demo.darken.pictures", engine=Darken),
        ],
        ingress=IngressSpec(listen=listen),
    )
    return [near, far]


def free_address() -> str:
    """An address of this machine at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def tell(what: str, text: str) -> None:
    print(f"{what:<10} {text}", flush=True)


async def unary(client: Client) -> None:
    """One request, one answer: a call looks as it does inside a node."""
    answer = await client.call("demo.length.count", {"text": "callhome"}, timeout=10.0)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await client.call("demo.length.count", {"text": "callhome"})
        times.append(time.perf_counter() - began)
    median = statistics.median(times) * 1e6
    tell("unary", f"length of 'callhome' is {answer}; {CALLS} calls, median {median:.0f} us")


async def tokens(client: Client) -> None:
    """One request, many items."""
    began = time.perf_counter()
    found = 0
    async with client.stream("demo.tokens.generate", {"count": TOKENS}) as items:
        async for item in items:
            if item["index"] != found:
                raise SystemExit(f"token {found} is missing")
            found += 1
    rate = found / (time.perf_counter() - began)
    tell("stream", f"{found} tokens in order, {rate:,.0f} a second")


async def chat(client: Client) -> None:
    """A stream each way, one answer to each line."""
    async with client.open("demo.chat.converse") as talk:
        for line in ("hello", "how are you"):
            await talk.send(line)
            tell("chat", f"{line!r} -> {await talk.recv()!r}")
        await talk.end()  # our last word, and no cancel: the engine may still answer
        rest = [line async for line in talk]
    tell("chat", f"our end -> {rest[0]!r}")


async def _send_pictures(client: Client, stream: DuplexStream) -> None:
    for number in range(PICTURES):
        picture = client.frames.new(EIGHT_MIB, "uint8")
        picture.array[:] = number * 2
        await stream.send(picture)
    await stream.end()


async def pictures(client: Client) -> None:
    """Numpy frames of 8 MiB there and back; each arrives in shared memory of the other node."""
    began = time.perf_counter()
    number = size = 0
    async with client.open("demo.darken.pictures") as stream, asyncio.TaskGroup() as tasks:
        tasks.create_task(_send_pictures(client, stream))
        async for darker in stream:
            with darker:
                if darker.array.shape != EIGHT_MIB or darker.array[-1, -1] != number:
                    raise SystemExit(f"picture {number} is not what it should be")
                size += 2 * darker.nbytes
            number += 1
    took = time.perf_counter() - began
    tell(
        "frames",
        f"{number} frames of 8 MiB in, darkened, out: {number / took:.0f} a second, "
        f"{size / took / 1e9:.2f} GB/s",
    )


async def stopped(client: Client) -> None:
    """Stop asks the engine on the other node; what it still says arrives."""
    async with client.stream("demo.tokens.generate", {}) as items:  # endless
        for _ in range(1000):
            await anext(items)
        began = time.perf_counter()
        items.stop("we have seen enough")
        rest = [item async for item in items]
    took = (time.perf_counter() - began) * 1e3
    tell("stop", f"a clean end {took:.1f} ms after stop(), {len(rest)} more tokens under way")


async def outside(listen: str) -> None:
    """A program that belongs to no node calls in over TCP."""
    async with connect(f"tcp://{listen}") as client:
        answer = await client.call("demo.length.count", {"text": "outside"})
    tell("outside", f"connect('tcp://{listen}') has the answer {answer}")


async def killed(client: Client, pid: int) -> None:
    """The other node's engine dies in the middle of a stream: the caller is told, by name."""
    taken = 0
    try:
        async with client.stream("demo.tokens.generate", {}) as items:
            async for _ in items:
                taken += 1
                if taken == 1000:
                    os.kill(pid, signal.SIGKILL)
                    began = time.perf_counter()
    except CallHomeError as error:
        took = (time.perf_counter() - began) * 1e3
        tell("kill", f"after {took:.1f} ms {type(error).__name__}: {error}")
    else:
        raise SystemExit("the death of the engine was not told")


def left_behind(pids: list[int], folders: list[str]) -> list[str]:
    """Processes, files and shared memory that should be gone by now."""
    left = [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
    left += [folder for folder in folders if os.path.exists(folder)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    left += [line for line in maps if "memfd:callhome" in line]
    return left


async def use(cluster: Cluster, listen: str) -> None:
    """All of it, one after the other."""
    parts: list[Callable[[Client], Coroutine[Any, Any, None]]]
    parts = [unary, tokens, chat, pictures, stopped]
    far = {child.name: child.pid for child in cluster.nodes[1].children}
    async with cluster.client("a") as client:
        for part in parts:
            await part(client)
        await outside(listen)
        await killed(client, far["demo.tokens.generate"])


async def main() -> int:
    listen = sys.argv[1] if len(sys.argv) > 1 else free_address()
    began = time.perf_counter()
    async with Cluster(nodes(listen)) as cluster:
        tell("up", f"two nodes after {time.perf_counter() - began:.2f} s")
        for node in cluster.nodes:
            where = f", listens at {node.listen}" if node.listen else ""
            tell("", f"node {node.node} (pid {node.address.pid}){where}")
            for child in node.children:
                tell("", f"    {child}")
        pids = [each.pid for node in cluster.nodes for each in (node.address, *node.children)]
        folders = [node.folder for node in cluster.nodes]
        await use(cluster, listen)
        began = time.perf_counter()
    tell("down", f"after {time.perf_counter() - began:.2f} s")
    left = left_behind(pids, folders)
    tell("left", ", ".join(left) or f"nothing: {len(pids)} processes, sockets and memory are gone")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
