"""A router that is to end: it sends no more streams on, and those that go through it get their
time: streams to other nodes, those that its dispatch answers itself, and those that it has sent to
an engine here which has not seen them yet. Whoever waits for such a one would lose it with us.

Used by the router's actor. Streams of the node's own engines do not go through it. What it reads
itself of other nodes goes on meanwhile, and holds nothing up.
"""

from __future__ import annotations

import asyncio

from actors.errors import Draining
from actors.kernel.draining import Drainer
from actors.kernel.runtime import Runtime
from actors.router.occupancy import Occupancy
from actors.router.relay import Plane, Relay
from actors.router.seat import Hosted
from transport.errors import ConnectionLost


class Leaving:
    """See ``actors.kernel.draining``."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        plane: Plane,
        hosted: Hosted,
        occupancy: Occupancy,
    ) -> None:
        self._runtime = runtime
        self._plane = plane
        self._hosted = hosted
        self._occupancy = occupancy
        #: Why no stream is sent on any more; "" while the node does not stop.
        self.reason = ""
        Drainer(self, runtime, tasks)

    def refusal(self, target: str) -> Draining:
        """What a stream is told that comes now."""
        return Draining(f"{target}: {self.reason}; try another node")

    def refuse(self, reason: str, succeeded: bool = False) -> None:
        """From now on ``refusal`` is for whatever comes; "": nothing is refused any more."""
        self.reason = reason

    def under_way(self) -> int:
        """Streams of others, those that are on their way to an engine, and those of workers that
        have just died: their homes are told so first, behind what the worker had sent.
        """
        ours = len(self._relays()) + len(self._hosted.under_way())
        return ours + self._on_their_way() + self._orphaned()

    def _on_their_way(self) -> int:
        return sum(
            min(worker.unseen, worker.permits)
            for worker in self._occupancy.workers.values()
            if worker.unseen
            and not worker.record.via
            and worker.address.pid
            and self._runtime.peers.alive(worker.address)
            and self._runtime.vigil.well(worker.address)
        )

    def _orphaned(self) -> int:
        return sum(
            worker.permits
            for worker in self._occupancy.workers.values()
            if worker.permits
            and not worker.record.via
            and worker.address.pid
            and not self._runtime.peers.alive(worker.address)
        )

    def _relays(self) -> list[Relay]:
        return [each for each in self._plane.relays.values() if not each.follows]

    def cut(self, reason: str) -> None:
        """End these."""
        for relay in self._relays():
            relay.fail(ConnectionLost(f"{relay.target}: {reason}"))
        self._hosted.cut(reason)
