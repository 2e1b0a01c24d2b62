"""A router whose node stops: it sends no more streams on, and those to other nodes get their time.

Used by the router's actor. Streams of the node's own engines do not go through it.
"""

from __future__ import annotations

import asyncio

from actors.errors import Draining
from actors.kernel.draining import Drainer
from actors.kernel.runtime import Runtime
from actors.router.relay import Plane
from transport.errors import ConnectionLost


class Leaving:
    """See ``actors.kernel.draining``."""

    def __init__(self, runtime: Runtime, tasks: asyncio.TaskGroup, plane: Plane) -> None:
        self._plane = plane
        #: Why no stream is sent on any more; "" while the node does not stop.
        self.reason = ""
        Drainer(self, runtime, tasks)

    def refusal(self, target: str) -> Draining:
        """What a stream is told that comes now."""
        return Draining(f"{target}: {self.reason}; try another node")

    def refuse(self, reason: str) -> None:
        """From now on ``refusal`` is for whatever comes."""
        self.reason = reason

    def under_way(self) -> int:
        """Streams to other nodes."""
        return len(self._plane.relays)

    def cut(self, reason: str) -> None:
        """End these."""
        for relay in list(self._plane.relays.values()):
            relay.fail(ConnectionLost(f"{relay.target}: {reason}"))
