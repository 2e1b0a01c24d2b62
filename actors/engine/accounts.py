"""What an engine's actor knows of each of those that it reports to: routers, and ingresses that
follow it.
"""

from __future__ import annotations

from typing import Any

from transport.bus.address import Address


class Account:
    """What this engine has to tell one router."""

    __slots__ = ("address", "ended", "opened", "seq", "settled")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.seq = 0
        self.opened = 0
        self.settled = 0
        self.ended: list[list[Any]] = []


class Follower:
    """A home that follows this engine, an ingress: its own streams it counts itself."""

    __slots__ = ("address", "mine", "seq", "told")

    def __init__(self, address: Address, mine: int) -> None:
        self.address = address
        self.seq = 0
        #: Streams here that are its own.
        self.mine = mine
        #: How many of others it was told of last; -1: it has to be told.
        self.told = -1
