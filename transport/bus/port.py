"""The sockets of one actor: two inboxes, an outbox for every peer, and what keeps them bounded.

A port packs all messages that became ready for a peer in one loop tick into one batch and sends it
with one call. Data and control have an inbox and an outbox each; control is always read, data may
be held back. Bounds count messages and bytes here, not in ZeroMQ, whose own limits would block one
stream for another.

Ports of one process (``place="here"``) hand each other their messages without a socket, through the
``Bus`` they share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

import zmq

from transport.bus.address import Address, inbox_path
from transport.bus.socket import BURST, Inbox, Outlet
from transport.errors import LocalProtocolError, OutboxFull, RemoteProtocolError
from transport.wire.message import BatchReader, BatchWriter, Message

log = logging.getLogger("callhome.bus")

#: Batches that ZeroMQ may hold for one connection; what is beyond waits in the outbox, where it is
#: counted.
_PIPE = 64
#: Messages for one peer that are worth a batch of their own before the tick ends: enough to share
#: the cost of sending, few enough that both ends work at the same time.
_EARLY = 16
#: A tick with no more messages than this is a quiet one.
_FEW = 4
#: Incarnations known to be dead; nothing is sent to them.
_DEAD_KEPT = 4096

Deliver = Callable[[int, Message], None]


class PortStatistics(NamedTuple):
    """A port's counters: batches and messages each way, and batches that could not be read."""

    batches_in: int
    messages_in: int
    batches_out: int
    messages_out: int
    unreadable: int
    peers: int


class Bus:
    """What the ports of one process share: the ZeroMQ context, and each other."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.ports: dict[int, Port] = {}

    def close(self) -> None:
        """End the context; every port must have been closed before."""
        self.context.term()


class _Outbox:
    """Messages for one lane of one peer, until the tick's end."""

    __slots__ = (
        "address",
        "blocked_bytes",
        "control",
        "dirty",
        "messages",
        "outlet",
        "size",
        "waiters",
    )

    def __init__(self, address: Address, control: bool) -> None:
        self.address = address
        self.control = control
        self.messages: list[Message] = []
        self.size = 0
        self.blocked_bytes = 0
        self.dirty = False
        self.outlet: Outlet | None = None
        self.waiters: list[asyncio.Future[None]] = []


