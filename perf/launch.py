"""A cluster for one suite: engines on the engine's core, router and client on the client's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.cluster.cores import threads_outside
from perf.plan import CoreNotOurs, Plan, pin_to

#: Limit of any one call of a suite; seconds.
LIMIT = 60.0


def engine(plan: Plan, endpoint: str, attribute: str, *, core: int | None = None) -> EngineSpec:
    """Spec of one engine of ``perf.engines``, on the engine's core unless told otherwise."""
    return EngineSpec(
        endpoint=endpoint,
        engine=f"perf.engines:{attribute}",
        capacity=512,
        cpus=[plan.engine_core if core is None else core],
    )


@asynccontextmanager
async def launched(plan: Plan, engines: Sequence[EngineSpec]) -> AsyncIterator[Client]:
    """Launch ``engines`` and a router, give a client, and stop everything on leaving.

    Raises CoreNotOurs at the end of the block when a process of the cluster is not where it was
    put.
    """
    if plan.router == "here":
        router = RouterSpec(place="here")
    else:
        router = RouterSpec(place="process", cpus=[plan.client_core])
    spec = NodeSpec(name="perf", routers=[router], engines=list(engines))
    # A launcher hands out only cores that it may use itself; the client is narrow again afterwards.
    os.sched_setaffinity(0, plan.cores)
    async with Cluster(spec) as cluster, cluster.client() as client:
        pin_to(plan.client_core)
        yield client
        # Afterwards: this shows that they stayed, and keeps the look-up out of what a suite times.
        check_pins(plan, {cpu for one in engines for cpu in one.cpus or ()})


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
