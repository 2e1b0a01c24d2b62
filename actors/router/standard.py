"""The dispatch of a router that was told of no other: each stream by the road of its worker.

Workers of this node over the bus, those of other nodes of ours over the connection of their node,
Dynamo's by sockets. A user's own dispatch has it as ``seat.standard``.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.discovery.record import SPEAKS
from actors.messages import Open, Record
from actors.router.dispatch import HOSTED, StreamingDispatch
from actors.router.foreign import ForeignDispatch
from actors.router.local import LocalDispatch
from actors.router.lookup import Lookups
from actors.router.relay import Plane
from actors.router.remote import RemoteDispatch
from transport.bus.address import Address
from transport.errors import LocalProtocolError

#: Dispatches an Open to its worker by the given way, and tells the home what goes wrong.
Again = Callable[[Open, Record, StreamingDispatch], None]


class StandardDispatch:
    """Local, remote or foreign, by the record of the worker. Made by a router, once."""

    def __init__(self, plane: Plane, again: Again) -> None:
        self.local = LocalDispatch(plane.runtime)
        self.remote = RemoteDispatch(plane)
        self.foreign = ForeignDispatch(plane)
        # What has waited for the address of a host goes on from here: whoever stands before this
        # dispatch has seen it.
        self._lookups = Lookups(plane, lambda open, worker: again(open, worker, self))

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``."""
        if not worker.via:
            self.local.generate(open, worker, home)
        else:
            way = self._way(worker)
            if not self._lookups.hold(open, worker):
                way.generate(open, worker, home)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``."""
        way = self._way(worker)
        if not (worker.via and self._lookups.hold(open, worker)):
            way.generate_bidirectional(open, worker, home)

    def on_instance_added(self, record: Record) -> None:
        """See ``StreamingDispatch``."""
        if record.speaks != HOSTED:
            self._way(record).on_instance_added(record)

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """See ``StreamingDispatch``."""
        if record.speaks != HOSTED:
            self._way(record).on_instance_removed(record, reason)

    def _way(self, worker: Record) -> StreamingDispatch:
        if not worker.via:
            return self.local
        if worker.speaks == HOSTED:
            raise LocalProtocolError(
                f"{worker.endpoint}: a dispatch has published {worker.via} and must serve it "
                "itself; the standard dispatch does not know how"
            )
        return self.remote if worker.speaks == SPEAKS else self.foreign
