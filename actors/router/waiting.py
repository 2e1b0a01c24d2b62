"""Who waits for a worker, in which order: a bounded line for each endpoint of a router.

Pure. The larger priority goes first, among equals who came first. When the lines are full together,
the one that came last of those with the least priority leaves; among equals, a long line makes room
for a shorter one, so that a crowd at one endpoint keeps nobody from another.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _Place(Generic[_T]):
    """One place in a line."""

    __slots__ = ("item", "line", "number", "priority")

    def __init__(self, line: _Line[_T], priority: int, number: int, item: _T) -> None:
        self.line = line
        self.priority = priority
        self.number = number
        self.item: _T | None = item


#: Places in the order that the two numbers give.
_Heap = list[tuple[int, int, _Place[_T]]]


class _Line(Generic[_T]):
    """The line of one endpoint."""

    __slots__ = ("count", "endpoint", "going", "leaving")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        #: How many stand in it.
        self.count = 0
        #: All of them twice: the next one first, and the first to lose its place first. Places that
        #: were left stay until they come up or are too many.
        self.going: _Heap[_T] = []
        self.leaving: _Heap[_T] = []

    def put(self, place: _Place[_T]) -> None:
        self.count += 1
        heappush(self.going, (-place.priority, place.number, place))
        heappush(self.leaving, (place.priority, -place.number, place))

    def left(self) -> None:
        """Somebody has given up his place."""
        self.count -= 1
        if max(len(self.going), len(self.leaving)) > 2 * self.count + 64:
            for heap in (self.going, self.leaving):
                heap[:] = [each for each in heap if each[2].item is not None]
                heapify(heap)

    def next(self) -> _T:
        """Who goes first; there is somebody."""
        return _top(self.going)[1]

    def last(self) -> _Place[_T]:
        """Who loses his place first; there is somebody."""
        return _top(self.leaving)[0]


def _top(heap: _Heap[_T]) -> tuple[_Place[_T], _T]:
    while True:
        place = heap[0][2]
        if place.item is not None:
            return place, place.item
        heappop(heap)


class Lines(Generic[_T]):
    """At most ``limit`` items wait, all endpoints together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._places: dict[_T, _Place[_T]] = {}
        #: Lines in which somebody stands.
        self._lines: dict[str, _Line[_T]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: _T) -> bool:
        return item in self._places

    def put(self, endpoint: str, priority: int, item: _T) -> _T | None:
        """Line up; who has no place for it now, which may be the newcomer itself."""
        loser = None
        if len(self._places) >= self._limit:
            place = self._loser(endpoint, priority)
            if place is None or place.item is None:
                return item
            loser = place.item
            self.leave(loser)
        line = self._lines.get(endpoint)
        if line is None:
            line = self._lines[endpoint] = _Line(endpoint)
        self._number += 1
        place = self._places[item] = _Place(line, priority, self._number, item)
        line.put(place)
        return loser

    def next(self, endpoint: str) -> _T | None:
        """Who goes first; he stays in the line."""
        line = self._lines.get(endpoint)
        return None if line is None else line.next()

    def waiting(self, endpoint: str) -> bool:
        """Whether anybody stands in the line."""
        return endpoint in self._lines

    def ordered(self, endpoint: str) -> Iterator[_T]:
        """All who stand in the line, as they would go; the line may change meanwhile."""
        line = self._lines.get(endpoint)
        if line is not None:
            for _, _, place in sorted(line.going, key=lambda each: each[:2]):
                if place.item is not None:
                    yield place.item

    def leave(self, item: _T) -> bool:
        """Give a place up; False for who has none."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        place.item = None
        place.line.left()
        if not place.line.count:
            del self._lines[place.line.endpoint]
        return True

    def _loser(self, endpoint: str, priority: int) -> _Place[_T] | None:
        """Who makes room for a newcomer; None: nobody."""
        lasts = [line.last() for line in self._lines.values()]
        if not lasts:
            return None
        last = min(lasts, key=lambda each: (each.priority, -each.number))
        if last.priority != priority:
            return last if last.priority < priority else None
        longest = max(
            (each for each in lasts if each.priority == priority), key=lambda each: each.line.count
        )
        own = self._lines.get(endpoint)
        shorter = (0 if own is None else own.count) + 1 < longest.line.count
        return longest if shorter else None