class Port:
    """The two inboxes and the outboxes of one actor; made and closed on its loop."""

    def __init__(
        self,
        bus: Bus,
        run: str,
        address: Address,
        deliver: Deliver,
        *,
        hello: Message,
        outbox_messages: int = 65_536,
        outbox_bytes: int = 256 << 20,
    ) -> None:
        """Bind both inboxes. Raises LocalProtocolError when a path is too long or already bound."""
        self.address = address
        self.run = run
        self._bus = bus
        self._deliver = deliver
        self._hello = hello
        self._limits = (outbox_messages, outbox_bytes)
        self._loop = asyncio.get_running_loop()
        self._writer = BatchWriter(address.incarnation)
        self._readers = (BatchReader(), BatchReader())
        self._boxes: dict[tuple[int, bool], _Outbox] = {}
        self._dirty: list[_Outbox] = []
        self._flush_planned = self._hurried = False
        self._quiet = True
        self._counted = 0
        self._closed = False
        self._dead: OrderedDict[int, None] = OrderedDict()
        #: Called at the start of each flush: whoever collects items per tick queues them now.
        self.before_flush: list[Callable[[], None]] = []
        self._local: deque[tuple[int, list[Message]]] = deque()
        self.batches_in = self.messages_in = self.batches_out = self.messages_out = (
            self.unreadable
        ) = 0
        self._data = self._bind("d")
        try:
            self._control = self._bind("c")
        except BaseException:
            self._data.close()
            raise
        bus.ports[address.incarnation] = self

    def _bind(self, lane: str) -> Inbox:
        path = inbox_path(self.run, self.address, lane)
        if os.path.exists(path):
            raise LocalProtocolError(
                f"another actor is bound at {path}; incarnations must be unique"
            )
        try:
            return Inbox(
                self._bus.context,
                path,
                self._data_batch if lane == "d" else self._control_batch,
                self._flush_now,
                _PIPE,
            )
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"inbox {path} cannot be bound: {error}") from error

    # ------------------------------------------------------------------------------------------ rec

    def _data_batch(self, batch: bytes) -> None:
        self._batch(batch, self._readers[0])

    def _control_batch(self, batch: bytes) -> None:
        self._batch(batch, self._readers[1])

    def _batch(self, batch: bytes, reader: BatchReader) -> None:
        self.batches_in += 1
        try:
            sender, messages = reader.unpack(batch)
        except RemoteProtocolError as error:
            self.unreadable += 1
            log.warning("%s dropped a batch of %d bytes: %s", self.address, len(batch), error)
            return
        self._hand_over(sender, messages)

    def _hand_over(self, sender: int, messages: list[Message]) -> None:
        self.messages_in += len(messages)
        deliver = self._deliver
        for each in messages:
            try:
                deliver(sender, each)
            except RemoteProtocolError as error:
                # One bad message must not take the rest of the batch, or the loop, with it.
                log.warning("%s refused a %s: %s", self.address, type(each).__name__, error)
            except Exception:
                log.exception("%s failed on a %s", self.address, type(each).__name__)

    def poll_control(self) -> None:
        """Read waiting control messages now, without blocking: for code that keeps the loop
        busy.
        """
        self._control.read(BURST)

    def poll_data(self) -> int:
        """Read waiting data now, without blocking; the number of batches read."""
        self._deliver_local()
        return self._data.read(BURST)

    def hold_data(self, held: bool) -> None:
        """Stop reading the data inbox, or go on; control is read all the same."""
        self._data.hold(held)

    # -------------------------------------------------------------------------------------------- s

    def send(self, to: Address, message: Message, control: bool = False, size: int = 64) -> None:
        """Queue a message for this tick's batch; ``size`` is its payload in bytes.

        Raises OutboxFull when the peer does not read. A message to an incarnation known to be dead
        is dropped: whoever holds something with it learns of the death from its own watch.
        """
        box = self._boxes.get((to.incarnation, control))
        if box is None:
            if to.incarnation in self._dead or self._closed:
                return
            box = self._open(to, control)
        limits = self._limits
        if len(box.messages) >= limits[0] or box.size + box.blocked_bytes >= limits[1]:
            raise OutboxFull(
                f"{to} does not read: {len(box.messages)} messages and "
                f"{box.size + box.blocked_bytes} bytes wait for it (bounds {limits[0]} and "
                f"{limits[1]}); slow down, or raise the bounds"
            )
        box.messages.append(message)
        box.size += size
        if not box.dirty:
            box.dirty = True
            self._dirty.append(box)
            if not self._flush_planned:
                self._flush_planned = True
                self._loop.call_soon(self.flush)
        elif len(box.messages) >= _EARLY:
            # The peer can begin with these while we still make the rest of this tick's batch.
            self._flush_box(box)

    def send_all(self, message: Message) -> None:
        """Queue a message for every peer that something was sent to: on data, else on control."""
        for incarnation, control in list(self._boxes):
            if not control or (incarnation, False) not in self._boxes:
                with contextlib.suppress(OutboxFull):
                    self.send(self._boxes[incarnation, control].address, message, control)

    def _open(self, to: Address, control: bool) -> _Outbox:
        box = self._boxes[to.incarnation, control] = _Outbox(to, control)
        if to.incarnation not in self._bus.ports:
            path = inbox_path(self.run, to, "c" if control else "d")
            box.outlet = Outlet(self._bus.context, path, lambda: self._drained(box), _PIPE)
        box.messages.append(self._hello)
        return box

    def hurry(self) -> None:
        """Send now what is queued, if little is going on: a lone request shall not wait for a turn.

        At most once a tick, so that a crowd of messages still leaves in batches.
        """
        if self._flush_planned and self._quiet and not self._hurried:
            self._hurried = True
            self._flush_queued()

    def plan_flush(self) -> None:
        """Flush at this tick's end: for whoever collects items outside the outboxes."""
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self.flush)

    def _flush_now(self) -> None:
        # At the end of a burst: what the messages caused leaves without another turn of the loop.
        if self._flush_planned:
            self.flush()

    def flush(self) -> None:
        """Send what is queued, one batch a peer and lane."""
        self._flush_planned = self._hurried = False
        self._flush_queued()
        self._quiet = self.messages_out - self._counted <= _FEW
        self._counted = self.messages_out

    def _flush_queued(self) -> None:
        for collect in self.before_flush:
            collect()
        if self._closed:
            return
        dirty, self._dirty = self._dirty, []
        for box in dirty:
            box.dirty = False
            self._flush_box(box)

    def _flush_box(self, box: _Outbox) -> None:
        outlet, messages = box.outlet, box.messages
        if not messages:
            return
        if outlet is None:
            box.messages, box.size = [], 0
            self._hand_local(box.address, messages)
            return
        if outlet.blocked:
            return  # they stay here, counted, until the peer reads
        box.messages = []
        size, box.size = box.size, 0
        try:
            batch = self._writer.pack(messages)
        except LocalProtocolError:
            log.exception("%s could not pack a batch for %s", self.address, box.address)
            return
        self.batches_out += 1
        self.messages_out += len(messages)
        outlet.send(batch)
        if outlet.blocked:
            box.blocked_bytes = max(size, len(batch))

    def _drained(self, box: _Outbox) -> None:
        box.blocked_bytes = 0
        self._flush_box(box)
        assert box.outlet is not None
        if not box.outlet.blocked:
            waiters, box.waiters = box.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def backlog(self, to: Address, control: bool = False) -> int:
        """Bytes that wait for a peer because it does not read; 0 while it does."""
        box = self._boxes.get((to.incarnation, control))
        if box is None or box.outlet is None or not box.outlet.blocked:
            return 0
        return box.size + box.blocked_bytes

    async def wait_drained(self, to: Address, control: bool = False) -> None:
        """Wait until nothing is held back for a peer; the caller gives the deadline."""
        box = self._boxes.get((to.incarnation, control))
        if box is not None and box.outlet is not None and box.outlet.blocked:
            waiter = self._loop.create_future()
            box.waiters.append(waiter)
            await waiter

    # ---------------------------------------------------------------------------------- within the

    def _hand_local(self, to: Address, messages: list[Message]) -> None:
        port = self._bus.ports.get(to.incarnation)
        if port is None:
            return
        if not port._local:
            self._loop.call_soon(port._deliver_local)
        port._local.append((self.address.incarnation, messages))

    def _deliver_local(self) -> None:
        while self._local:
            sender, messages = self._local.popleft()
            self._hand_over(sender, messages)
        self._flush_now()

    # ---------------------------------------------------------------------------------------------

    def forget(self, incarnation: int) -> None:
        """A peer is dead: close its outboxes and send it nothing more."""
        self._dead[incarnation] = None
        if len(self._dead) > _DEAD_KEPT:
            self._dead.popitem(last=False)
        for control in (False, True):
            box = self._boxes.pop((incarnation, control), None)
            if box is None:
                continue
            box.messages = []
            for waiter in box.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            if box.outlet is not None:
                box.outlet.close(0)

    def statistics(self) -> PortStatistics:
        """The counters, as they stand."""
        return PortStatistics(
            self.batches_in,
            self.messages_in,
            self.batches_out,
            self.messages_out,
            self.unreadable,
            len({incarnation for incarnation, _ in self._boxes}),
        )

    def close(self, linger: float = 0.5) -> None:
        """Send what is queued and close; ZeroMQ gets ``linger`` seconds for what it holds."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        for box in self._boxes.values():
            if box.outlet is not None:
                box.outlet.close(linger)
        self._data.close()
        self._control.close()
        self._bus.ports.pop(self.address.incarnation, None)
        for lane in ("d", "c"):
            # ZeroMQ leaves the files of closed ipc sockets behind.
            try:
                os.unlink(inbox_path(self.run, self.address, lane))
            except FileNotFoundError:
                continue
