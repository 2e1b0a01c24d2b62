"""A node whose handlers take their time and write down what becomes of them."""

from __future__ import annotations

from typing import NamedTuple

from actors import EngineSpec, NodeSpec, RouterSpec
from tests.e2e.standing import Standing
from tests.e2e.watching import Trace

SLOW = "t.slow.go"


def node(trace: Trace, *, capacity: int = 64, queue: int = 1024, replicas: int = 1) -> NodeSpec:
    """A node whose engines write a trace."""
    engine = EngineSpec(
        SLOW, "tests.e2e.cancel_engines:Slow", args={"trace": trace.path},
        capacity=capacity, queue=queue, replicas=replicas,
    )  # fmt: skip
    return NodeSpec(name="a", routers=[RouterSpec()], engines=[engine])


class SlowOnes(NamedTuple):
    """Such a node while it runs, and what its engines write."""

    cluster: Standing
    trace: Trace
