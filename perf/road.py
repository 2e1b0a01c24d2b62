"""By which road a suite's client reaches its engines: callhome's, or the wheel of Dynamo.

Suites import this and nothing of callhome, so that the very same workload also runs in an
interpreter that has only Dynamo (``python -m perf versus dynamo``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple, cast

from perf.plan import Plan

if TYPE_CHECKING:
    from actors import Client

#: Limit of any one call of a suite; seconds.
LIMIT = 60.0


class Served(NamedTuple):
    """One engine: ``attribute`` of the road's module of engines, served at ``endpoint`` by
    ``replicas`` processes.
    """

    endpoint: str
    attribute: str
    core: int
    replicas: int = 1


def engine(
    plan: Plan, endpoint: str, attribute: str, *, core: int | None = None, replicas: int = 1
) -> Served:
    """One engine, on the engines' core unless told otherwise."""
    return Served(endpoint, attribute, plan.engine_core if core is None else core, replicas)


def launched(
    plan: Plan, engines: Sequence[Served], *, policy: str = "least_loaded", routers: int = 1
) -> AbstractAsyncContextManager[Client]:
    """Start ``engines``, give a client, and stop everything on leaving.

    Calls go through ``routers`` routers in turn, each of which chooses by ``policy``. Dynamo's
    client comes as ``perf.peers.wheel.Caller``, which has what the suites use of ours; it is one
    router by itself and goes round.

    Raises CoreNotOurs at the end of the block when a process is not where it was put.
    """
    if plan.dynamo:
        from perf.peers.wheel import launched as by_wheel

        return cast("AbstractAsyncContextManager[Client]", by_wheel(plan, engines))
    from perf.launch import launched as by_callhome

    return by_callhome(plan, engines, policy, routers)
