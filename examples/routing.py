"""Who gets the next stream: modes, two routers, a policy of your own, a queue for bursts, a worker
that dies in the middle of a stream, thresholds that change while it runs.

The workers are on node ``work``. Each other node has a router that chooses in its own way, in this
process (``place="here"``), and finds the workers by ``peers``. Run it from anywhere:
``python examples/routing.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import (
    BusyAt,
    Client,
    Cluster,
    Context,
    Engine,
    EngineSpec,
    NodeSpec,
    RoutedRequest,
    RouterSpec,
    WorkerState,
    WorkerView,
)
from actors.errors import AllBusy

WHO = "demo.who.answer"
WRITE = "demo.write.tokens"
TOKENS = 200


async def who(request: dict[str, Any], ctx: Context) -> int:
    """Works for a moment and says which process it is."""
    await asyncio.sleep(request.get("seconds", 0.0))
    return os.getpid()


class Writer(Engine[dict[str, Any], dict[str, Any]]):
    """A token stream that can be continued elsewhere: what comes next depends on the tokens so far,
    and they are all in the request.
    """

    async def generate(
        self, request: dict[str, Any], ctx: Context
    ) -> AsyncIterator[dict[str, Any]]:
        last = request["token_ids"][-1]
        for token in range(last + 1, last + 1 + request["max_tokens"]):
            yield {"token_ids": [token], "pid": os.getpid()}
            await asyncio.sleep(0.002)


def by_size(workers: Sequence[WorkerView], request: RoutedRequest) -> WorkerView:
    """A policy of our own: large requests go to accelerators, small ones to CPUs."""
    device = "cuda" if request.size > 1000 else "cpu"
    able = [worker for worker in workers if worker.device == device]
    return min(able or workers, key=lambda worker: worker.load)


def nodes(door: str) -> list[NodeSpec]:
    """The workers, with two routers of their own, and nodes that choose among them otherwise."""
    work = NodeSpec(
        name="work",
        routers=[RouterSpec(name="router-0"), RouterSpec(name="router-1")],
        engines=[
            EngineSpec(WHO, who, replicas=2, capacity=4, device="cpu", name="cpu"),
            EngineSpec(WHO, who, capacity=4, device="cuda", name="gpu"),
            EngineSpec(WRITE, Writer, replicas=2, name="writer"),
        ],
        listen=door,
    )
    routers = {
        "turns": RouterSpec(policy="round_robin", place="here"),
        "sticky": RouterSpec(policy="sticky", sticky_key="session", place="here"),
        "weighted": RouterSpec(policy="device_aware_weighted", device_ratio=3.0, place="here"),
        "sized": RouterSpec(policy=by_size, place="here"),
        "queued": RouterSpec(busy_fraction=1.0, queue=100, queue_timeout=30.0, place="here"),
    }
    others = [
        NodeSpec(name=name, routers=[router], peers=[door]) for name, router in routers.items()
    ]
    return [work, *others]


def free_address() -> str:
    """An address of this machine at which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def tell(what: str, text: str) -> None:
    print(f"{what:<10} {text}", flush=True)


class Names:
    """What the processes of node ``work`` are called."""

    def __init__(self, cluster: Cluster) -> None:
        self.pids = {child.pid: child.name for child in cluster.nodes[0].children}

    def count(self, pids: Sequence[int]) -> str:
        """How many of them each process has."""
        found = Counter(self.pids[pid] for pid in pids)
        return ", ".join(f"{name} {count}" for name, count in sorted(found.items()))


