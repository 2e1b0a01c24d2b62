"""Which worker gets the next stream: pure functions of workers, loads and a source of randomness.

A policy is made once a router and endpoint and asked for each stream; ``Worker`` is what it sees.
Policies steer, they never refuse: only an engine knows whether it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Worker(Protocol):
    """A worker as a policy sees it."""

    @property
    def instance(self) -> int:
        """Its incarnation; workers come sorted by it."""

    @property
    def load(self) -> int:
        """Streams it carries, queued ones and unseen bookings included."""

    @property
    def capacity(self) -> int:
        """Streams it runs at the same time."""


#: A whole number from 0 to n - 1, each as likely as the others.
Draw = Callable[[int], int]


class Policy(Protocol):
    """Chooses among workers that can serve; there is at least one."""

    def choose(self, workers: Sequence[Worker]) -> int:
        """Index of the chosen worker."""


class RoundRobin:
    """One after the other."""

    def __init__(self, draw: Draw) -> None:
        self._next = 0

    def choose(self, workers: Sequence[Worker]) -> int:
        index = self._next % len(workers)
        self._next += 1
        return index


class Random:
    """Any, each as likely as the others."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def choose(self, workers: Sequence[Worker]) -> int:
        return self._draw(len(workers))


class LeastLoaded:
    """The one that carries least; among equals any, so that several routers do not all pick the
    first.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def choose(self, workers: Sequence[Worker]) -> int:
        if len(workers) == 1:
            return 0
        loads = [worker.load for worker in workers]
        least = min(loads)
        ties = [index for index, load in enumerate(loads) if load == least]
        return ties[0] if len(ties) == 1 else ties[self._draw(len(ties))]


POLICIES: dict[str, Callable[[Draw], Policy]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_loaded": LeastLoaded,
}
