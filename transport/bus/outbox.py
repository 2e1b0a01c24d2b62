"""What is on its way to one peer: gathered messages, and the outlet that takes them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import zmq

from transport.bus.address import Address
from transport.bus.flow import Flight
from transport.bus.socket import Outlet
from transport.errors import LocalProtocolError, OutboxFull, PeerLost
from transport.wire.message import BatchWriter, Message

log = logging.getLogger("callhome.bus")


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
            text = f"{self.address} has no inbox at {path}: it has closed, or was never there"
            raise PeerLost(f"{text}; look it up again", sent="no")
        try:
            self.outlet = Outlet(context, path, drained, queue, loop)
        except zmq.ZMQError as error:
            # Out of descriptors or sockets. It costs this peer, not its whole actor.
            text = f"no socket can be opened towards {self.address}: {error}; raise ulimit -n"
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
        return outlet is not None and (outlet.blocked or flight.bytes >= flight.limit)

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
