"""What the tests of policies choose among, and for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from actors.messages import Open, Route
from actors.router.loads import Draw, Worker
from actors.router.options import Options
from actors.router.policy import Policy, make_policy
from transport.bus.address import Address

HOME = Address("client", 1, 100, 1)


class Seen:
    """A worker as a policy sees it; two with the same numbers are two workers."""

    def __init__(self, instance: int, load: int = 0, device: str = "", capacity: int = 8) -> None:
        self.instance = instance
        self.load = load
        self.device = device
        self.capacity = capacity
        self.endpoint = "t.x.go"

    @property
    def expected(self) -> int:
        return self.load

    def __repr__(self) -> str:
        return f"<{self.instance}: {self.load}>"


def seen(*loads: int) -> list[Seen]:
    """Workers 0, 1, 2 … with these loads."""
    return [Seen(number, load) for number, load in enumerate(loads)]


def request(
    *, metadata: dict[str, Any] | None = None, instance: int = 0, payload: bytes = b""
) -> Open:
    """A stream that wants a worker."""
    return Open(
        1, HOME, "t.x.go", False, "msgpack", True, payload, [], [], 8, 8, None,
        metadata or {}, "r-1", route=Route(instance) if instance else None,
    )  # fmt: skip


def never(_: int) -> int:
    """For a policy that must not need chance."""
    raise AssertionError("no draw was due")


def first(_: int) -> int:
    """Always the first of those to draw from."""
    return 0


def seeded(seed: int = 1) -> Draw:
    return random.Random(seed).randrange


class Chooser:
    """A policy as a router uses it: workers go in, streams are booked in one step with the choice.

    ``loads`` is what it has booked, by instance.
    """

    def __init__(self, mode: str, workers: list[Seen], draw: Draw | None = None, **options: Any):
        self.policy: Policy = make_policy(Options(policy=mode, **options), draw or seeded())
        self.held: Counter[int] = Counter()
        for worker in workers:
            self.policy.add(worker)

    def find(self, open: Open | None = None) -> Seen | None:
        """Whom it chooses, without a booking."""
        found: Worker | None = self.policy.choose(open or request())
        assert found is None or isinstance(found, Seen)
        return found

    def hold(self, open: Open | None = None) -> Seen:
        """A stream that goes on."""
        worker = self.find(open)
        assert worker is not None
        self.held[worker.instance] += 1
        self.change(worker, 1)
        return worker

    def pick(self, open: Open | None = None) -> int:
        """The instance that gets a stream which ends at once."""
        worker = self.hold(open)
        self.release(worker)
        return worker.instance

    def release(self, worker: Seen) -> None:
        """One stream of this worker has ended."""
        self.held[worker.instance] -= 1
        self.change(worker, -1)

    def change(self, worker: Seen, by: int) -> None:
        """Its load is another now."""
        worker.load += by
        if self.policy.aware:
            self.policy.changed(worker)
