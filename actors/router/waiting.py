"""Who waits for a worker, in which order: a bounded line for each endpoint of a router.

Pure. The larger priority goes first, among equals who came first. When the lines are full together,
the one that came last of those with the least priority leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _Place(Generic[_T]):
    """One place in a line."""

    __slots__ = ("endpoint", "item", "number", "priority")

    def __init__(self, endpoint: str, priority: int, number: int, item: _T) -> None:
        self.endpoint = endpoint
        self.priority = priority
        self.number = number
        self.item: _T | None = item


class Lines(Generic[_T]):
    """At most ``limit`` items wait, all endpoints together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._places: dict[_T, _Place[_T]] = {}
        #: Of each endpoint a heap, the next one first; and all places, the first to leave first.
        #: Places that were left stay until they come up or are too many.
        self._lines: dict[str, list[tuple[int, int, _Place[_T]]]] = {}
        self._losers: list[tuple[int, int, _Place[_T]]] = []

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: _T) -> bool:
        return item in self._places

    def put(self, endpoint: str, priority: int, item: _T) -> _T | None:
        """Line up; who has no place for it now, which may be the newcomer itself."""
        loser = None
        if len(self._places) >= self._limit:
            last = self._last()
            if last is None or last.priority >= priority:
                return item
            loser = last.item
            if loser is not None:
                self.leave(loser)
        self._number += 1
        place = self._places[item] = _Place(endpoint, priority, self._number, item)
        heappush(self._lines.setdefault(endpoint, []), (-priority, self._number, place))
        heappush(self._losers, (priority, -self._number, place))
        return loser

    def next(self, endpoint: str) -> _T | None:
        """Who goes first; he stays in the line."""
        line = self._lines.get(endpoint)
        while line:
            item = line[0][2].item
            if item is not None:
                return item
            heappop(line)
        self._lines.pop(endpoint, None)
        return None

    def waiting(self, endpoint: str) -> bool:
        """Whether anybody stands in the line."""
        return endpoint in self._lines and self.next(endpoint) is not None

    def ordered(self, endpoint: str) -> Iterator[_T]:
        """All who stand in the line, as they would go; the line may change meanwhile."""
        for _, _, place in sorted(self._lines.get(endpoint, ()), key=lambda each: each[:2]):
            if place.item is not None:
                yield place.item

    def leave(self, item: _T) -> bool:
        """Give a place up; False for who has none."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        place.item = None
        if len(self._losers) > 2 * len(self._places) + 64:
            self._sweep()
        return True

    def _last(self) -> _Place[_T] | None:
        while self._losers:
            place = self._losers[0][2]
            if place.item is not None:
                return place
            heappop(self._losers)
        return None

    def _sweep(self) -> None:
        self._losers = [each for each in self._losers if each[2].item is not None]
        heapify(self._losers)
        for endpoint, line in list(self._lines.items()):
            left = [each for each in line if each[2].item is not None]
            if left:
                heapify(left)
                self._lines[endpoint] = left
            else:
                del self._lines[endpoint]
