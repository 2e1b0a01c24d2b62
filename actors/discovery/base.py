"""What every discovery backend offers: a snapshot, then every change in order; and what takes a
node's records to where other nodes look.

Used by routers and clients, which learn here which engines serve an endpoint and where routers and
actors are. Backends: the node's own registry (``actors.discovery.registry``), files in a directory,
etcd, other nodes that were named (``actors.router.peers``), and several of them as one
(``actors.discovery.merged``). All keep the contract of ``tests/discovery/test_contract.py``.
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


class Source(Discovery, Protocol):
    """A Discovery beyond the node, with means of its own: it is asked how it is, and stopped."""

    def state(self) -> str:
        """What cannot be read, why, and since when; "" while it can."""

    def stop(self) -> None:
        """Let go of its means; subscribers hear nothing more. A second call does nothing."""


class Publisher(Protocol):
    """Keeps the records of one node's engines where other nodes look, as long as its ingress lives.

    Made by the ingress once it listens: ``start``, then every Change of the node's registry to
    ``changed``, then ``close``.
    """

    def start(self) -> None:
        """Raises SpecError for what only its user can mend, such as a missing extra."""

    def changed(self, change: Change) -> None:
        """What the node serves now; anything but engines on this node's bus is left. It does not
        block: what is slow elsewhere holds nobody up here.
        """

    async def settle(self, limit: float) -> None:
        """Wait until every change told so far stands there, at most ``limit`` seconds; not at all
        while nothing can be written.
        """

    async def close(self) -> None:
        """Withdraw everything, within some seconds."""

    def state(self) -> str:
        """Where records cannot be written, why, and since when; "" while they can."""
