"""Who joins, who is gone, and how soon that shows: needs an etcd in PATH.

``membership.near``: two workers beside their router; ``membership.far``: on another node, found by
etcd alone. While calls begin every 5 ms, one worker after the other is killed and started again by
its node. ``first_ms``: from the moment when the new one is ready until its first request.
``none_after_ms``: from the kill until the last call began that failed because it was sent to the
dead one. Both are the worst of four kills. Nothing is sent twice (``retry_limit`` 0) and nobody is
left alone after a fault (``quarantine`` 0), so what shows is membership alone.

``membership.gone``: all processes of a third node are stopped at once (SIGSTOP): its connections
stay open and silent, as when a cable is cut, and its lease of 2 s is not renewed. ``none_after_s``
as above; ``back_s``: from SIGCONT until it answers again.

``membership.directory.1000``, ``membership.etcd.1000``: a thousand workers are known.
``snapshot_ms``: until a process that starts has the whole list. ``router_rss_mb``: resident memory
of a router's process that knows them (MB are 1e6 bytes). ``change_cpu_us``: what one of a thousand
changes costs that process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from perf import crowd, etcd
from perf.calling import ENDPOINT, Calls
from perf.figures import Sample
from perf.plan import PerfError, Plan, pin_to

if TYPE_CHECKING:
    from actors import Cluster, NodeSpec

KILLS = 4
LEASE = 2.0
_SETTINGS: dict[str, Any] = {
    "retry_limit": 0, "quarantine": 0.0, "lease_ttl": LEASE, "ack_timeout": 2.0,
    "max_restarts": 100,
}  # fmt: skip


async def run(plan: Plan) -> list[Sample]:
    """All parts, one after the other. Raises PerfError where there is no etcd."""
    if plan.router != "process":
        raise PerfError("the membership suite needs the router in a process of its own")
    etcd.program()
    samples = await _near(plan)
    with crowd.in_directory() as directory:
        samples += await crowd.measure(plan, directory)
    with etcd.running() as store:
        samples += await _far(plan, store.address)
        with crowd.in_etcd(store) as records:
            samples += await crowd.measure(plan, records)
    return samples


async def _near(plan: Plan) -> list[Sample]:
    async with _calling([_home(plan, engines=2)], plan, workers=2) as (_, calls):
        return await _kills(plan, "membership.near", calls, list(calls.members))


async def _far(plan: Plan, address: str) -> list[Sample]:
    """Three nodes that nobody has told of each other: they meet in etcd."""
    nodes = [_home(plan, etcd=address), _far_node(plan, "far", 2, address)]
    nodes.append(_far_node(plan, "gone", 1, address))
    async with _calling(nodes, plan, workers=3) as (cluster, calls):
        third = _pids(cluster, "gone")
        mortal = [pid for pid in calls.members if pid not in third]
        samples = await _kills(plan, "membership.far", calls, mortal)
        return samples + await _gone(calls, third)


def _home(plan: Plan, engines: int = 0, etcd: str = "") -> NodeSpec:
    """The client's node: a router, and ``engines`` workers beside it."""
    from actors import NodeSpec, RouterSpec, Settings

    router = RouterSpec(policy="round_robin", cpus=[plan.client_core])
    return NodeSpec(
        name="perf",
        routers=[router],
        engines=[_engine(plan, engines)] if engines else [],
        etcd=etcd,
        settings=Settings.load(**_SETTINGS),
    )


def _far_node(plan: Plan, name: str, engines: int, etcd: str) -> NodeSpec:
    from actors import IngressSpec, NodeSpec, Settings

    return NodeSpec(
        name=name,
        routers=[],
        engines=[_engine(plan, engines)],
        ingress=IngressSpec("127.0.0.1:0", cpus=[plan.engine_core]),
        etcd=etcd,
        settings=Settings.load(**_SETTINGS),
    )


def _engine(plan: Plan, replicas: int) -> Any:
    from actors import EngineSpec

    return EngineSpec(ENDPOINT, "perf.engines:Member", replicas=replicas, cpus=[plan.engine_core])


@asynccontextmanager
async def _calling(
    nodes: Sequence[NodeSpec], plan: Plan, workers: int
) -> AsyncIterator[tuple[Cluster, Calls]]:
    """The nodes, and calls that have reached ``workers`` of them."""
    from actors import Cluster

    os.sched_setaffinity(0, plan.cores)
    async with Cluster(nodes) as cluster, cluster.client() as client:
        pin_to(plan.client_core)
        async with asyncio.TaskGroup() as group:
            calls = Calls(client, group)
            calls.start()
            await calls.wait(lambda: len(calls.members) >= workers, "all workers to answer")
            yield cluster, calls
            await calls.stop()


async def _kills(plan: Plan, workload: str, calls: Calls, pids: list[int]) -> list[Sample]:
    """Kill the oldest, and look at who comes after him."""
    first, none_after = [], []
    for _ in range(plan.count(KILLS)):
        known = set(calls.members)
        began = time.monotonic()
        os.kill(pids.pop(0), signal.SIGKILL)
        pid = await calls.newcomer(known)
        await calls.settle()
        first.append(calls.members[pid].first - calls.members[pid].ready)
        none_after.append(calls.none_after(began))
        pids.append(pid)
    return [
        Sample("membership", workload, "first_ms", "ms", max(first) * 1e3),
        Sample("membership", workload, "none_after_ms", "ms", max(0.1, max(none_after) * 1e3)),
    ]


async def _gone(calls: Calls, pids: list[int]) -> list[Sample]:
    """Stop a whole node, and let it go on when nobody calls it any more."""
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(2 * LEASE)
        await calls.settle()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    none_after = calls.none_after(began)
    again = time.monotonic()
    worker = next(pid for pid in pids if pid in calls.members)
    await calls.wait(lambda: calls.answered[worker] > again, "the node that went on")
    return [
        Sample("membership", "membership.gone", "none_after_s", "s", max(0.1, none_after)),
        Sample("membership", "membership.gone", "back_s", "s", calls.answered[worker] - again),
    ]


def _pids(cluster: Cluster, name: str) -> list[int]:
    """The node's own process, and those of its actors."""
    info = next(info for info in cluster.nodes if info.node == name)
    return [info.address.pid, *(child.pid for child in info.children)]
