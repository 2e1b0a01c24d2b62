"""Cancels of streams nobody has seen yet: remembered for a while, in case their Open follows."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

#: How long a cancel is remembered, in seconds, how many for each home, and for how many homes.
AGE = 5.0
MOST = 1024
HOMES = 4096


class Tombstone(NamedTuple):
    """One cancel; ``at`` is the clock's reading when it came."""

    at: float
    kill: bool
    reason: str


class Tombstones:
    """By home and stream number; the clock is passed in. Used by ``Serving``."""

    def __init__(self) -> None:
        self._homes: dict[int, OrderedDict[int, Tombstone]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._homes.values()))

    def put(self, home: int, number: int, now: float, kill: bool, reason: str) -> None:
        """Remember a cancel; a kill stays one when a stop follows it."""
        if home not in self._homes and len(self._homes) >= HOMES:
            del self._homes[next(iter(self._homes))]  # anybody can make up homes
        stones = self._homes.setdefault(home, OrderedDict())
        before = stones.get(number)
        stones[number] = Tombstone(now, kill or (before is not None and before.kill), reason)
        if len(stones) > MOST:
            stones.popitem(last=False)

    def take(self, home: int, number: int, now: float) -> Tombstone | None:
        """The cancel that came before this Open, if it is not too old."""
        stones = self._homes.get(home)
        found = stones.pop(number, None) if stones is not None else None
        return found if found is not None and now - found.at < AGE else None

    def forget(self, home: int) -> None:
        """A home is gone and will open nothing more."""
        self._homes.pop(home, None)

    def crumble(self, now: float) -> None:
        """Drop what is too old."""
        for home in list(self._homes):
            stones = self._homes[home]
            while stones and now - next(iter(stones.values())).at >= AGE:
                stones.popitem(last=False)
            if not stones:
                del self._homes[home]
