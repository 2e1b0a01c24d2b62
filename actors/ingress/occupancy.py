"""What the engines of this node carry, as a stream that routers of other nodes follow.

``callhome/occupancy`` is a path like that of the records, answered by the ingress itself: the load
of every engine, then of each that has changed for the reader, ten milliseconds apart at least. A
reader that is slow gets the newest only.

A load is what the engine carries for others, which it reports while somebody follows, and the
streams that go through this ingress, which are counted here. A reader knows of its own streams:
where there are only those it is told nothing, but that an engine which was full has room.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from actors.discovery.loads import Ill, Load, follows_warnings, pack_loads
from actors.ingress.arrival import Arrival
from actors.ingress.connections import Connections, HomeConnection
from actors.ingress.own import OwnStream
from actors.ingress.records import Records
from actors.ingress.streams import Streams
from actors.kernel.runtime import Runtime
from actors.kernel.verdicts import Verdict
from actors.messages import Record, Report, Subscribe, Unsubscribe
from transport.errors import CallHomeError
from transport.wire.codec import decode

#: Seconds between two messages to one reader, at least.
EVERY: Final = 0.010
#: Of the time of this ingress, one part in so many may go into looking at the loads.
_SHARE: Final = 20
#: Loads in one message: it has to stay a small one.
_TOLD: Final = 500
#: Bytes that may wait on a reader's connection before it counts as slow.
_BACKLOG: Final = 65_536


class Engine(NamedTuple):
    """An engine as it last reported."""

    capacity: int
    #: Streams, running and queued, that have not come through this ingress.
    others: int


class Loads:
    """The load of each engine of this node, and who follows them."""

    def __init__(
        self, runtime: Runtime, records: Records, streams: Streams, connections: Connections
    ) -> None:
        self.runtime = runtime
        self.streams: set[LoadsStream] = set()
        self.engines: dict[int, Engine] = {}
        #: Those that are not well, as the last look at them has shown.
        self.ill: dict[int, Verdict] = {}
        self._records = records
        self._relayed = streams
        self._connections = connections
        self._seq = 0
        self._loop = asyncio.get_running_loop()
        self._next = 0.0
        self._planned: asyncio.TimerHandle | None = None
        records.when_added = self._added
        records.when_removed = self._removed
        streams.tell_loads = self.plan
        streams.refused = self._refused
        runtime.on(Report, self._report)

    def enter(self, stream: LoadsStream) -> None:
        """One more reader; the first has the engines asked."""
        self.streams.add(stream)
        if len(self.streams) == 1:
            self._relayed.telling = False
            for _, record in self._records.all():
                self._added(record)

    def leave(self, stream: LoadsStream) -> None:
        """A reader is gone; behind the last the engines may be silent."""
        if stream not in self.streams:
            return
        self.streams.discard(stream)
        if self.streams:
            return
        self._relayed.telling = True
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        self.engines.clear()
        self.ill = {}  # nobody looks at them now: the next reader is told of those ill then
        for _, record in self._records.all():
            self._ask(record, Unsubscribe(self.runtime.address.incarnation))

    def _added(self, record: Record) -> None:
        if self.streams:
            self._ask(record, Subscribe(self.runtime.address, home=True))

    def _removed(self, record: Record) -> None:
        self.engines.pop(record.instance, None)
        for stream in self.streams:
            stream.forget(record.instance)

    def _ask(self, record: Record, message: Subscribe | Unsubscribe) -> None:
        if self.runtime.peers.watch(record.address):  # else its removal is on the way
            self.runtime.port.send(record.address, message, control=True)

    def _report(self, sender: int, m: Report) -> None:
        if sender == m.incarnation and self.streams:
            own = m.opened - m.settled
            self.engines[sender] = Engine(m.capacity, max(0, m.in_flight + m.queued - own))
            self.plan()

    def judge(self, unwell: dict[int, Verdict]) -> None:
        """Who is not well now; all others are."""
        before, self.ill = self.ill, unwell
        if unwell != before:
            self.plan()

    def _refused(self, engine: int) -> None:
        """Whoever has got that is waiting for word of room."""
        for stream in self.streams:
            stream.full.add(engine)
        self.plan()

    def plan(self) -> None:
        """Look at the loads soon: at once after a rest."""
        if self._planned is None and self.streams:
            self._relayed.telling = True
            self._planned = self._loop.call_later(self._next - self._loop.time(), self._look)

    def _look(self) -> None:
        self._planned = None
        self._relayed.telling = False
        began = self._loop.time()
        self._seq += 1
        totals = dict(self._relayed.carried)
        for carried in self._connections.carried():
            for engine, count in carried.items():
                totals[engine] = totals.get(engine, 0) + count
        later = False
        for stream in list(self.streams):
            later = stream.tell(self._seq, totals) or later
        took = self._loop.time() - began
        self._next = began + max(EVERY, took * _SHARE)
        if later:
            self.plan()


def _read(arrival: Arrival) -> object:
    """What a reader asks with, None for what cannot be read: older ones ask with nothing."""
    try:
        return decode(arrival.payload, codec=arrival.codec)
    except CallHomeError:
        return None


class LoadsStream(OwnStream):
    """One router that follows the loads."""

    def __init__(
        self, loads: Loads, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> None:
        self._loads = loads
        self._takes_warnings = follows_warnings(_read(arrival))
        #: By engine what was told last: its capacity, the streams of others, and, where there are
        #: any, how many of the reader's own had come there by then.
        self._told: dict[int, tuple[int, int, int]] = {}
        #: Engines that were full since.
        self.full: set[int] = set()
        #: Who is not well, as it was told last.
        self._ill: dict[int, tuple[str, str]] = {}
        super().__init__(loads.runtime, arrival, connection, remote)
        loads.enter(self)

    def begin(self) -> None:
        """Something is told at once, be it nothing: so the reader knows that it is heard."""
        self.connection.knows_faults = True
        self.connection.knows_warnings = self._takes_warnings
        if self.credit.open:
            self.send(pack_loads([]))
        self._loads.plan()

    def tell(self, seq: int, totals: dict[int, int]) -> bool:
        """Tell what has changed, where ``totals`` are the streams through this ingress by engine;
        whether something is left for later.
        """
        mux = self.connection.mux
        if not self.running or mux is None or not self.credit.open:
            return False  # ``more`` is called when there is credit
        if mux.backlog > _BACKLOG:
            return True
        own = self.connection.carried
        due: list[Load] = []
        for instance, (capacity, foreign) in self._loads.engines.items():
            total, mine = foreign + totals.get(instance, 0), own.get(instance, 0)
            others = total - mine
            news = (capacity, others, mine if others > 0 else 0)
            room = total < capacity
            if not room:
                self.full.add(instance)
            if news != self._told.get(instance) or (room and instance in self.full):
                if len(due) == _TOLD:
                    break
                in_flight = min(total, capacity)
                due.append(Load(instance, seq, in_flight, total - in_flight, capacity, mine))
                self._told[instance] = news
                if room:
                    self.full.discard(instance)
        ill = self._news_of_ill()
        if due or ill is not None:
            self.send(pack_loads(due, ill))
        return len(due) == _TOLD

    def _news_of_ill(self) -> list[Ill] | None:
        now, known = time.monotonic(), list(self._loads.ill.items())[:_TOLD]
        ill = {instance: (verdict.code, verdict.why) for instance, verdict in known}
        if ill == self._ill:
            return None
        self._ill = ill
        return [
            Ill(each, verdict.code, max(0.0, now - verdict.since), verdict.why)
            for each, verdict in known
        ]

    def forget(self, instance: int) -> None:
        """An engine is gone."""
        self._told.pop(instance, None)
        self.full.discard(instance)

    def more(self) -> None:
        """The reader has room for more."""
        self._loads.plan()

    def left(self) -> None:
        """Nobody is told any more."""
        self._loads.leave(self)
