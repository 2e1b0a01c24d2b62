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
        self.context.set(zmq.MAX_SOCKETS, min(_SOCKETS, self.context.get(zmq.SOCKET_LIMIT)))
        # A socket that nobody has closed holds up no exit; those of a port say how long they may.
        self.context.set(zmq.BLOCKY, 0)
        self.ports: dict[int, Port] = {}

    def close(self) -> None:
        """End the context; every port must have been closed before."""
        self.context.term()


def socket_limit() -> int:
    """Sockets that one process can have, each peer takes two; for ``callhome doctor``."""
    with zmq.Context(io_threads=0) as context:
        return min(_SOCKETS, int(context.get(zmq.SOCKET_LIMIT)))


class PortStatistics(NamedTuple):
    """A port's counters: batches and messages each way, and what could not be read."""

    batches_in: int
    messages_in: int
    batches_out: int
    messages_out: int
    unreadable: int
    peers: int
