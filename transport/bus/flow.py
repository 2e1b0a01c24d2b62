"""What has been handed to ZeroMQ for one peer and not been taken by it, in messages and bytes.

ZeroMQ's pipes count messages, not bytes, and do not say what stands in them: 64 batches of any size
here and thousands at the other end. So a port puts a ``Mark`` behind what it sends now and then;
its peer answers with ``Marked`` when it has read as far as that. Between two marks nothing is paid
but two additions a batch.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from transport.bus.address import Address
from transport.wire.message import message

#: Bytes that may be under way to one peer before the next batch waits here; one larger batch
#: passes alone.
FLIGHT: Final = 16 << 20
#: Messages between two marks at most.
_MESSAGES: Final = 16_384
#: Marks within what may be under way: the account is out by this part of it at most.
_PARTS: Final = 4


@message(43)
class Mark(NamedTuple):
    """Last of a batch on the data lane: tell ``home`` when you have read as far as this."""

    home: Address
    number: int


@message(44)
class Marked(NamedTuple):
    """The answer to Mark, on the control lane: everything before it has been read."""

    number: int


class Flight:
    """The account of one outbox; ``messages`` and ``bytes`` of it may be under way at most."""

    __slots__ = ("_every", "_marks", "_next", "_number", "bytes", "limit", "messages")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = self.bytes = 0
        #: Bytes from which on nothing more is handed over.
        self.limit = min(FLIGHT, size)
        self._every = (
            max(min(messages, _MESSAGES * _PARTS) // _PARTS, 1),
            max(self.limit // _PARTS, 1),
        )
        #: Messages and bytes since the last mark, and what stands before each open one.
        self._next = [0, 0]
        self._marks: deque[tuple[int, int, int]] = deque()
        self._number = 0

    def hand_over(self, messages: int, size: int) -> bool:
        """Count what is handed over; whether a mark is due behind it."""
        self.messages += messages
        self.bytes += size
        since, every = self._next, self._every
        since[0] += messages
        since[1] += size
        return since[0] >= every[0] or since[1] >= every[1]

    def mark(self, home: Address) -> Mark:
        """The mark behind what was handed over last."""
        self._number += 1
        self._marks.append((self._number, self._next[0], self._next[1]))
        self._next = [0, 0]
        return Mark(home, self._number)

    def marked(self, number: int) -> None:
        """The peer has read as far as mark ``number``; what no mark has is no news."""
        if not 0 < number <= self._number:
            return
        while self._marks and self._marks[0][0] <= number:
            _, messages, size = self._marks.popleft()
            self.messages -= messages
            self.bytes -= size
