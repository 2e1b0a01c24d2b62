"""Calls at a steady rate, whatever becomes of them, and what they tell of who serves.

Calls begin when they are due and wait for none before them: a worker that does not answer must not
stop us from seeing that the next call is sent there, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from perf.plan import PerfError

if TYPE_CHECKING:
    from actors import Client

ENDPOINT: Final = "perf.membership.answer"
#: Seconds between two calls, of one call, and for what a suite waits for.
PERIOD: Final = 0.005
LIMIT: Final = 8.0
PATIENCE: Final = 30.0
_LOOK: Final = 0.002


class Member(NamedTuple):
    """A worker as it tells of itself: seconds of CLOCK_MONOTONIC."""

    ready: float
    first: float


class Calls:
    """Calls of ``ENDPOINT`` from ``start`` to ``stop``, on the loop of its task group."""

    def __init__(self, client: Client, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._pacing: asyncio.Task[None] | None = None
        #: When each call that has not ended began.
        self._open: dict[int, float] = {}
        #: Who has answered, by pid; when each began that failed; the last answer of each pid.
        self.members: dict[int, Member] = {}
        self.failed: list[float] = []
        self.answered: dict[int, float] = {}

    def start(self) -> None:
        """Begin to call."""
        self._pacing = self._group.create_task(self._pace())

    async def stop(self) -> None:
        """Begin no more calls, and wait for those that are under way."""
        if self._pacing is not None:
            self._pacing.cancel()
        await self.wait(lambda: not self._open, "the last calls to end")

    async def _pace(self) -> None:
        due, number = time.monotonic(), 0
        while True:
            number += 1
            self._group.create_task(self._call(number))
            due += PERIOD
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _call(self, number: int) -> None:
        from actors import CallHomeError

        began = self._open[number] = time.monotonic()
        try:
            pid, ready, first = await self._client.call(ENDPOINT, None, timeout=LIMIT)
        except CallHomeError:
            self.failed.append(began)
        else:
            self.members[pid] = Member(ready, first)
            self.answered[pid] = time.monotonic()
        finally:
            del self._open[number]

    async def wait(self, found: Callable[[], object], what: str) -> None:
        """Until ``found()``. Raises PerfError when that takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not found():
            if time.monotonic() > deadline:
                raise PerfError(f"waited {PATIENCE:g} s in vain for {what}")
            await asyncio.sleep(_LOOK)

    async def newcomer(self, known: set[int]) -> int:
        """The first who answers and is none of ``known``. Raises PerfError when nobody comes."""
        await self.wait(lambda: self.members.keys() - known, "another worker")
        return next(pid for pid in self.members if pid not in known)

    async def settle(self) -> None:
        """Until no call is under way that has begun before now."""
        now = time.monotonic()
        await self.wait(lambda: all(began > now for began in self._open.values()), "calls to end")

    def none_after(self, since: float) -> float:
        """Seconds from ``since`` to the begin of the last call that failed: 0 when none did that
        had begun later.
        """
        return max([0.0, *(began - since for began in self.failed)])
