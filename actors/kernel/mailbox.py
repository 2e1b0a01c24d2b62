"""The mailbox of an actor: a bounded lane of messages that wait to be handled, one after the
other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

_T = TypeVar("_T")


#: True in the task that runs a mailbox's handlers, and in tasks that those start.
IN_HANDLER: ContextVar[bool] = ContextVar("callhome_in_handler", default=False)

#: Hold back the data inbox: not, unless the running handler waits for it, or in any case.
GO, HOLD, HOLD_ALL = range(3)

#: Messages at which even a handler that waits has to go on waiting, until its own limit ends that;
#: so many times the bound, if that is less.
_LAST_BOUND = 65_536
_TIMES = 64
#: The same for bytes.
_TIMES_BYTES = 4


class Mailbox(Generic[_T]):
    """Messages in order of arrival. At its bound the data inbox is held: senders keep what they
    have.

    What is read already is taken in beyond the bound (one burst at most): nothing is thrown away.
    The control inbox is never held. While the running handler waits for a stream of its own, whose
    items come by the same inbox, that goes on being read, up to a last bound: 64 times as many
    messages, 65,536 at most, or four times as many bytes. Used by an actor, on its loop.
    """

    def __init__(self, bound: int, hold: Callable[[int], None], size: int = 1 << 62) -> None:
        """``bound``: messages, ``size``: bytes of them."""
        self._bound = bound
        self._last = max(bound, min(_LAST_BOUND, bound * _TIMES))
        self._most = size
        self._bytes = 0
        self._hold = hold
        self._level = GO
        self._queue: deque[tuple[_T, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> bool:
        """Whether neither bound has been reached."""
        return len(self._queue) < self._bound and self._bytes < self._most

    def put(self, item: _T, size: int = 0) -> None:
        """Queue a message of ``size`` bytes; holds the data inbox when a bound is reached."""
        self._queue.append((item, size))
        self._bytes += size
        if not self.room:
            last = len(self._queue) >= self._last or self._bytes >= self._most * _TIMES_BYTES
            self._set(HOLD_ALL if last else HOLD)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> _T:
        """The oldest message; waits for one. Ends with the actor's task group."""
        while not self._queue:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        item, size = self._queue.popleft()
        self._bytes -= size
        if self._level and len(self._queue) <= self._bound // 2 and self._bytes <= self._most // 2:
            self._set(GO)
        return item

    def _set(self, level: int) -> None:
        if level != self._level:
            self._level = level
            self._hold(level)
