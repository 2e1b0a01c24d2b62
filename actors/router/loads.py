"""Workers in the order of their load, and workers to draw from: what policies choose with.

Nothing here looks at all workers to find one: a router may know thousands of them, and is asked for
each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol


class Worker(Protocol):
    """A worker as a policy sees it; one object stays one worker for as long as it is known."""

    @property
    def instance(self) -> int:
        """Its incarnation."""

    @property
    def load(self) -> int:
        """Streams it carries, queued ones and unseen bookings included."""

    @property
    def expected(self) -> int:
        """The load, with what others will have sent before it is told: what a choice goes by."""

    @property
    def capacity(self) -> int:
        """Streams it runs at the same time."""

    @property
    def device(self) -> str:
        """What it computes on (``cpu``, ``cuda`` …), "" where nobody has said."""

    @property
    def endpoint(self) -> str:
        """What it serves."""


#: A whole number from 0 to n - 1, each as likely as the others.
Draw = Callable[[int], int]


class Bag:
    """Workers in no order that means anything, any of which is at hand by a number."""

    __slots__ = ("_places", "workers")

    def __init__(self) -> None:
        #: To be read by whoever wants one or all; changed here alone.
        self.workers: list[Worker] = []
        self._places: dict[Worker, int] = {}

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._places

    def add(self, worker: Worker) -> None:
        """Put one in; in it already: nothing changes."""
        if worker not in self._places:
            self._places[worker] = len(self.workers)
            self.workers.append(worker)

    def remove(self, worker: Worker) -> None:
        """Take one out, if it is in; the last one takes its place."""
        place = self._places.pop(worker, None)
        if place is None:
            return
        last = self.workers.pop()
        if last is not worker:
            self.workers[place] = last
            self._places[last] = place

    def drawn(self, draw: Draw) -> Worker | None:
        """Any of them; None when there is none. One alone needs no draw."""
        workers = self.workers
        if len(workers) > 1:
            return workers[draw(len(workers))]
        return workers[0] if workers else None


class Loads:
    """Workers by their load, each as it was when it was last told of."""

    __slots__ = ("_bags", "_order", "_seen", "total")

    def __init__(self) -> None:
        #: The loads of all of them together.
        self.total = 0
        self._seen: dict[Worker, int] = {}
        self._bags: dict[int, Bag] = {}
        #: A heap of the keys of ``_bags``. A bag that has become empty stays until it is the lowest
        #: one, or until most are empty: it is often filled again by the next change.
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._seen

    def add(self, worker: Worker) -> None:
        """Take one in, or look again at one that is in."""
        load = worker.expected
        seen = self._seen.get(worker)
        if seen is None:
            self.total += load
        elif seen == load:
            return
        else:
            self.total += load - seen
            self._bags[seen].remove(worker)
        self._seen[worker] = load
        bag = self._bags.get(load)
        if bag is None:
            bag = self._bag(load)
        bag.add(worker)

    def remove(self, worker: Worker) -> None:
        """Let one go, if it is in."""
        seen = self._seen.pop(worker, None)
        if seen is not None:
            self.total -= seen
            self._bags[seen].remove(worker)

    def least(self) -> Bag | None:
        """Those that carry least; None when there is nobody."""
        order, bags = self._order, self._bags
        while order:
            bag = bags[order[0]]
            if bag.workers:
                return bag
            del bags[heappop(order)]
        return None

    def _bag(self, load: int) -> Bag:
        if len(self._bags) > 2 * len(self._seen) + 64:
            self._bags = {key: bag for key, bag in self._bags.items() if bag.workers}
            self._order = list(self._bags)
            heapify(self._order)
        bag = self._bags[load] = Bag()
        heappush(self._order, load)
        return bag
