"""RouterActor: the door out of its node. Chooses a worker, books a permit, dispatches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from actors.discovery.base import Change, Discovery, Listener
from actors.discovery.merged import MergedDiscovery
from actors.discovery.record import SPEAKS
from actors.errors import CallHomeError, NoWorkers, SpecError, Unsupported
from actors.kernel.actor import Actor
from actors.kernel.served import Served
from actors.messages import (
    Added,
    Credit,
    End,
    Feed,
    FeedEnd,
    FeedItem,
    Kill,
    Lost,
    Open,
    Record,
    Removed,
    Report,
    Snapshot,
    Stop,
)
from actors.router.dispatch import StreamingDispatch, too_large
from actors.router.foreign import ForeignDispatch
from actors.router.held import HeldStreams
from actors.router.local import LocalDispatch
from actors.router.lookup import Lookups
from actors.router.occupancy import Carried, Occupancy, place_of
from actors.router.options import Options
from actors.router.peers import StaticPeers
from actors.router.policy import POLICIES, Policy
from actors.router.relay import Plane, Relay
from actors.router.remote import RemoteDispatch
from transport.bus.address import Address
from transport.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    TooLarge,
    shown,
    to_wire,
)

#: Longest name, in characters, that a known endpoint could be meant by.
_LONGEST = 256
#: Seconds for other nodes to answer a router that has just started, where no limit is set for
#: connections.
_PATIENCE = 5.0
#: What a home tells the peer of its stream, and what a relay does with it.
_RELAYED: dict[type, Callable[[Relay, Any], None]] = {
    Credit: lambda relay, m: relay.credit(m),
    Feed: lambda relay, m: relay.feed(m),
    FeedItem: lambda relay, m: relay.feed_item(m),
    FeedEnd: lambda relay, m: relay.feed_end(m),
}


class RouterActor(Actor):
    """The router of a node; several of them agree because engines tell each what they carry."""

    def __init__(self, *, seed: int | None = None, **options: Any) -> None:
        """The keywords are the fields of ``Options``. Raises SpecError."""
        self.options = Options(**options)
        policy = self.options.policy
        if policy not in POLICIES:
            raise SpecError(
                f"policy {policy!r} is unknown; use one of {', '.join(sorted(POLICIES))}"
            )
        self._policy_name = policy
        self._random = random.Random(seed)
        self._policies: dict[str, Policy] = {}
        self._records: dict[str, dict[int, Record]] = {}
        #: ``host:port`` of ingresses of other nodes whose engines are to be found.
        self.static_peers: list[str] = []
        #: Seconds that other nodes have to take what was written to them when this router stops.
        self.patience = 2.0
        #: Whether a directory tells of other nodes, too.
        self.directory = False
        self._serving_now: dict[str, list[Carried]] = {}
        self.occupancy = Occupancy()
        self.discovery: Discovery | None = None
        #: Discovery has not told yet what there is.
        self._unread = False
        #: Until when streams wait for what is not known yet (monotonic).
        self._patient = 0.0

    def facts(self) -> dict[str, Any]:
        """What the node publishes about this router."""
        return {}

    async def on_start(self) -> None:
        runtime = self.runtime
        self.dispatch: StreamingDispatch = LocalDispatch(runtime)
        self._plane = Plane(runtime, self.tasks, self.occupancy.settle, self.counters.failed)
        self._remote = RemoteDispatch(self._plane)
        self._foreign = ForeignDispatch(self._plane)
        self._lookups = Lookups(self._plane, self._begin)
        self._held = HeldStreams(self._plane, self._is_ready, self._choose, self._nobody)
        self._patient = time.monotonic() + (runtime.settings.connect_timeout or _PATIENCE)
        self._unread = self.discovery is not None
        # Opens for endpoints are routed, all others are for this actor itself.
        self._own = self._serving.open
        runtime.on(Open, self._route)
        self.peers = StaticPeers(runtime, self.static_peers, self._source, self._held.wake)
        own: dict[type, Callable[[int, Any], None]] = {
            Stop: runtime.handler(Stop),
            Kill: runtime.handler(Kill),
        }
        self._cancel_own = own
        runtime.on(Stop, self._stop)
        runtime.on(Kill, self._kill)
        for kind, take in _RELAYED.items():
            runtime.on(kind, partial(self._relayed, take, runtime.handler(kind)))
        runtime.on(Report, self._report)
        runtime.when_down.append(self._down)
        if self.discovery is not None:
            self._subscription = await self.discovery.subscribe(self._changed)
            self._unread = False
            self._held.wake()
        self._plane.listen(self.static_peers, self.directory)
        self.peers.start(self.tasks)

    async def on_stop(self) -> None:
        self.peers.stop()
        if self.discovery is not None:
            self._subscription.cancel()
        await self._plane.close(f"{self.name} stops", self.patience)

    def _source(self) -> Listener:
        """Where the records of another node go: by way of the discovery that merges all sources."""
        if isinstance(self.discovery, MergedDiscovery):
            return self.discovery.source()
        return self._changed

    def awaits(self, peer: str) -> str:
        """The address that the node at ``peer`` was told to call home to, if it has taken a request
        and has not called; else "".
        """
        return self._remote.awaits(peer)

    def _way(self, record: Record) -> StreamingDispatch:
        if not record.via:
            return self.dispatch
        return self._remote if record.speaks == SPEAKS else self._foreign

    def _changed(self, change: Change) -> None:
        """What discovery tells; a record that fails costs itself, and none of those behind it."""
        if isinstance(change, Added):
            self._guarded(self._add, change.record)
        elif isinstance(change, Removed):
            self._guarded(self._remove, change.record, change.reason)
        elif isinstance(change, Snapshot):
            known = {(record.instance, record.endpoint) for record in change.records}
            for records in list(self._records.values()):
                for record in list(records.values()):
                    if (record.instance, record.endpoint) not in known:
                        self._guarded(self._remove, record, "it is not in the registry any more")
            for record in change.records:
                self._guarded(self._add, record)

    def _guarded(self, take: Callable[..., None], record: Record, *more: str) -> None:
        try:
            take(record, *more)
        except Exception as error:
            where = shown(record.via) if record.via else "this node"
            self.runtime.complain(f"the record of {shown(record.endpoint)} at {where}", error)

    def _add(self, record: Record) -> None:
        if record.kind != "engine":
            return
        # Nobody could be told of it, in an error or by ``callhome ps``. Raises UnicodeEncodeError.
        f"{record.endpoint}{record.via}{record.address.name}{record.codec}".encode()
        # What is on another node has no process here: its connections tell when it is gone.
        if not record.via and not self.runtime.peers.watch(record.address):
            return
        self._records.setdefault(record.endpoint, {})[record.instance] = record
        self.occupancy.add(record)
        self._list(record.endpoint)
        self._way(record).on_instance_added(record)
        self._held.wake()

    def _remove(self, record: Record, reason: str) -> None:
        records = self._records.get(record.endpoint)
        known = None if records is None else records.pop(record.instance, None)
        if known is None:
            return
        self._list(known.endpoint)
        self._way(known).on_instance_removed(known, reason)
        if known.via:
            self.occupancy.retire(place_of(known))

    def _list(self, endpoint: str) -> None:
        """The workers of an endpoint in a stable order, made when they change and not for each
        stream.
        """
        workers, records = self.occupancy.workers, self._records[endpoint]
        places = [place_of(records[instance]) for instance in sorted(records)]
        self._serving_now[endpoint] = [workers[place] for place in places if place in workers]

    def _down(self, address: Address, reason: str) -> None:
        """Behind the barrier: permits and unaccepted streams of a dead worker."""
        self._plane.home_down(address, reason)
        for records in list(self._records.values()):
            record = records.get(address.incarnation)
            if record is not None and record.address == address:
                self._remove(record, reason)
        for home, stream in self.occupancy.remove(address.incarnation):
            self.runtime.port.send(home, Lost(stream, address, reason), control=True)

    def _route(self, sender: int, m: Open) -> None:
        if "." not in m.target:
            self._own(
                sender, m
            )  # an ask of somebody's Ref: endpoints have dots, message names have none
            return
        for report in m.reports:
            self.occupancy.report(report)
        self.counters.requests += 1
        self._choose(m)

    def _choose(self, m: Open) -> None:
        workers = self._serving_now.get(m.target)
        if not workers:
            self._unserved(m)
            return
        policy = self._policies.get(m.target)
        if policy is None:
            policy = self._policies[m.target] = POLICIES[self._policy_name](self._random.randrange)
        if self.occupancy.find(m.home.incarnation, m.stream) is not None:
            raise RemoteProtocolError(f"stream {m.stream} of {m.home} was opened twice")
        worker = workers[policy.choose(workers)]
        self.occupancy.book(worker, m.home, m.stream)
        self._begin(m, worker.record)

    def _begin(self, m: Open, worker: Record) -> None:
        """Dispatch a stream; what goes wrong is told to its home, and a booking taken back."""
        try:
            self._dispatch(m, worker)
        except Exception as error:
            self.occupancy.unbook(m.home, m.stream)
            if not isinstance(error, CallHomeError):
                self._refuse(m, LocalProtocolError(f"{m.target}: {self.name} failed: {error}"))
                raise  # a bug: it is logged
            self._refuse(m, too_large(m, error) if type(error) is TooLarge else error)

    def _dispatch(self, m: Open, worker: Record) -> None:
        way = self.dispatch if not worker.via else self._way(worker)
        if worker.via and self._lookups.hold(m, worker):
            return
        if m.many:
            way.generate_bidirectional(m, worker, m.home)
        else:
            way.generate(m, worker, m.home)

    def _unserved(self, m: Open) -> None:
        """Nobody serves it, unless it is another node's list of records, which we follow, or it is
        not known yet what others serve.
        """
        door = self.peers.find(m.home, m.target)
        if door is not None:
            self._begin(m, door)
            return
        try:
            held = self._is_early() and self._held.hold(m, self._patient)
        except CallHomeError as error:
            self._refuse(m, error)
            return
        if not held:
            self._refuse(m, self._nobody(m.target))

    def _is_early(self) -> bool:
        """Whether others may still answer that have not been heard since this router started."""
        return time.monotonic() < self._patient and (self._unread or bool(self.peers.untried()))

    def _is_ready(self, target: str) -> bool:
        """Whether a stream that waits can be told something."""
        return bool(self._serving_now.get(target)) or not self._is_early()

    def _nobody(self, target: str) -> CallHomeError:
        known = sorted(endpoint for endpoint, workers in self._serving_now.items() if workers)
        served = f"served: {', '.join(known) or 'none'}"
        unseen = self.peers.unseen()
        if unseen:
            served = f"{served}; {unseen}"
        untried = self.peers.untried()
        if self._unread or untried:
            who = "the directory" if self._unread else f"peers ({', '.join(untried)[:_LONGEST]})"
            verb = "has not been read" if self._unread else "have not answered"
            return NoWorkers(
                f"endpoint {shown(target)} is unknown here so far ({served}): {who} {verb} yet; "
                "try again"
            )
        if target in self._serving_now:
            more = f" ({unseen})" if unseen else ""
            return NoWorkers(
                f"no worker of endpoint {shown(target)} is alive{more}; "
                "wait for a restart (see callhome ps)"
            )
        near = get_close_matches(target[:_LONGEST], known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return NoWorkers(f"endpoint {shown(target)} is unknown here{hint} ({served})")

    def _refuse(self, m: Open, error: CallHomeError) -> None:
        self.counters.refused += 1
        self.counters.failed(error)
        self.runtime.port.send(m.home, End(m.stream, 0, to_wire(error)), size=512)

    def _stop(self, sender: int, m: Stop) -> None:
        relay = self._plane.find(m.home, m.stream)
        if relay is None:
            self._forward(sender, m)
        else:
            relay.stop(m.reason)

    def _kill(self, sender: int, m: Kill) -> None:
        relay = self._plane.find(m.home, m.stream)
        if relay is None:
            self._forward(sender, m)
        else:
            self.counters.cancelled += 1
            self._plane.kill(relay, m.reason)

    def _forward(self, sender: int, m: Stop | Kill) -> None:
        """A cancel that was sent before the stream had a peer follows its Open, on the same lane;
        one of a stream that this actor serves itself has arrived.
        """
        if (m.home, m.stream) in self._serving.streams:
            self._cancel_own[type(m)](sender, m)
            return
        worker = self.occupancy.find(m.home, m.stream)
        if worker is not None and not worker.record.via:
            self.runtime.port.send(worker.address, m)
            self.runtime.port.flush()

    def _relayed(
        self,
        take: Callable[[Relay, Any], None],
        other: Callable[[int, Any], None],
        sender: int,
        m: Any,
    ) -> None:
        """What a home tells its peer: the worker that this router relays to, or this actor."""
        relay = self._plane.find(sender, m.stream)
        if relay is None:
            other(sender, m)
        else:
            take(relay, m)

    def _report(self, sender: int, m: Report) -> None:
        if sender == m.incarnation:
            self.occupancy.report(m)

    def begin_stream(self, stream: Served) -> None:
        if stream.open.many:
            self._serving.end(stream, Unsupported(f"{self.name} serves no endpoint itself"))
        elif stream.open.target not in self._handlers:
            self._serving.end(stream, self._nobody(stream.open.target))  # an endpoint without dots
        else:
            super().begin_stream(stream)

    def carries(self) -> dict[str, Any]:
        workers = self._workers_now()
        return {
            "in_flight": self.occupancy.permits(),
            "queued": 0,
            "capacity": None,
            "workers": workers,
            "ways": self._remote.ways(),
            "net": self._plane.statistics(),
            "peers": self.peers.states(),
        }

    def _workers_now(self) -> list[dict[str, Any]]:
        return [
            {
                "endpoint": worker.endpoint,
                "worker": worker.address.name,
                "many": worker.record.many,
                "instance": worker.instance,
                "load": worker.load,
                "permits": worker.permits,
                "capacity": worker.capacity,
            }
            for worker in self.occupancy.workers.values()
        ]
