"""What every discovery backend offers: a snapshot, then every change in order.

Used by routers and clients, which learn here which engines serve an endpoint and where routers and
actors are. Backends: the node's own registry (``actors.discovery.registry``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from actors.messages import Added, Removed, Snapshot

#: What a listener hears. A Snapshot replaces everything heard before it.
Change: TypeAlias = Snapshot | Added | Removed

#: Called on the loop for each change, in order. Must neither block nor raise.
Listener: TypeAlias = Callable[[Change], None]


class Subscription(Protocol):
    """One listener's place at a Discovery."""

    def cancel(self) -> None:
        """The listener hears nothing more; a second call does nothing."""


class Discovery(Protocol):
    """Where records are found. Every subscriber hears every change, whoever else subscribes."""

    async def subscribe(self, listener: Listener) -> Subscription:
        """Give ``listener`` a Snapshot before this returns, and each Added and Removed afterwards.

        Raises DeadlineExceeded or ActorDead when the source of the records does not answer.
        """
