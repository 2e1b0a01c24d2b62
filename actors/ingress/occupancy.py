"""What the engines of this node carry, as a stream that routers of other nodes follow.

``callhome/occupancy`` is a path like that of the records, answered by the ingress itself: the load
of every engine, then of each that has changed, ten milliseconds apart at least. A reader that is
slow gets the newest only. Engines are asked for reports only while somebody follows.

Dynamo's requesters and this node's own clients need no word here: their streams are in what an
engine carries, and are no reader's own.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from actors.discovery.loads import Load, pack_loads
from actors.ingress.arrival import Arrival
from actors.ingress.connections import HomeConnection
from actors.ingress.own import OwnStream
from actors.ingress.records import Records
from actors.kernel.runtime import Runtime
from actors.messages import Record, Report, Subscribe, Unsubscribe

#: Seconds between two messages to one reader, at least.
EVERY: Final = 0.010
#: Loads in one message: it has to stay a small one.
_TOLD: Final = 500
#: Bytes that may wait on a reader's connection before it counts as slow.
_BACKLOG: Final = 65_536


class Loads:
    """The newest report of each engine of this node, and who follows them."""

    def __init__(self, runtime: Runtime, records: Records) -> None:
        self.runtime = runtime
        self.streams: set[LoadsStream] = set()
        self.newest: dict[int, Load] = {}
        self._records = records
        self._seq = 0
        records.when_added = self._added
        records.when_removed = self._removed
        runtime.on(Report, self._report)

    def enter(self, stream: LoadsStream) -> None:
        """One more reader; the first has the engines asked."""
        self.streams.add(stream)
        if len(self.streams) == 1:
            for _, record in self._records.all():
                self._added(record)

    def leave(self, stream: LoadsStream) -> None:
        """A reader is gone; behind the last the engines may be silent."""
        if stream not in self.streams:
            return
        self.streams.discard(stream)
        if not self.streams:
            self.newest.clear()
            for _, record in self._records.all():
                self._tell(record, Unsubscribe(self.runtime.address.incarnation))

    def _added(self, record: Record) -> None:
        if self.streams:
            self._tell(record, Subscribe(self.runtime.address))

    def _removed(self, record: Record) -> None:
        self.newest.pop(record.instance, None)

    def _tell(self, record: Record, message: Subscribe | Unsubscribe) -> None:
        if self.runtime.peers.watch(record.address):  # else its removal is on the way
            self.runtime.port.send(record.address, message, control=True)

    def _report(self, sender: int, m: Report) -> None:
        if sender != m.incarnation or not self.streams:
            return
        self._seq += 1
        load = Load(m.incarnation, self._seq, m.in_flight, m.queued, m.capacity, 0)
        self.newest[m.incarnation] = load
        for stream in self.streams:
            stream.tell(load)


class LoadsStream(OwnStream):
    """One router that follows the loads."""

    def __init__(
        self, loads: Loads, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> None:
        self._loads = loads
        #: By instance, what has not been told.
        self._due: dict[int, Load] = {}
        self._loop = asyncio.get_running_loop()
        self._planned: asyncio.TimerHandle | None = None
        super().__init__(loads.runtime, arrival, connection, remote)
        loads.enter(self)

    def begin(self) -> None:
        """Whatever is known goes at once, be it nothing: so the reader knows that it is heard."""
        self.connection.knows_faults = True
        for load in self._loads.newest.values():
            self._put(load)
        if self.credit.open:
            self._send()

    def tell(self, load: Load) -> None:
        """An engine's load has changed."""
        if self.running:
            self._put(load)
            self.more()

    def _put(self, load: Load) -> None:
        # What is the reader's own is counted when the report comes, and not when it is told.
        own = self.connection.carried.get(load.instance, ())
        self._due[load.instance] = load._replace(yours=len(own))

    def more(self) -> None:
        """Tell what is due, a little later."""
        if self._planned is None and self._due and self.credit.open:
            self._planned = self._loop.call_later(EVERY, self._tick)

    def _tick(self) -> None:
        self._planned = None
        mux = self.connection.mux
        if mux is not None and self.running and self.credit.open:
            if mux.backlog <= _BACKLOG:
                self._send()
            self.more()

    def _send(self) -> None:
        due = [self._due.pop(each) for each in list(islice(self._due, _TOLD))]
        self.send(pack_loads(due))

    def left(self) -> None:
        """Nobody is told any more."""
        self._loads.leave(self)
        self._due.clear()
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
