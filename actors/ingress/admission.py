"""How many streams go through an ingress at once, and how many requests wait behind them."""

from __future__ import annotations

from collections import OrderedDict

from actors.ingress.stream import Stream


class Admission:
    """Places for streams and a queue of requests, first in, first out; used by IngressActor.

    A request without a place waits; when the queue is full too, the next one is to be refused.
    """

    def __init__(self, pool: int, queue: int) -> None:
        self.pool = pool
        self.queue = queue
        #: Streams that have a place.
        self.placed = 0
        self._waiting: OrderedDict[int, Stream] = OrderedDict()
        self._placing = False

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def free(self) -> bool:
        """Whether the next request would get a place at once."""
        return self.placed < self.pool and not self._waiting

    @property
    def full(self) -> bool:
        """Whether the next request would have to be refused."""
        return not self.free and len(self._waiting) >= self.queue

    def take(self, stream: Stream) -> None:
        """Count a request that is not refused: it has a place, or waits; ``begin`` must follow."""
        if self.free:
            self.placed += 1
            stream.placed = True
        else:
            self._waiting[stream.number] = stream

    def left(self, stream: Stream) -> None:
        """A stream is over: its place goes to the one that has waited longest."""
        if not stream.placed:
            self._waiting.pop(stream.number, None)
            return
        self.placed -= 1
        if self._placing:
            return  # one that ended as it began: the loop below goes on with the next
        self._placing = True
        try:
            while self._waiting and self.placed < self.pool:
                _, waiting = self._waiting.popitem(last=False)
                self.placed += 1
                waiting.placed = True
                waiting.streams.begin(waiting)
        finally:
            self._placing = False