async def ask(client: Client, times: int, request: Any = None, **options: Any) -> list[int]:
    """So many calls at once, when all others have ended; the pids of who answered."""
    async with asyncio.timeout(30.0):
        # What another router has sent is told some milliseconds later.
        while any(worker.load for worker in await client.workers(WHO)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    calls = [client.call(WHO, request or {"seconds": 0.05}, **options) for _ in range(times)]
    return list(await asyncio.gather(*calls))


async def modes(cluster: Cluster, names: Names) -> None:
    """The same calls, chosen for in four ways."""
    async with cluster.client("work") as client:
        workers: list[WorkerState] = await client.workers(WHO)
        for worker in workers:
            tell("worker", f"{worker.instance}: {worker.load}/{worker.capacity} on {worker.device}")
        tell("least", f"loaded, by two routers: {names.count(await ask(client, 12))}")
        one = workers[0].instance
        tell("instance", f"{one}: {names.count(await ask(client, 3, instance=one))}")
    async with cluster.client("turns") as client:
        tell("turns", names.count(await ask(client, 12)))
    async with cluster.client("weighted") as client:
        tell("weighted", f"one accelerator for three CPUs: {names.count(await ask(client, 8))}")
    async with cluster.client("sticky") as client:
        for session in ("alice", "bob", "carol"):
            pids = await ask(client, 4, metadata={"session": session})
            tell("sticky", f"{session}: {names.count(pids)}")
    async with cluster.client("sized") as client:
        small = names.count(await ask(client, 4))
        large = names.count(await ask(client, 4, {"text": "x" * 2000}))
        tell("yours", f"small requests: {small}; large ones: {large}")


async def burst(cluster: Cluster) -> None:
    """More calls than places: they wait at the router, and the urgent ones less than the others."""
    async with cluster.client("queued") as client:
        began = time.perf_counter()

        async def call(priority: int) -> float:
            await client.call(WHO, {"seconds": 0.1}, priority=priority)
            return (time.perf_counter() - began) * 1e3

        plain = [asyncio.create_task(call(0)) for _ in range(36)]
        urgent = [asyncio.create_task(call(5)) for _ in range(12)]
        usual, soon = await asyncio.gather(*plain), await asyncio.gather(*urgent)
    tell(
        "burst",
        f"{len(usual) + len(soon)} calls for 12 places, none refused: the last urgent one after "
        f"{max(soon):.0f} ms, the last of the others after {max(usual):.0f} ms",
    )


async def busy(cluster: Cluster) -> None:
    """A threshold that changes while the router runs."""
    async with cluster.client("turns") as client:
        router = client.ref("router")
        former = BusyAt(*await router.ask(BusyAt(streams=1), timeout=10.0))
        try:
            await ask(client, 4)
        except AllBusy as error:
            tell("busy", f"{type(error).__name__}: {error}")
        else:
            raise SystemExit("four calls found room where three were allowed")
        await router.ask(former, timeout=10.0)
        tell("busy", f"no more: {len(await ask(client, 4))} calls were answered")


async def killed(cluster: Cluster, names: Names) -> None:
    """A worker dies in the middle of a stream, which goes on at another one."""
    async with cluster.client("work") as client:
        request = {"token_ids": [0], "max_tokens": TOKENS}
        tokens: list[int] = []
        pids: list[int] = []
        async with client.stream(WRITE, request, migration_limit=3) as items:
            async for item in items:
                tokens += item["token_ids"]
                if item["pid"] not in pids:
                    pids.append(item["pid"])
                if len(tokens) == TOKENS // 4:
                    os.kill(pids[0], signal.SIGKILL)
    if tokens != list(range(1, TOKENS + 1)):
        raise SystemExit(f"the tokens are not those of one stream: {tokens}")
    told = " then ".join(names.pids.get(pid, "a new writer") for pid in pids)
    tell("migration", f"{len(tokens)} tokens, none twice, none missing: {told}, one was killed")


async def without_a_router(cluster: Cluster, names: Names) -> None:
    """One of two routers dies: what was on its way through it may be sent again, as the caller says
    here, and all the rest goes by the other.
    """
    (router,) = (pid for pid, name in names.pids.items() if name == "router-0")
    async with cluster.client("work") as client:
        await ask(client, 2)
        os.kill(router, signal.SIGKILL)
        answers = [await client.call(WHO, {}, migration_limit=1) for _ in range(50)]
        moved = client.statistics()["migrated.new_request"]
    tell("routers", f"one of two was killed: {len(answers)} calls answered, {moved} sent again")


def left_behind(pids: list[int], folders: list[str]) -> list[str]:
    """Processes and files that should be gone by now."""
    left = [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
    return left + [folder for folder in folders if os.path.exists(folder)]


async def main() -> int:
    began = time.perf_counter()
    async with Cluster(nodes(free_address())) as cluster:
        names = Names(cluster)
        tell("up", f"{len(cluster.nodes)} nodes after {time.perf_counter() - began:.2f} s")
        await modes(cluster, names)
        await burst(cluster)
        await busy(cluster)
        await killed(cluster, names)
        await without_a_router(cluster, names)
        pids = [each.pid for node in cluster.nodes for each in (node.address, *node.children)]
        folders = [node.folder for node in cluster.nodes]
        began = time.perf_counter()
    tell("down", f"after {time.perf_counter() - began:.2f} s")
    left = left_behind([*pids, *(pid for pid in names.pids if pid != os.getpid())], folders)
    tell("left", ", ".join(left) or "nothing: processes, sockets and memory are gone")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
