"""What an actor knows of the others of its plan while it starts itself.

Actors of one stage start beside each other, each in a process of its own: a reference that is used
in ``on_start`` may be to one that is not there yet. It waits for that one, as long as its own start
may take. Made by whoever runs the actor; ``Runtime.starting`` as long as ``on_start`` runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection
from typing import Final

from actors.errors import ActorDead, DeadlineExceeded
from transport.shm.segment import start_time

#: The part of the time for its start that an actor may wait for others: it can say so then.
_PART: Final = 0.8


class Starting:
    """Made for one start of the actor ``name``, which may take ``limit`` seconds from its exec on.

    ``beside``: who starts in the same stage. ``behind``: who starts later. ``alive`` tells whether
    an actor is there; after each change of that ``news`` is to be called.
    """

    def __init__(
        self,
        name: str,
        limit: float,
        alive: Callable[[str], bool],
        beside: Collection[str],
        behind: Collection[str],
    ) -> None:
        self._name = name
        self._limit = limit * _PART
        self._until = time.monotonic() + self._limit - _age()
        self._alive = alive
        self._beside = beside
        self._behind = behind
        self._news = asyncio.Event()

    def news(self) -> None:
        """Somebody has come or gone."""
        self._news.set()

    async def wait(self, name: str, limit: float | None = None) -> None:
        """Wait for the actor ``name``, at most ``limit`` seconds, where it starts beside this one.

        Raises ActorDead when it starts later or is this one, DeadlineExceeded when it takes too
        long.
        """
        if self._alive(name):
            return
        if name == self._name:
            raise ActorDead(f"{name!r} starts, and has no messages yet: on_start calls its methods")
        if name in self._behind:
            raise ActorDead(
                f"actor {name!r} starts after {self._name!r}, whose on_start waits for it: use the "
                "reference later, in a handler or in a task of self.tasks"
            )
        if name not in self._beside:
            return
        left = self._until - time.monotonic()
        left = max(0.0, left if limit is None else min(left, limit))
        try:
            async with asyncio.timeout(left):
                while not self._alive(name):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise DeadlineExceeded(self._late(name), limit="start") from None

    def _late(self, name: str) -> str:
        return (
            f"actor {name!r} is not up yet, and on_start of {self._name!r} waits for it (at "
            f"most {self._limit:g} s of its start_timeout); if {name!r} waits for {self._name!r} "
            "in turn, neither can start: let one of them use its reference later, in a handler or "
            "in a task of self.tasks"
        )


def _age() -> float:
    """Seconds since this process was started."""
    began = start_time(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
