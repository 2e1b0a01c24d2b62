"""A pool with a clock that a test turns, and workers that it books by hand."""

from __future__ import annotations

import random
from typing import Any

from actors.messages import Open, Record, Report, Route
from actors.router.faults import Faults
from actors.router.member import Limits
from actors.router.occupancy import Carried, Key, Occupancy
from actors.router.options import Options
from actors.router.policy import make_policy
from actors.router.pool import Pool
from transport.bus.address import Address

ENDPOINT = "t.e.go"
HOME = Address("home", 77, 1, 1)


class Rig:
    """One endpoint as a router has it."""

    def __init__(
        self,
        workers: int = 3,
        mode: str = "least_loaded",
        *,
        limits: Limits | None = None,
        quarantine: float = 5.0,
        longest: float = 60.0,
        capacity: int = 8,
        via: str = "far:1/p",
    ) -> None:
        self.now = 1000.0
        self.occupancy = Occupancy()
        self.limits = limits or Limits()
        self.freed = self.troubled = 0
        self._number = 0
        policy = make_policy(Options(policy=mode), random.Random(7).randrange)
        faults = Faults(quarantine, longest)
        self.pool = Pool(
            ENDPOINT, policy, self.limits, faults, lambda: self.now, self.occupancy.running
        )
        self.pool.freed = self._freed
        self.workers = [self.add(1 + each, capacity, via) for each in range(workers)]

    def _freed(self) -> None:
        self.freed += 1

    def record(self, instance: int, capacity: int = 8, via: str = "far:1/p") -> Record:
        address = Address(f"w{instance}", instance, 1, 1)
        return Record(instance, address, "engine", ENDPOINT, capacity=capacity, via=via)

    def add(self, instance: int, capacity: int = 8, via: str = "far:1/p") -> Carried:
        worker = self.occupancy.add(self.record(instance, capacity, via))
        self.pool.add(worker)
        return worker

    def open(self, **route: Any) -> Open:
        """The next stream."""
        self._number += 1
        return Open(
            self._number, HOME, ENDPOINT, False, "msgpack", True, b"", [], [], 1, 1, None, {}, "",
            route=Route(**route) if route else None,
        )  # fmt: skip

    def send(self, **route: Any) -> tuple[Carried, Key]:
        """Choose and book in one step."""
        m = self.open(**route)
        if m.route is not None and m.route.avoid:
            self.pool.told(m.route)
        worker = self.pool.choose(m)
        self.occupancy.book(worker, HOME, m.stream)
        return worker, (HOME.incarnation, m.stream)

    def end(self, worker: Carried, key: Key, code: str = "") -> None:
        """A stream has ended, as the router hears it."""
        self.pool.ended(worker, key, code)
        self.occupancy.settle(key)

    def report(self, worker: Carried, in_flight: int, queued: int = 0, **more: Any) -> None:
        """The engine tells what it carries, all of it this router's."""
        total = in_flight + queued + more.get("settled", 0)
        seq = more.get("seq", worker.seq + 1)
        self.occupancy.report(
            Report(
                worker.instance, seq, in_flight, queued, worker.capacity, total,
                more.get("settled", 0),
            )
        )  # fmt: skip

    def pass_time(self, seconds: float) -> None:
        """The clock goes on, and the coarse timer ticks."""
        self.now += seconds
        self.pool.check(self.now, lambda key: False)

    def states(self) -> list[str]:
        """What each worker is, by instance."""
        return [self.pool.members[each].state for each in sorted(self.pool.members)]
