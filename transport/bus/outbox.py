"""What is on its way to one peer: gathered messages, and the outlet that takes them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable

import zmq

from transport.bus.address import Address
from transport.bus.claim import HIDDEN
from transport.bus.flow import Flight
from transport.bus.intake import Complaints
from transport.bus.socket import Outlet
from transport.errors import LocalProtocolError, OutboxFull, PeerLost
from transport.wire.message import BatchWriter, Message

log = logging.getLogger("callhome.bus")

#: Bytes a second that a peer's ZeroMQ takes at least, whatever its actor does: a thread of its own
#: reads. Local sockets carry some ten times as much.
_RATE = 100 << 20
#: Who has no socket left has none for each of many peers, again and again.
_complaints = Complaints()


class Outbox:
    """Messages for one lane of one peer, until the tick's end; ``bounds``: messages, bytes."""

    __slots__ = (
        "address",
        "blocked_bytes",
        "control",
        "dirty",
        "flight",
        "messages",
        "outlet",
        "size",
        "waiters",
    )

    def __init__(self, address: Address, control: bool, bounds: tuple[int, int]) -> None:
        self.address = address
        self.control = control
        self.messages: list[Message] = []
        self.size = 0
        self.blocked_bytes = 0
        self.dirty = False
        self.outlet: Outlet | None = None
        #: What ZeroMQ has been given and the peer has not read; control is always read.
        self.flight = Flight(*bounds)
        self.waiters: list[asyncio.Future[None]] = []

    def connect(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        drained: Callable[[], None],
        queue: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Open the outlet. Raises PeerLost when nobody is bound at ``path``, OutboxFull when there
        is no socket left.
        """
        if not os.path.exists(path):  # ZeroMQ would wait for it for ever
            if os.path.exists(path + HIDDEN):
                text = f"{self.address} takes no new peers: it has hardly a descriptor left"
                raise OutboxFull(f"{text}; raise its ulimit -n, or try again later")
            text = f"{self.address} has no inbox at {path}: it has closed, or was never there"
            raise PeerLost(f"{text}; look it up again", sent="no")
        try:
            self.outlet = Outlet(context, path, drained, queue, loop)
        except zmq.ZMQError as error:
            # Out of descriptors or sockets. It costs this peer, not its whole actor.
            text = f"no socket can be opened towards {self.address}: {error}; raise ulimit -n"
            if _complaints.due(0, "no socket"):
                log.error("%s", text)
            raise OutboxFull(text) from error

    def packed(self, writer: BatchWriter, messages: list[Message], sender: Address) -> bytes:
        """One batch; without those messages that cannot be packed."""
        try:
            return writer.pack(messages)
        except LocalProtocolError:
            log.exception("%s could not pack all messages for %s", sender, self.address)
            return writer.salvage(messages)

    @property
    def stuck(self) -> bool:
        """Whether nothing more can be handed over, because the peer does not read."""
        outlet, flight = self.outlet, self.flight
        return outlet is not None and (bool(outlet.waiting) or flight.bytes >= flight.limit)

    def marked(self, number: int) -> bool:
        """The peer has read as far as mark ``number``; whether there is room again for that."""
        stuck = self.stuck
        self.flight.marked(number)
        return stuck and not self.stuck

    def full(self, bounds: tuple[int, int]) -> bool:
        """Whether ``bounds`` (messages, bytes) have been reached, here and under way together."""
        flight = self.flight
        return (
            len(self.messages) + flight.messages >= bounds[0]
            or self.size + max(self.blocked_bytes, flight.bytes) >= bounds[1]
        )

    def disown(self) -> None:
        """In a forked child: the outlet is the parent's."""
        if self.outlet is not None:
            self.outlet.disown()

    def wake(self) -> None:
        """Let those go on who wait until the peer reads."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def close_all(boxes: Iterable[Outbox], linger: float, sender: Address) -> None:
    """Close the outlets of a port that ends, when all has been handed to them.

    What they hold, and then ZeroMQ, has ``linger`` seconds and the time that its bytes take; for
    what is lost even so there is a line in the log.
    """
    since = time.monotonic()
    for box in boxes:
        outlet = box.outlet
        if outlet is None:
            continue
        patience = linger and linger + box.flight.bytes / _RATE
        batches, size = outlet.finish(since + patience)
        if batches and linger:
            log.error(
                "%s ends, and %s has taken nothing for %.1f s: %d batches of messages to it, "
                "%d bytes, are lost",
                *(sender, box.address, patience, batches, size),
            )
        outlet.close(0 if batches else patience)
