"""The mailbox of an actor: a bounded lane of messages that wait to be handled, one after the
other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """Messages in order of arrival. At its bound the data inbox is held: senders keep what they
    have.

    What is read already is taken in beyond the bound (one burst at most): nothing is thrown away.
    The control inbox is never held. Used by an actor, on its loop.
    """

    def __init__(self, bound: int, hold: Callable[[bool], None]) -> None:
        self._bound = bound
        self._hold = hold
        self._held = False
        self._queue: deque[_T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> bool:
        """Whether the bound has not been reached."""
        return len(self._queue) < self._bound

    def put(self, item: _T) -> None:
        """Queue a message; holds the data inbox when the bound is reached."""
        self._queue.append(item)
        if not self.room and not self._held:
            self._held = True
            self._hold(True)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> _T:
        """The oldest message; waits for one. Ends with the actor's task group."""
        while not self._queue:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        item = self._queue.popleft()
        if self._held and len(self._queue) <= self._bound // 2:
            self._held = False
            self._hold(False)
        return item
