"""Clusters for one suite: engines on the engine's core, router and client on the client's.

On one node, or on two that meet on loopback: then the engines' node has an ingress beside them, on
their core, and the client's node has nothing but its router, which follows that ingress.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from actors import Client, Cluster, EngineSpec, IngressSpec, NodeSpec, RouterSpec
from actors.cluster.cores import threads_outside
from perf.plan import CoreNotOurs, Plan, pin_to
from perf.road import Served


def _spec(served: Served) -> EngineSpec:
    return EngineSpec(
        endpoint=served.endpoint,
        engine=f"perf.engines:{served.attribute}",
        capacity=512,
        replicas=served.replicas,
        cpus=[served.core],
    )


def _routers(plan: Plan, policy: str, count: int) -> list[RouterSpec]:
    names = ["router", *(f"router-{number}" for number in range(2, count + 1))]
    if plan.router == "here":
        return [RouterSpec(policy=policy, name=name, place="here") for name in names]
    cpus = [plan.client_core]
    return [RouterSpec(policy=policy, name=name, place="process", cpus=cpus) for name in names]


@asynccontextmanager
async def launched(
    plan: Plan, engines: Sequence[Served], policy: str = "least_loaded", routers: int = 1
) -> AsyncIterator[Client]:
    """Launch ``engines`` and routers, give a client, and stop everything on leaving.

    Raises CoreNotOurs at the end of the block when a process of the cluster is not where it was
    put.
    """
    async with standing(plan, engines, policy, routers) as (client, _):
        yield client


@asynccontextmanager
async def standing(
    plan: Plan, engines: Sequence[Served], policy: str = "least_loaded", routers: int = 1
) -> AsyncIterator[tuple[Client, dict[str, int]]]:
    """As ``launched``, and beside the client the pids of all actors' processes by their names."""
    # A launcher hands out only cores that it may use itself; the client is narrow again afterwards.
    os.sched_setaffinity(0, plan.cores)
    nodes = _nodes(plan, engines, _routers(plan, policy, routers))
    async with Cluster(nodes) as cluster, cluster.client() as client:
        pin_to(plan.client_core)
        pids = {child.name: child.pid for node in cluster.nodes for child in node.children}
        yield client, pids
        # Afterwards: this shows that they stayed, and keeps the look-up out of what a suite times.
        check_pins(plan, {served.core for served in engines})


def _nodes(plan: Plan, engines: Sequence[Served], routers: list[RouterSpec]) -> list[NodeSpec]:
    """The client's node first; a cluster is up when its nodes know each other's engines."""
    served = [_spec(each) for each in engines]
    if not plan.plane:
        return [NodeSpec(name="perf", routers=routers, engines=served)]
    door = free_address()
    ingress = IngressSpec(listen=door, cpus=[plan.engine_core])
    return [
        NodeSpec(name="perf", routers=routers, peers=[door]),
        NodeSpec(name="perf-far", routers=[], engines=served, ingress=ingress),
    ]


def free_address() -> str:
    """Where nobody listens at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def check_pins(plan: Plan, wanted: set[int]) -> None:
    """Raise CoreNotOurs when a process we started is off ``plan.cores`` or a core has none.

    ``wanted`` are the cores that engines were pinned to.
    """
    import psutil

    if loose := threads_outside(os.getpid(), {plan.client_core}):
        raise CoreNotOurs(f"threads of the client left core {plan.client_core}: {', '.join(loose)}")
    pinned: dict[int, set[int]] = {}
    for child in psutil.Process().children(recursive=True):
        pinned[child.pid] = set(child.cpu_affinity() or ())
    strays = {pid: sorted(cores) for pid, cores in pinned.items() if not cores <= set(plan.cores)}
    if strays:
        raise CoreNotOurs(f"processes are not on the cores {plan.cores}: {strays} (pid: its cores)")
    empty = [core for core in wanted if {core} not in pinned.values()]
    if empty:
        raise CoreNotOurs(f"no process is pinned to core {empty[0]}, where an engine was put")
