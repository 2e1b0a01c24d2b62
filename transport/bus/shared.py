"""What the ports of one process share, and what each counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import zmq

if TYPE_CHECKING:
    from transport.bus.port import Port


_SOCKETS = 32_768


class Bus:
    """The ZeroMQ context of a process, and its ports by incarnation."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        # ZeroMQ's own bound of 1,023 would end an engine with that many callers; descriptors are
        # the bound that an operator knows.
        self.context.set(zmq.MAX_SOCKETS, _SOCKETS)
        self.ports: dict[int, Port] = {}

    def close(self) -> None:
        """End the context; every port must have been closed before."""
        self.context.term()


class PortStatistics(NamedTuple):
    """A port's counters: batches and messages each way, and what could not be read."""

    batches_in: int
    messages_in: int
    batches_out: int
    messages_out: int
    unreadable: int
    peers: int
