"""The seam between choosing a worker and reaching it.

A router selects, books and learns how streams ended; a dispatch brings an Open to the chosen worker
and sees that the stream reaches its home. It does not return the stream: on this node items go
straight from worker to home, from other nodes the dispatch relays them.
"""

from __future__ import annotations

from typing import Protocol

from actors.messages import Open, Record
from transport.bus.address import Address
from transport.errors import TooLarge


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


def too_large(open: Open, error: TooLarge) -> TooLarge:
    """The error of a request that does not fit into one message, as its sender can use it."""
    size, limit = error.details.get("size", ""), error.details.get("limit", "")
    if not size or not limit:
        return TooLarge(f"{open.target}: {error}", **error.details)
    metadata = sum(len(f"{name}{value}") for name, value in open.metadata.items())
    if 2 * metadata > int(size):
        what, less = f"a request with {metadata} bytes of metadata", "send less metadata"
    else:
        what, less = f"a request of {size} bytes", "send less"
    return TooLarge(
        f"{open.target}: {what}; {limit} may be sent to another node in one: raise max_message "
        f"(DYN_TCP_MAX_MESSAGE_SIZE) on both sides, or {less}",
        **error.details,
    )
