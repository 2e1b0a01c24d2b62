"""The seam between choosing a worker and reaching it.

A router selects, books and learns how streams ended; a dispatch brings an Open to the chosen worker
and sees that the stream reaches its home. It does not return the stream: on this node items go
straight from worker to home, from other nodes the dispatch relays them.
"""

from __future__ import annotations

from typing import Protocol

from actors.messages import Open, Record
from transport.bus.address import Address


class StreamingDispatch(Protocol):
    """How streams reach workers: over the bus (``actors.router.local``), to nodes of ours
    (``actors.router.remote``), to Dynamo's workers (``actors.router.foreign``).

    Callbacks come in event order, may repeat, and must not block. Raises errors of
    ``actors.errors`` only, so that the router can tell a fault from a refusal; what is raised means
    that nothing has been sent.
    """

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """Bring a single-in stream to ``worker``. Raises ConnectionLost, EncodeError, OutboxFull,
        TooLarge.
        """

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """Bring a stream of requests to ``worker``. Raises what ``generate`` raises."""

    def on_instance_added(self, record: Record) -> None:
        """An instance can serve (again)."""

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """An instance gets no new streams; those that it has go on."""
