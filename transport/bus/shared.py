"""What the ports of one process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from transport.bus.port import Port


class Bus:
    """The ZeroMQ context of a process, and its ports by incarnation."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.ports: dict[int, Port] = {}

    def close(self) -> None:
        """End the context; every port must have been closed before."""
        self.context.term()
