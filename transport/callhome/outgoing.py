"""What a connection has yet to send: small parts are joined, large ones are sent from where they
are.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

Buffer = bytes | bytearray | memoryview

#: Parts smaller than this are joined with their neighbours: copying them costs less than an entry
#: in the list of parts that the system walks.
_SMALL: Final = 4096
#: Small parts joined in one go, in bytes.
_JOINED: Final = 256 * 1024
#: Parts given to the system at once.
_PARTS: Final = 64


class Outgoing:
    """The queue of one link, in order; only the link touches it."""

    __slots__ = ("_parts", "_queue", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes that the system has not taken yet."""
        self._parts: deque[bytes | memoryview] = deque()
        self._queue: deque[bytes | memoryview] = deque()

    def add(self, parts: Iterable[Buffer]) -> None:
        """Queue parts behind what waits; they are kept as they are."""
        for part in parts:
            if type(part) is not bytes:
                part = memoryview(part)
                if not part.nbytes:
                    continue
                part = part.cast("B")
            if part:
                self._parts.append(part)
                self.size += len(part)

    def send(self, sock: socket.socket) -> int:
        """Give the system what it takes in one call; the number of bytes, 0 when nothing waits.

        Raises BlockingIOError when it takes nothing now, and other OSErrors as ``socket.send``.
        """
        queue = self._queue
        if len(self._parts) == 1 and not queue:
            queue.append(self._parts.pop())
        elif self._parts:
            self._join()
        if not queue:
            return 0
        sent = sock.send(queue[0]) if len(queue) == 1 else sock.sendmsg(islice(queue, _PARTS))
        self.size -= sent
        left = sent
        while left:
            head = queue[0]
            if left < len(head):
                queue[0] = memoryview(head)[left:]
                break
            left -= len(head)
            queue.popleft()
        return sent

    def _join(self) -> None:
        parts, queue = self._parts, self._queue
        small: list[bytes | memoryview] = []
        size = 0
        while parts and len(queue) < _PARTS and size < _JOINED:
            part = parts.popleft()
            if len(part) < _SMALL:
                small.append(part)
                size += len(part)
                continue
            if small:
                queue.append(b"".join(small) if len(small) > 1 else small[0])
                small = []
            queue.append(part)
        if small:
            queue.append(b"".join(small) if len(small) > 1 else small[0])

    def clear(self) -> None:
        """Let go of all that waits."""
        self._parts.clear()
        self._queue.clear()
        self.size = 0
