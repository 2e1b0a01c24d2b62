"""The pooled connections with one host, on which requests are pipelined and answered in order.

A reply carries no number: the k-th belongs to the k-th request of its connection. So a request that
nobody waits for any more keeps its place, and its late reply is swallowed there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from transport.callhome.dialer import dial_link
from transport.callhome.link import Link
from transport.callhome.net import Net
from transport.errors import (
    CallHomeError,
    ConnectionLost,
    DeadlineExceeded,
    OutboxFull,
    RemoteProtocolError,
)
from transport.wire.framing import Buffer
from transport.wire.request import ReplyReader, pack_request

Answered = Callable[[bytes | CallHomeError], None]

#: Requests, and their bytes, that may wait for one host to have a place.
_WAITING: Final = 4096
_WAITING_BYTES: Final = 256 << 20
#: Bytes that may wait in one connection before it counts as saturated.
_BACKLOG: Final = 4 << 20
#: Seconds between attempts to have one connection more, after one that failed.
_GROW_AGAIN: Final = 0.5
#: Limits of acknowledgement after which a connection that answers nothing is given up.
_PATIENCE: Final = 3


class Waiting(NamedTuple):
    """A request without a connection; ``deadline`` on the loop's clock."""

    path: str
    headers: Mapping[str, str]
    parts: Sequence[Buffer]
    size: int
    answered: Answered
    deadline: float


class Limits(NamedTuple):
    """Bounds of a pool: seconds to have a connection and a reply, connections of one host, requests
    under way on one connection.
    """

    connect_timeout: float
    ack_timeout: float
    connections: int
    depth: int


class _Slot:
    """The place of a request in the order of replies; without ``answered`` nobody waits."""

    __slots__ = ("answered", "deadline")

    def __init__(self, answered: Answered, deadline: float) -> None:
        self.answered: Answered | None = answered
        self.deadline = deadline


class _Line:
    """One connection of a host."""

    __slots__ = ("_host", "_reader", "link", "slots")

    def __init__(self, host: Host, link: Link) -> None:
        self._host = host
        self._reader = ReplyReader()
        self.link = link
        self.slots: deque[_Slot] = deque()
        link.start(self._received, self._ended)

    def has_room(self, depth: int) -> bool:
        """Whether it takes another request: it answers in time, and little is under way."""
        slots = self.slots
        if not slots:
            return self.link.backlog < _BACKLOG
        return len(slots) < depth and slots[0].answered is not None and self.link.backlog < _BACKLOG

    def put(self, frame: list[Buffer], answered: Answered, deadline: float) -> None:
        """Send a request; its reply is the next after those that are awaited already."""
        alone = not self.slots
        self.slots.append(_Slot(answered, deadline))
        self.link.write(*frame)
        if alone:  # the others of a crowd leave together, at the tick's end
            self.link.flush()

    def check(self, now: float, limit: float) -> None:
        """Tell those whose acknowledgement is overdue; give up a connection that answers nobody."""
        for slot in self.slots:
            if slot.deadline > now:
                return
            answered, slot.answered = slot.answered, None
            if answered is not None:
                text = (
                    f"{self.link.peer} has not acknowledged a request within {limit:g} s; it may "
                    "have taken it"
                )
                self._host.tell(answered, DeadlineExceeded(text, sent="maybe"))
        if self.slots and now - self.slots[0].deadline > limit * (_PATIENCE - 1):
            text = f"{self.link.peer} has answered nothing for {limit * _PATIENCE:g} s"
            self.fail(ConnectionLost(text))

    def fail(self, error: CallHomeError, abort: bool = True) -> None:
        """The connection is of no use any more; all that wait for a reply on it are told."""
        self.link.close(abort=abort)
        slots, self.slots = self.slots, deque()
        self._host.lost(self)
        for slot in slots:
            answered, slot.answered = slot.answered, None
            if answered is not None:
                self._host.tell(answered, _told(error, "maybe"))

    def _received(self, data: memoryview) -> None:
        reader = self._reader
        for reply in reader.feed(data):
            if not self.slots:
                raise RemoteProtocolError(f"{self.link.peer} has answered what nobody has asked")
            answered = self.slots.popleft().answered
            if answered is not None:
                self._host.tell(answered, reply)
        if reader.fault is not None:
            raise reader.fault
        self._host.answered(self)

    def _ended(self, error: CallHomeError | None) -> None:
        if error is None:
            error = ConnectionLost(f"{self.link.peer} has closed the connection for requests")
        self.fail(error)


