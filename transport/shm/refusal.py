"""When a peer that could not map a segment is asked again."""

from __future__ import annotations

from typing import Final

#: Seconds until the first time, as long as a reader believes what it has found out; they double.
_FIRST: Final = 5.0
_LONGEST: Final = 300.0


class Refusal:
    """One peer has refused, at ``now`` of a monotonic clock."""

    __slots__ = ("_due", "_pause")

    def __init__(self, now: float) -> None:
        self._pause = _FIRST
        self._due = now + _FIRST

    def is_due(self, now: float) -> bool:
        """Whether it is time to ask; if so, the next time is later."""
        if now < self._due:
            return False
        self._pause = min(2 * self._pause, _LONGEST)
        self._due = now + self._pause
        return True
