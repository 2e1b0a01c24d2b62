"""One ZeroMQ socket on the running asyncio loop, driven by its descriptor and always drained.

A ZeroMQ descriptor signals edges, not levels: after an edge everything must be read (or written)
until the socket says "again", or the next edge never comes. Both classes here keep that rule, so
nobody above has to know it. Used by a port only, on its loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

import zmq

from transport.bus.claim import Claim
from transport.wire.message import MAX_BATCH

# Plain integers: each call with an enum member costs a microsecond more.
_NOBLOCK = int(zmq.NOBLOCK)
_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)

#: Messages read in one go before the loop gets its turn.
BURST = 64
#: How long who connects may take to say what he is, in milliseconds.
_HANDSHAKE = 5_000
#: What the system holds for ZeroMQ's last words when nobody has closed a socket, in milliseconds.
_LAST_WORDS = 500


class Inbox:
    """A bound PULL socket; ``deliver`` gets every message, in order of each sender."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        claim: Claim,
        deliver: Callable[[bytes], None],
        burst: Callable[[bool], None],
        queue: int,
    ) -> None:
        """Takes the claim's descriptor over, unless it raises ZMQError."""
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = queue
        self._socket.linger = 0
        # Whoever claims more is cut off before memory is taken.
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE)
        self._socket.setsockopt(zmq.USE_FD, claim.fd)
        try:
            self._socket.bind(f"ipc://{claim.path}")
        except zmq.ZMQError:
            self._socket.close(0)
            raise
        self._claim = claim
        self._deliver = deliver
        self._burst = burst
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.fd)
        self._held = False
        self._closed = False
        self._loop.add_reader(self._fd, self._readable)
        self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._held or self._closed:
            return
        self._burst(True)
        try:
            if self.read(BURST) == BURST:
                self._loop.call_soon(self._readable)
        finally:
            self._burst(False)

    def read(self, most: int) -> int:
        """Deliver at most ``most`` waiting messages without blocking; how many there were.

        For when there is most likely one: the first is taken without asking whether it is there.
        """
        receive, events, deliver, count = self._socket.recv, self._socket.get, self._deliver, 0
        try:
            while count < most and not self._held:
                deliver(receive(_NOBLOCK))
                count += 1
                # Asking costs a third of the exception that an empty socket raises.
                if not int(events(_EVENTS)) & _READABLE:
                    break
        except zmq.Again:
            return count
        return count

    def poll(self, most: int) -> int:
        """As ``read``, for when there is most likely nothing."""
        if self._closed or not int(self._socket.get(_EVENTS)) & _READABLE:
            return 0
        count = self.read(most)
        if count == most:
            # Asking has used up the edge of what is still there.
            self._loop.call_soon(self._readable)
        return count

    def hold(self, held: bool) -> None:
        """Stop reading, or go on; what waits stays with its senders."""
        if held == self._held or self._closed:
            return
        self._held = held
        if not held:
            # The edge of what came meanwhile is gone: look without being told.
            self._loop.call_soon(self._readable)

    def close(self) -> None:
        """Close; harmless twice, and when the loop has closed before."""
        if not self._closed:
            self._closed = True
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            self._socket.close(0)
            self._claim.unwatch()

    def disown(self) -> None:
        """In a forked child: touch neither the socket nor the loop, which the parent has, too."""
        self._closed = True
        self._claim.unwatch()


class Outlet:
    """A connected PUSH socket; what it cannot take at once waits here, in order."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        drained: Callable[[], None],
        queue: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = queue
        self._socket.linger = _LAST_WORDS
        self._socket.connect(f"ipc://{path}")
        self._drained = drained
        self._loop = loop
        self._fd = int(self._socket.fd)
        #: Batches that the peer has no room for, because it does not read.
        self.waiting: deque[bytes] = deque()
        self._watched = False
        self._closed = False

    def send(self, batch: bytes) -> None:
        """Send, or keep until the peer reads."""
        if self.waiting:
            self.waiting.append(batch)
            return
        try:
            self._socket.send(batch, _NOBLOCK)
        except zmq.Again:
            self.waiting.append(batch)
            self._watch(True)
            self._loop.call_soon(self._writable)

    def _watch(self, on: bool) -> None:
        if on != self._watched:
            self._watched = on
            if on:
                self._loop.add_reader(self._fd, self._writable)
            elif not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def _writable(self) -> None:
        if self._closed or not self.waiting:
            return
        self._write_on()
        if not self.waiting:
            self._watch(False)
            self._drained()

    def _write_on(self) -> None:
        waiting = self.waiting
        with contextlib.suppress(zmq.Again):
            while waiting:
                self._socket.send(waiting[0], _NOBLOCK)
                waiting.popleft()

    def finish(self, until: float) -> tuple[int, int]:
        """Before ``close``: block until the peer has room for what waits here, at most until the
        monotonic clock shows ``until``; batches and bytes for which it has none.
        """
        while self.waiting and not self._closed:
            self._write_on()
            rest = until - time.monotonic()
            if rest <= 0:
                break
            self._socket.poll(max(1, int(rest * 1000)), zmq.POLLOUT)
        return len(self.waiting), sum(map(len, self.waiting))

    def close(self, linger: float) -> None:
        """Close; what ZeroMQ holds is still sent for ``linger`` seconds, what waits here is
        dropped.
        """
        if not self._closed:
            self._closed = True
            self._watch(False)
            self.waiting.clear()
            self._socket.close(int(linger * 1000))

    def disown(self) -> None:
        """In a forked child: touch neither the socket nor the loop, which the parent has, too."""
        self._closed = True
        self.waiting.clear()
