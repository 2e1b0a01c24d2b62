"""What each worker carries, as one router knows it; and permits that are given back exactly once.

Pure: reports and bookings in, loads out. ``load = others + permits``: a permit for each stream that
this router has sent and that has not settled, and what the worker carries for anybody else, by the
newest that it has told. Reports are cumulative, so a lost or reordered one does no harm.

An engine of this node tells how many of this router's streams it has ``opened`` and ``settled``;
all else that it carries is of others. Of a worker on another node its ingress tells as much
(``actors.router.reports``); its streams pass through this router, which settles each as it ends. A
Dynamo worker tells nothing: its load is what this router has with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actors.messages import Record, Report
from transport.bus.address import Address
from transport.errors import RemoteProtocolError, described

#: A stream: its home's incarnation and its number there.
Key = tuple[int, int]
#: A worker: its incarnation, or where several endpoints of a process share one, that and the
#: endpoint.
Place = int | tuple[int, str]


#: Streams of others that are taken to be on the way for one of this router's. More would be nearer
#: to the truth where many routers send, and further from it where the others only hold streams.
_RIVALS = 3
#: Bits of the last eight reports.
_RECENT = 0xFF


class Carried:
    """One worker incarnation: its report and this router's bookings."""

    __slots__ = (
        "capacity",
        "in_flight",
        "moves",
        "others",
        "place",
        "queued",
        "record",
        "retired",
        "sent",
        "seq",
        "settled",
        "unseen",
        "watch",
    )

    def __init__(self, record: Record) -> None:
        self.record = record
        self.place = place_of(record)
        self.capacity = record.capacity
        #: Its record is gone: it is forgotten with its last permit.
        self.retired = False
        #: Streams that this router has sent, and those of them that have settled.
        self.sent = 0
        self.settled = 0
        #: What the worker last told, 0 before it has: the number of that report, the streams it
        #: runs and those that wait there, and those of either that this router holds no permit for.
        self.seq = 0
        self.in_flight = 0
        self.queued = 0
        self.others = 0
        #: A bit for each of the last reports, set where ``others`` had changed.
        self.moves = 0
        #: Streams that this router has sent since then, as far as the worker has told.
        self.unseen = 0
        #: Called when the load may have changed; set by whoever keeps workers in order of it.
        self.watch: Callable[[Carried], None] | None = None

    @property
    def address(self) -> Address:
        return self.record.address

    @property
    def endpoint(self) -> str:
        return self.record.endpoint

    @property
    def instance(self) -> int:
        return self.record.instance

    @property
    def load(self) -> int:
        """Streams that it carries or will, as far as this router knows."""
        return self.others + self.sent - self.settled

    @property
    def expected(self) -> int:
        """What a choice by load goes by: the load, and what others will have sent meanwhile.

        Other routers have seen the same load since the worker has told it, and choose as this one
        does: for each of its own streams that are on the way there are as many of theirs as they
        have there already for each of its own, at most ``_RIVALS``, and not more than they have.
        Without that, all of them fill the same gap. Others who neither send nor end anything are
        left as they are.
        """
        own = self.sent - self.settled
        if not self.unseen or not self.moves or self.others <= 0:
            return self.others + own
        told = own - self.unseen
        if told <= 0:
            return self.others + own  # nothing to compare them by
        coming = self.unseen * min(self.others, _RIVALS * told) // told
        return self.others + own + min(coming, self.others)

    @property
    def device(self) -> str:
        return self.record.device

    @property
    def permits(self) -> int:
        """Streams that this router has sent and that have not settled."""
        return self.sent - self.settled

    def told(self, others: int, unseen: int) -> None:
        """The worker has told what it carries for others, and so how many have not come there."""
        self.moves = (self.moves << 1 | (others != self.others)) & _RECENT
        self.others, self.unseen = others, unseen

    def changed(self) -> None:
        """The load may be another now: tell whoever minds."""
        if self.watch is not None:
            self.watch(self)


def place_of(record: Record) -> Place:
    """Under what a worker is kept: incarnations of this node have one endpoint each, those of
    others may serve several.
    """
    return (record.instance, record.endpoint) if record.via else record.address.incarnation


