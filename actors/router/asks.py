"""Requests that wait until a policy of the user's own is asked for them: bounded, and in order.

Pure. The larger priority goes first, among equals who came first. One that is not wanted any more
is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from actors.errors import CallHomeError
from actors.messages import Open
from actors.router.loads import Worker
from transport.errors import RemoteProtocolError

#: Requests that may wait for their choice, and bytes of their payloads.
MOST: Final = 4096
BYTES: Final = 64 << 20

#: Gets who was chosen, why nobody was, or None: nobody was there to be chosen any more.
Done: TypeAlias = Callable[[Worker | CallHomeError | None], None]


def priority_of(open: Open) -> int:
    """How much of a hurry a stream is in. Raises RemoteProtocolError for what is no number."""
    priority = 0 if open.route is None else open.route.priority
    if type(priority) is not int:
        raise RemoteProtocolError(f"{open.target}: the priority of a stream is a whole number")
    return priority


class Ask:
    """One request that is to get a worker."""

    __slots__ = ("_asks", "done", "open", "size", "wanted", "workers")

    def __init__(self, asks: Asks, open: Open, workers: Sequence[Worker], done: Done) -> None:
        self._asks = asks
        self.open = open
        self.size = len(open.payload)
        self.workers = workers
        self.done: Done | None = done
        #: It stands in the order.
        self.wanted = False

    def withdraw(self) -> None:
        """Nobody wants the choice any more: ``done`` is not called."""
        self._asks.leave(self)
        self.done = None

    def tell(self, result: Worker | CallHomeError | None) -> None:
        """Call ``done``, unless nobody wants it any more."""
        done, self.done = self.done, None
        if done is not None:
            done(result)


class Asks:
    """Those that wait. Made by a UserPolicy."""

    def __init__(self) -> None:
        #: The next one first. Those that have left stay until they come up or are too many.
        self._heap: list[tuple[int, int, Ask]] = []
        self._number = 0
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, ask: Ask) -> bool:
        """Line up; False where too many wait. Raises RemoteProtocolError for a priority that is
        none.
        """
        priority = priority_of(ask.open)
        if self._count >= MOST or (self._count and self.bytes + ask.size > BYTES):
            return False
        ask.wanted = True
        self._count += 1
        self.bytes += ask.size
        self._number += 1
        heappush(self._heap, (-priority, self._number, ask))
        return True

    def next(self) -> Ask | None:
        """Who goes first; he leaves."""
        while self._heap:
            ask = heappop(self._heap)[2]
            if ask.wanted:
                self.leave(ask)
                return ask
        return None

    def leave(self, ask: Ask) -> None:
        """One waits no more, if it has."""
        if not ask.wanted:
            return
        ask.wanted = False
        self._count -= 1
        self.bytes -= ask.size
        if len(self._heap) > 2 * self._count + 64:
            self._heap = [each for each in self._heap if each[2].wanted]
            heapify(self._heap)
