"""What is on its way to one peer: gathered messages, and the outlet that takes them."""

from __future__ import annotations

import asyncio

from transport.bus.address import Address
from transport.bus.socket import Outlet
from transport.wire.message import Message


class Outbox:
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

    def full(self, bounds: tuple[int, int]) -> bool:
        """Whether ``bounds`` (messages, bytes) have been reached."""
        return len(self.messages) >= bounds[0] or self.size + self.blocked_bytes >= bounds[1]