class Occupancy:
    """All workers that one router knows, and the streams it has sent to them."""

    def __init__(self) -> None:
        self.workers: dict[Place, Carried] = {}
        self._booked: dict[Key, Carried] = {}
        self._by_worker: dict[Place, dict[Key, Address]] = {}

    def add(self, record: Record) -> Carried:
        """A worker that can serve; known already: its permits stay."""
        place = place_of(record)
        worker = self.workers.get(place)
        if worker is None:
            worker = self.workers[place] = Carried(record)
            self._by_worker[place] = {}
        elif record.via:
            worker.record, worker.capacity = record, record.capacity
        worker.retired = False
        return worker

    def book(self, worker: Carried, home: Address, stream: int) -> None:
        """A permit for one stream, taken in one step with the choice."""
        key = (home.incarnation, stream)
        worker.sent += 1
        worker.unseen += 1
        self._booked[key] = worker
        self._by_worker[worker.place][key] = home
        if worker.watch is not None:  # as ``changed``, without a call that each stream would pay
            worker.watch(worker)

    def unbook(self, home: Address, stream: int) -> None:
        """The stream never left this router: as if it had not been booked."""
        worker = self._settle((home.incarnation, stream))
        if worker is not None:
            worker.sent -= 1
            worker.unseen = max(0, worker.unseen - 1)
            worker.changed()

    def settle(self, key: Key) -> bool:
        """A stream to a worker on another node has ended, or failed so that its end is certain: its
        permit comes back; False when it had come back before.
        """
        worker = self._settle(key)
        if worker is None:
            return False
        worker.settled += 1
        if worker.watch is not None:
            worker.watch(worker)
        if worker.retired and not worker.permits:
            self._forget(worker.place)
        return True

    def retire(self, place: Place) -> None:
        """The record of a worker on another node is gone; streams that it has go on."""
        worker = self.workers.get(place)
        if worker is not None:
            worker.retired = True
            if not worker.permits:
                self._forget(place)

    def _forget(self, place: Place) -> None:
        self.workers.pop(place, None)
        self._by_worker.pop(place, None)

    def find(self, home: int, stream: int) -> Carried | None:
        """The worker that has the stream, while it has not settled."""
        return self._booked.get((home, stream))

    def running(self, worker: Carried) -> Iterable[Key]:
        """The streams of this router that a worker has; they may come and go meanwhile."""
        return self._by_worker.get(worker.place, {}).keys()

    def holders(self, place: Place) -> list[tuple[Address, int]]:
        """Home and number of each stream of this router that a worker has."""
        return [(home, key[1]) for key, home in self._by_worker.get(place, {}).items()]

    def report(self, report: Report) -> list[tuple[Key, str]]:
        """Take in a report; the streams that it names as settled, with their error codes.

        Counts of an older report than the newest are ignored; the streams it names have settled all
        the same. Raises RemoteProtocolError for a name that is none.
        """
        worker = self.workers.get(report.incarnation)
        if worker is None:
            return []
        if report.seq > worker.seq:
            worker.seq = report.seq
            worker.in_flight = report.in_flight
            worker.queued = report.queued
            worker.capacity = report.capacity
            worker.settled = report.settled
            own = report.opened - report.settled
            worker.told(report.in_flight + report.queued - own, worker.sent - report.opened)
            worker.changed()
        settled: list[tuple[Key, str]] = []
        for each in report.ended:
            try:
                home, stream, code = each
                key = (home, stream)
                booked = self._booked.get(key)
            except (TypeError, ValueError):
                told = described(each)
                raise RemoteProtocolError(
                    f"a settled stream is named by home, number and code, and not as {told}"
                ) from None
            if booked is worker:  # nobody settles the streams of others
                self._settle(key)
                settled.append((key, code if type(code) is str else described(code, 40)))
        return settled

    def hear(
        self, worker: Carried, seq: int, in_flight: int, queued: int, capacity: int, yours: int
    ) -> bool:
        """Take in what an ingress tells of a worker behind it, which carries ``yours`` for this
        router; False for a report that is no newer than the newest.
        """
        if seq <= worker.seq:
            return False
        worker.seq = seq
        worker.in_flight, worker.queued, worker.capacity = in_flight, queued, capacity
        worker.told(max(0, in_flight + queued - yours), max(0, worker.permits - yours))
        worker.changed()
        return True

    def unhear(self, worker: Carried) -> None:
        """Nobody tells of the worker any more, or it begins anew: what was told is void."""
        worker.seq = worker.in_flight = worker.queued = 0
        worker.others = worker.unseen = worker.moves = 0
        worker.changed()

    def _settle(self, key: Key) -> Carried | None:
        worker = self._booked.pop(key, None)
        if worker is not None:
            self._by_worker[worker.place].pop(key, None)
        return worker

    def remove(self, instance: int) -> list[tuple[Address, int]]:
        """A worker died: its permits are gone; homes and numbers of the streams it had."""
        self.workers.pop(instance, None)
        lost = self._by_worker.pop(instance, {})
        for key in lost:
            self._booked.pop(key, None)
        return [(home, stream) for (_, stream), home in lost.items()]

    def permits(self) -> int:
        """Permits that are out now."""
        return sum(worker.permits for worker in self.workers.values())
