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
from collections import OrderedDict, deque
from collections.abc import Callable

import zmq

from transport.bus import forked
from transport.bus.address import Address, inbox_path, remove_inboxes
from transport.bus.claim import Claim
from transport.bus.flow import Mark, Marked
from transport.bus.guard import Guard
from transport.bus.intake import Deliver, Intake
from transport.bus.outbox import Outbox, close_all
from transport.bus.shared import Bus as Bus
from transport.bus.shared import PortStatistics
from transport.bus.socket import BURST, Inbox, Outlet
from transport.errors import CallHomeError, LocalProtocolError, OutboxFull, RemoteProtocolError
from transport.wire.message import BatchReader, BatchWriter, Message

#: Batches that ZeroMQ may hold for one connection on its way out; what is beyond waits in the
#: outbox, where it is counted.
_PIPE = 64
#: Batches that it may hold on their way in. When a peer ends while its pipe here is full, ZeroMQ
#: throws away what the kernel still holds: of 100 batches sent 65 arrived with a bound of 64, of
#: 4,000 all with this one.
_PIPE_IN = 4096
#: Messages for one peer that are worth a batch of their own before the tick ends: enough to share
#: the cost of sending, few enough that both ends work at the same time.
_EARLY = 16
#: Bytes for one peer beyond which each message gets a batch of its own: a batch has a largest size.
_LARGE = 64 << 20
#: A tick with no more messages than this is a quiet one.
_FEW = 4
#: Incarnations known to be dead; nothing is sent to them.
_DEAD_KEPT = 4096


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
        self._hello = hello
        self._limits = (outbox_messages, outbox_bytes)
        self._loop = asyncio.get_running_loop()
        self._writer = BatchWriter(address.incarnation)
        self._boxes: dict[tuple[int, bool], Outbox] = {}
        self._dirty: list[Outbox] = []
        self._intake = Intake(str(address), deliver, self._told)
        #: Batches that came, by sender.
        self.came = self._intake.came
        self._flush_planned = self._hurried = self._bursting = self._closed = False
        self._quiet = True
        self._counted = 0
        self.dead: OrderedDict[int, None] = OrderedDict()
        #: Called with a peer, and why, when nothing can be sent to it any more.
        self.unreachable: Callable[[Address, str], None] = lambda address, reason: None
        #: Whether an address may be true: nobody else is known by its incarnation.
        self.may_be: Callable[[Address], bool] = lambda address: True
        #: Called at the start of each flush: whoever collects items per tick queues them now.
        self.before_flush: list[Callable[[], None]] = []
        self._guard = Guard(address.name)
        self._local: deque[tuple[int, list[Message]]] = deque()
        self._held = False
        #: Outboxes of ports of this process that wait until data is read here again.
        self._waiting: dict[Outbox, Port] = {}
        self.batches_out = self.messages_out = 0
        self.claims: list[Claim] = []
        self._data = self._bind("d", self._intake.data)
        try:
            self._control = self._bind("c", self._intake.control)
        except BaseException:
            self._data.close()
            self.claims[0].release()
            raise
        bus.ports[address.incarnation] = self
        forked.keep(self)

    def _bind(self, lane: str, take: Callable[[bytes, BatchReader], None]) -> Inbox:
        claim, reader = Claim(inbox_path(self.run, self.address, lane)), BatchReader()
        try:
            inbox = Inbox(
                self._bus.context, claim, lambda batch: take(batch, reader), self.burst, _PIPE_IN
            )
        except zmq.ZMQError as error:
            claim.abandon()
            raise LocalProtocolError(f"inbox {claim.path} cannot be bound: {error}") from error
        self.claims.append(claim)
        return inbox

    def fault(self) -> str:
        """What is wrong with the inboxes, whose files others can reach; "" when all is well."""
        return next(filter(None, (claim.fault() for claim in self.claims)), "")

    def _told(self, sender: int, message: Message) -> None:
        """What ports say to each other: how far the other one has read."""
        if isinstance(message, Mark):
            if message.home.incarnation != sender or not self.may_be(message.home):
                raise RemoteProtocolError("it names another sender than its batch")
            self.send(message.home, Marked(message.number), control=True)
        elif isinstance(message, Marked):
            box = self._boxes.get((sender, False))
            if box is not None and box.marked(message.number):
                self._drained(box)

    def poll_control(self) -> None:
        """Read waiting control now, without blocking: for code that keeps the loop busy."""
        self._control.poll(BURST)

    def poll_data(self) -> int:
        """Read waiting data now, without blocking; the number of batches read."""
        self._deliver_local()
        return self._data.poll(BURST)

    def hold_data(self, held: bool) -> None:
        """Stop reading the data inbox, or go on; control is read all the same."""
        self._held = held
        self._data.hold(held)
        if not held and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for box, port in waiting.items():
                port._flush_box(box)

    def send(
        self,
        to: Address,
        message: Message,
        control: bool = False,
        size: int = 64,
        bounded: bool = False,
    ) -> None:
        """Queue a message for this tick's batch; ``size`` is its payload in bytes.

        Raises as ``queue`` does.
        """
        self.queue(to, message, control, size, bounded)
        if not self._flush_planned:
            self.plan_flush()

    def queue(
        self,
        to: Address,
        message: Message,
        control: bool = False,
        size: int = 64,
        bounded: bool = False,
    ) -> None:
        """Queue a message without seeing to it that it leaves; ``hurry`` or a flush must follow.

        ``bounded``: it begins something new, and is refused with OutboxFull when the peer does not
        read. What belongs to a stream is bounded by its credit and must not get lost. A message to
        an incarnation known to be dead is dropped: whoever holds something with it learns of the
        death from its own watch.
        """
        box = self._boxes.get((to.incarnation, control))
        if box is None:
            if to.incarnation in self.dead or self._closed:
                return
            try:
                box = self._open(to, control)
            except CallHomeError as error:
                self._loop.call_soon(self.unreachable, to, error.message)
                if bounded:
                    raise
                return
        if bounded and box.full(self._limits):
            raise OutboxFull(
                f"{to} does not read: {len(box.messages) + box.flight.messages} messages and "
                f"{box.size + box.flight.bytes} bytes wait for it (bounds {self._limits[0]} and "
                f"{self._limits[1]}); slow down, or raise the bounds"
            )
        box.messages.append(message)
        box.size += size
        if not box.dirty:
            box.dirty = True
            self._dirty.append(box)
        elif len(box.messages) >= _EARLY or box.size >= _LARGE:
            # The peer can begin with these while we still make the rest of this tick's batch.
            self._flush_box(box)

    def peers(self) -> list[Address]:
        """Everybody that something was sent to and who is not known to be dead."""
        return list({box.address for box in self._boxes.values()})

    def _open(self, to: Address, control: bool) -> Outbox:
        box = Outbox(to, control, self._limits)
        if to.incarnation not in self._bus.ports:
            path = inbox_path(self.run, to, "c" if control else "d")
            box.connect(self._bus.context, path, lambda: self._drained(box), _PIPE, self._loop)
        self._boxes[to.incarnation, control] = box
        box.messages.append(self._hello)
        return box

    def hurry(self) -> None:
        """Send now what is queued, if little is going on: a lone request shall not wait for a turn.

        At most once between two flushes or bursts received, so that a crowd of messages still
        leaves in batches.
        """
        if self._quiet and not self._hurried:
            self._hurried = True
            self._flush_queued(at_once=True)
        elif not self._flush_planned:
            self.plan_flush()

    def plan_flush(self) -> None:
        """Flush at this tick's end: for whoever collects items outside the outboxes."""
        if not self._flush_planned:
            self._flush_planned = True
            if not self._bursting and not self._loop.is_closed():
                self._loop.call_soon(self.flush)

    def burst(self, begins: bool) -> None:
        """Messages come in, or are all handled: what they caused leaves then, not a turn later."""
        self._bursting = begins
        if not begins:
            self._hurried = False
            if self._flush_planned:
                self.flush()

    def flush(self) -> None:
        """Send what is queued, one batch a peer and lane."""
        try:
            self._flush_queued()
        finally:
            # Only now: what the collectors queue leaves with this flush.
            self._flush_planned = self._hurried = False
        self._quiet = self.messages_out - self._counted <= _FEW
        self._counted = self.messages_out

    def _flush_queued(self, at_once: bool = False) -> None:
        for collect in self.before_flush:
            try:
                collect()
            except Exception as error:  # costs what it collects, and nobody else's messages
                self._guard.failed(collect, error)
        if self._closed:
            return
        dirty, self._dirty = self._dirty, []
        for box in dirty:
            box.dirty = False
            self._flush_box(box, at_once)

    def _flush_box(self, box: Outbox, at_once: bool = False, last: bool = False) -> None:
        outlet, messages = box.outlet, box.messages
        if not messages:
            return
        if outlet is None:
            self._hand_local(box, at_once)
            return
        flight = box.flight
        if (outlet.waiting or flight.bytes >= flight.limit) and not last:
            return  # they stay here, counted, until the peer reads
        box.messages = []
        size, box.size = box.size, 0
        self.messages_out += len(messages)
        if not box.control and flight.hand_over(len(messages), size):
            messages.append(flight.mark(self.address))
        if size < _LARGE:
            size = max(size, self._send_batch(box, outlet, messages))
        else:
            size = max(size, sum(self._send_batch(box, outlet, [each]) for each in messages))
        if outlet.waiting:
            box.blocked_bytes = size

    def _send_batch(self, box: Outbox, outlet: Outlet, messages: list[Message]) -> int:
        """Send one batch, or leave it with the outlet; its size in bytes."""
        batch = box.packed(self._writer, messages, self.address)
        self.batches_out += 1
        outlet.send(batch)
        return len(batch)

    def _drained(self, box: Outbox) -> None:
        box.blocked_bytes = 0
        self._flush_box(box)
        if not box.stuck:
            box.wake()

    def backlog(self, to: Address, control: bool = False) -> int:
        """Bytes that wait for a peer because it does not read; 0 while it does."""
        box = self._boxes.get((to.incarnation, control))
        if box is None or not box.stuck:
            return 0
        return box.size + max(box.blocked_bytes, box.flight.bytes)

    def full(self, to: Address) -> bool:
        """Whether the data for a peer has reached its bound because the peer does not read."""
        box = self._boxes.get((to.incarnation, False))
        return box is not None and box.stuck and box.full(self._limits)

    def pressed(self, to: Address) -> bool:
        """Whether half of the data that may wait for a peer does."""
        box = self._boxes.get((to.incarnation, False))
        most, size = self._limits
        return box is not None and box.full((most // 2 or 1, size // 2))

    async def wait_drained(self, to: Address, control: bool = False) -> None:
        """Wait until nothing is held back for a peer; the caller gives the deadline."""
        box = self._boxes.get((to.incarnation, control))
        if box is not None and box.stuck:
            waiter = self._loop.create_future()
            box.waiters.append(waiter)
            await waiter

    def _hand_local(self, box: Outbox, at_once: bool) -> None:
        port = self._bus.ports.get(box.address.incarnation)
        if port is not None and port._held and not box.control:
            port._waiting[box] = self  # they stay here, counted, until it reads
            return
        messages, box.messages, box.size = box.messages, [], 0
        if port is None:
            return
        if not port._local and not at_once and not self._loop.is_closed():
            self._loop.call_soon(port._deliver_local)
        port._local.append((self.address.incarnation, messages))
        if at_once:
            port._deliver_local()

    def _deliver_local(self) -> None:
        self._bursting = True
        while self._local:
            sender, messages = self._local.popleft()
            self._intake.hand_over(sender, messages)
        self.burst(begins=False)

    def forget(self, incarnation: int) -> None:
        """A peer is dead: close its outboxes and send it nothing more."""
        self.dead[incarnation] = None
        self.came.pop(incarnation, None)
        if len(self.dead) > _DEAD_KEPT:
            self.dead.popitem(last=False)
        for control in (False, True):
            box = self._boxes.pop((incarnation, control), None)
            if box is None:
                continue
            box.messages = []
            box.wake()
            if box.outlet is not None:
                box.outlet.close(0)

    def statistics(self) -> PortStatistics:
        """The counters, as they stand."""
        came, sent = self._intake, (self.batches_out, self.messages_out)
        peers = len({incarnation for incarnation, _ in self._boxes})
        return PortStatistics(came.batches, came.messages, *sent, came.unreadable, peers)

    def close(self, linger: float = 0.5) -> None:
        """Send what is queued, also to peers that have not read what was sent before, and close.

        A peer whose inbox takes nothing for ``linger`` seconds, longer where there is much, loses
        what is left; the log says so.
        """
        if self._closed:
            return
        self.flush()
        self._closed = True
        for box in self._boxes.values():
            self._flush_box(box, last=True)
        close_all(self._boxes.values(), linger, self.address)
        self._local.clear()
        self._data.close()
        self._control.close()
        self._bus.ports.pop(self.address.incarnation, None)
        if not self.fault():
            remove_inboxes(self.run, self.address)

    def forked(self) -> None:
        """In a forked child: the sockets and their files are the parent's."""
        self._closed = True
        self._data.disown()
        self._control.disown()
        for box in self._boxes.values():
            box.disown()
        self._boxes.clear()