class Host:
    """The connections with one address, and the requests that have none yet; for a client.

    ``tasks`` is the actor's task group, ``gate`` bounds the connections being made at once.
    """

    def __init__(
        self,
        net: Net,
        tasks: asyncio.TaskGroup,
        gate: asyncio.Semaphore,
        limits: Limits,
        address: str,
    ) -> None:
        self._net = net
        self._tasks = tasks
        self._gate = gate
        self._limits = limits
        self._closed = False
        self.address = address
        self.lines: list[_Line] = []
        #: Connections that take no more requests, until their last reply.
        self._retired: list[_Line] = []
        self.waiting: deque[Waiting] = deque()
        self.connecting: asyncio.Task[None] | None = None
        self.used = 0.0
        self._bytes = 0
        self._turn = 0
        self._grow_at = 0.0

    @property
    def busy(self) -> bool:
        """Somebody waits for something here."""
        return bool(self.waiting) or any(line.slots for line in [*self.lines, *self._retired])

    def send(self, request: Waiting, frame: list[Buffer]) -> None:
        """Send the request, which ``frame`` is packed from, or let it wait for a connection."""
        self.used = now = self._net.loop.time()
        line = None if self.waiting else self._pick()
        if line is not None:
            line.put(frame, request.answered, now + self._limits.ack_timeout)
            return
        if len(self.waiting) >= _WAITING or self._bytes + request.size > _WAITING_BYTES:
            text = (
                f"{len(self.waiting)} requests of {self._bytes} bytes wait for a connection with "
                f"{self.address} already"
            )
            self._net.loop.call_soon(self.tell, request.answered, OutboxFull(text, sent="no"))
            return
        self.waiting.append(request)
        self._bytes += request.size
        self._grow(now)

    def dispatch(self) -> None:
        """Send what waits, as far as there is room; have one connection more for the rest."""
        while self.waiting:
            line = self._pick()
            now = self._net.loop.time()
            if line is None:
                self._grow(now)
                return
            request = self.waiting.popleft()
            self._bytes -= request.size
            self.used = now
            frame = pack(request.path, request.headers, request.parts)
            line.put(frame, request.answered, now + self._limits.ack_timeout)

    def retire(self) -> None:
        """Use the connections that there are for nothing more: each ends behind its last reply."""
        lines, self.lines = self.lines, []
        self._retired += lines
        for line in lines:
            self.answered(line)

    def answered(self, line: _Line) -> None:
        """A connection has brought replies, or is not to bring any more."""
        if line not in self._retired:
            self.dispatch()
        elif not line.slots:
            line.link.close()
            self.lost(line)

    def check(self, now: float) -> bool:
        """See to all deadlines; whether anything is left to wait for."""
        while self.waiting and self.waiting[0].deadline <= now:
            request = self.waiting.popleft()
            self._bytes -= request.size
            limit = f"{self._limits.connect_timeout:g} s"
            text = f"no connection with {self.address} had room for a request within {limit}"
            self.tell(request.answered, DeadlineExceeded(text, sent="no"))
        for line in [*self.lines, *self._retired]:
            line.check(now, self._limits.ack_timeout)
        self.dispatch()
        return self.busy

    def lost(self, line: _Line) -> None:
        """A connection is gone; what has not been sent goes over another."""
        for lines in (self.lines, self._retired):
            if line in lines:
                lines.remove(line)
        self.dispatch()

    def tell(self, answered: Answered, answer: bytes | CallHomeError) -> None:
        """Call back; what the caller raises is not the fault of a connection."""
        try:
            answered(answer)
        except Exception as error:
            text = f"failed on the answer to a request to {self.address}"
            self._net.complain("request.failed", text, error)

    def close(self, error: CallHomeError) -> None:
        """Be done with this host; who waits is told."""
        self._closed = True
        if self.connecting is not None:
            self.connecting.cancel()
        self._refuse_waiting(error)
        lines, self.lines, self._retired = [*self.lines, *self._retired], [], []
        for line in lines:
            line.fail(error, abort=False)

    def _refuse_waiting(self, error: CallHomeError) -> None:
        waiting, self.waiting = self.waiting, deque()
        self._bytes = 0
        for request in waiting:
            self.tell(request.answered, _told(error, "no"))

    def _pick(self) -> _Line | None:
        lines, count, depth = self.lines, len(self.lines), self._limits.depth
        for step in range(count):
            at = (self._turn + step) % count
            if lines[at].has_room(depth):
                self._turn = at + 1
                return lines[at]
        return None

    def _grow(self, now: float) -> None:
        """One connection more, made one at a time; the next is begun when that one is full too."""
        if (
            self.connecting is not None
            or len(self.lines) >= self._limits.connections
            or now < self._grow_at
            or self._closed
        ):
            return
        connecting = self._connect()
        try:
            self.connecting = self._tasks.create_task(connecting, name=f"connect {self.address}")
        except RuntimeError:  # the actor is ending
            connecting.close()
            error = ConnectionLost("this actor is ending")
            self._net.loop.call_soon(self._refuse_waiting, error)

    async def _connect(self) -> None:
        try:
            async with self._gate:
                link = await dial_link(self._net, self.address, self._limits.connect_timeout)
        except CallHomeError as error:
            self.connecting = None
            self._connect_failed(error)
        except Exception as error:
            self.connecting = None
            self._net.complain("request.connect", f"failed to connect to {self.address}", error)
            self._connect_failed(ConnectionLost(f"no connection with {self.address}: {error}"))
        else:
            self.connecting = None
            if self._closed:
                link.close()
                return
            self.lines.append(_Line(self, link))
            self.dispatch()

    def _connect_failed(self, error: CallHomeError) -> None:
        self._net.count("request.connect")
        if self.lines:
            # What there is goes on working; the requests wait for room there.
            self._grow_at = self._net.loop.time() + _GROW_AGAIN
        else:
            self._refuse_waiting(error)


def pack(path: str, headers: Mapping[str, str], parts: Sequence[Buffer]) -> list[Buffer]:
    """A request's frame as it is sent now: its time is taken right before the write.

    Raises LocalProtocolError when path or headers do not fit into it.
    """
    stamp = {"x-endpoint-path": path, "x-frontend-send-ts-ns": str(time.time_ns())}
    return pack_request(path, {**headers, **stamp}, parts)


def _told(error: CallHomeError, sent: str) -> CallHomeError:
    """An error of its own for each who hears it: they may be raised in several places."""
    return type(error)(error.message, **{**error.details, "sent": sent})
