"""What a node does by somebody's wish, step by step, for whoever follows it.

A step is a map of plain values: ``at`` (seconds since the beginning), ``actor``, ``step``, ``text``
(a line for people) and what belongs to the step. ``step`` is a word: ``withdrawn`` (nobody new
comes), ``waits`` (for what is under way), ``drained`` (none is left), ``stops`` (its process ends),
``begins`` (a process of its spec starts), ``serves`` (it is ready and known), ``failed`` (it did
not come up; ``code`` is that of the error). The last one is ``done``: ``ok``, ``cut`` (streams that
were ended with an error), ``finished`` and ``left`` (names of actors) and ``error``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any


def ended(count: int) -> str:
    """What is said of streams that were cut; "" for none."""
    if not count:
        return ""
    return f"{count} stream{' was' if count == 1 else 's were'} ended with an error"


class Work:
    """One piece of work of a node: it tells steps, others follow from the first on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        #: Streams that were cut.
        self.cut = 0
        #: Nobody wants more of it than what it is at.
        self.abandoned = False
        #: What it is at.
        self.now = ""
        self.over = False

    def tell(self, step: str, actor: str, text: str, **more: Any) -> None:
        """The next step."""
        at = round(time.monotonic() - self._began, 3)
        self._steps.append({"at": at, "actor": actor, "step": step, "text": text, **more})
        self.over = step == "done"
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Every step, from the first to ``done``."""
        told = 0
        while True:
            while told < len(self._steps):
                told += 1
                yield self._steps[told - 1]
            if self.over:
                return
            await self._news.wait()  # no step can come in between
