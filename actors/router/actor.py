"""RouterActor: the door out of its node. Chooses a worker, books a permit, dispatches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from actors.config import wrong
from actors.discovery.base import Discovery
from actors.discovery.merged import MergedDiscovery
from actors.errors import Unsupported
from actors.kernel.actor import Actor, handles
from actors.kernel.role import Role
from actors.kernel.served import Served
from actors.messages import (
    BusyAt,
    Credit,
    Feed,
    FeedEnd,
    FeedItem,
    Kill,
    Lost,
    Open,
    Report,
    Stop,
    Workers,
)
from actors.router.choosing import Choosing
from actors.router.custom import LIMIT, UserPolicy, load_policy
from actors.router.faults import FAULTS, SILENT, TOLD, code_of
from actors.router.health import Health
from actors.router.leaving import Leaving
from actors.router.member import Limits
from actors.router.members import Members
from actors.router.occupancy import Key, Occupancy
from actors.router.options import Options
from actors.router.peers import StaticPeers
from actors.router.policy import Everybody, Policy, make_policy
from actors.router.pool import Pool
from actors.router.relay import Plane, Relay
from actors.router.reports import RemoteReports
from actors.router.seat import Hosted, Ways
from actors.router.unserved import Knowledge
from transport.bus.address import Address
from transport.errors import CallHomeError

#: Seconds for other nodes to answer a router that has just started, where no limit is set for
#: connections.
_PATIENCE = 5.0
#: Streams at which a worker may be said to be busy.
_MOST = 1 << 30
#: What a home tells the peer of its stream.
_Told = TypeVar("_Told", Credit, Feed, FeedItem, FeedEnd)


class RouterActor(Actor):
    """The router of a node; several of them agree because engines tell each what they carry."""

    def __init__(self, *, seed: int | None = None, **options: Any) -> None:
        """The keywords are the fields of ``Options``. Raises SpecError."""
        self.options = options_ = Options(**options)
        self._random = random.Random(seed)
        self._function = load_policy(options_) if ":" in options_.policy else None
        if self._function is None:
            make_policy(options_, self._random.randrange)
        self._user: UserPolicy | None = None
        fraction = options_.busy_fraction
        if options_.queue and options_.busy_streams is None and fraction is None:
            fraction = 1.0  # else they would wait in the engines' queues, which know no priority
        self.limits = Limits(options_.busy_streams, fraction, queue=bool(options_.queue))
        #: ``host:port`` of ingresses of other nodes whose engines are to be found.
        self.static_peers: list[str] = []
        #: Seconds that other nodes have to take what was written to them when this router stops.
        self.patience = 2.0
        #: Whether a directory or etcd tells of other nodes, too.
        self.outside = False
        #: Why each of these cannot be read, and since when; "" while it can.
        self.sources: Callable[[], dict[str, str]] = dict
        #: Whether other nodes are asked what their workers carry.
        self.follows = True
        self.occupancy = Occupancy()
        self.discovery: Discovery | None = None
        self._closers: list[Callable[[], object]] = []

    def facts(self) -> dict[str, Any]:
        """What the node publishes about this router."""
        return {}

    def role(self) -> Role:
        """Its own asks, and streams that its dispatch wants to be answered here."""
        self._hosted = Hosted(self)
        return self._hosted

    async def on_start(self) -> None:
        runtime, settings = self.runtime, self.settings
        self.limits.lease = settings.overload_lease
        if self._function is not None:
            loop = asyncio.get_running_loop()
            self._user = UserPolicy(self._function, self.options.policy, LIMIT, loop)
        self._plane = Plane(runtime, self.tasks, self._settled, self.counters.failed)
        self._leaving = Leaving(runtime, self.tasks, self._plane, self._hosted, self.occupancy)
        self.members = Members(
            runtime, self.occupancy, self.limits, self._policy, self._freed, self._found
        )
        self._knowledge = Knowledge(self.members, settings.connect_timeout or _PATIENCE)
        self._knowledge.unread = self.discovery is not None
        self._knowledge.sources = self.sources
        self._choosing = Choosing(
            runtime,
            self.options,
            self.counters,
            self.occupancy,
            self.members,
            self._plane,
            self._knowledge,
            self._user,
        )
        self._held = self._choosing.held
        if self._choosing.queue is not None:
            self.members.waits = self._choosing.queue.waiting
        self._ways = Ways(
            self.options,
            self._plane,
            self._hosted,
            again=self._choosing.begin,
            settled=self._settled,
            add=self.members.add,
            remove=self.members.remove,
        )
        self.members.when_added.append(self._ways.lifecycle.added)
        self.members.when_removed.append(self._ways.lifecycle.removed)
        self._follow()
        self._health = Health(runtime, self.members, self.occupancy)
        self._health.start()
        self._closers.append(self._health.stop)
        self._closers.append(self._ways.close)
        self._listen()
        self._ways.start()
        self._choosing.dispatch, self._choosing.standard = self._ways.dispatch, self._ways.standard
        if self.discovery is not None:
            await self._discover(self.discovery)
        self._plane.listen(self.static_peers, self.outside)
        self.peers.start(self.tasks)

    def _follow(self) -> None:
        """Be told of other nodes: what they serve, and what their workers carry."""
        runtime, members = self.runtime, self.members
        self.peers = StaticPeers(runtime, self.static_peers, self._held.wake)
        self._knowledge.peers = self.peers
        # A report is heard of by way of the worker's ``watch``, as every change of its load.
        reports = RemoteReports(runtime, self.tasks, self.occupancy, members.judge)
        self._knowledge.reports = reports
        self._closers += [self.peers.stop, reports.stop]
        if self.follows:
            members.when_added.append(reports.known)
            members.when_removed.append(lambda record, reason: reports.gone(record))

    def _listen(self) -> None:
        """Opens for endpoints are routed, all others are for this actor itself."""
        runtime = self.runtime
        self._own = self._serving.open
        runtime.on(Open, self._route)
        self._cancel_own: dict[type, Callable[[int, Any], None]] = {
            Stop: runtime.handler(Stop),
            Kill: runtime.handler(Kill),
        }
        runtime.on(Stop, self._stop)
        runtime.on(Kill, self._kill)
        self._relay(Credit, lambda relay, m: relay.credit(m))
        self._relay(Feed, lambda relay, m: relay.feed(m))
        self._relay(FeedItem, lambda relay, m: relay.feed_item(m))
        self._relay(FeedEnd, lambda relay, m: relay.feed_end(m))
        runtime.on(Report, self._report)
        runtime.when_down.append(self._down)
        runtime.timers.append(self._check)

    async def on_stop(self) -> None:
        """Also after an on_start that has not come to its end."""
        for close in self._closers:
            close()
        if self._user is not None:
            self._user.close()
        if (plane := getattr(self, "_plane", None)) is not None:
            await plane.close(f"{self.name} stops", self.patience)

    def _policy(self, endpoint: str) -> Policy:
        if self._function is not None:
            return Everybody()
        return make_policy(self.options, self._random.randrange)

    def _freed(self, pool: Pool) -> None:
        self._choosing.freed(pool)

    def _found(self) -> None:
        self._held.wake()

    async def _discover(self, discovery: Discovery) -> None:
        """Be told who serves what, here and elsewhere; returns with all that is known."""
        if isinstance(discovery, MergedDiscovery):
            await discovery.follow(self.peers)
        else:  # nobody merges: first the peers, who have told nothing yet
            apart = await self.peers.subscribe(self.members.changed)
            self._closers.append(apart.cancel)
        subscription = await discovery.subscribe(self.members.changed)
        self._closers.append(subscription.cancel)
        self._knowledge.unread = False
        self._held.wake()

    def awaits(self, peer: str) -> str:
        """The address that the node at ``peer`` was told to call home to, if it has taken a request
        and has not called; else "".
        """
        return self._ways.standard.remote.awaits(peer)

    # What is heard of streams.

    def _route(self, sender: int, m: Open) -> None:
        if "." not in m.target:
            # An ask of somebody's Ref: endpoints have dots, message names have none.
            self._own(sender, m)
            return
        for report in m.reports:
            self.occupancy.report(report)
        self.counters.requests += 1
        if self._leaving.reason:
            self._choosing.refuse(m, self._leaving.refusal(m.target))
            return
        if m.route is not None and m.route.avoid:
            try:
                self.members.told(m.target, m.route)
            except CallHomeError as error:
                self._choosing.refuse(m, error)
                return
        self._choosing.route(m)

    def _settled(self, key: Key, error: CallHomeError | None) -> None:
        """A stream that went through this router has ended. What that says of its worker counts
        from the next choice on, which the permit's return may bring about.
        """
        if error is not None or self.members.troubled:
            worker = self.occupancy.find(*key)
            if worker is not None:
                self.members.ended(worker, key, "" if error is None else code_of(error))
        self.occupancy.settle(key)

    def _report(self, sender: int, m: Report) -> None:
        if sender != m.incarnation:
            return
        for key, code in self.occupancy.report(m):
            if code in TOLD or self.members.troubled:
                worker = self.occupancy.workers.get(m.incarnation)
                if worker is not None:
                    self.members.ended(worker, key, self._of_itself(code))

    def _of_itself(self, code: str) -> str:
        """What an engine of this node says of a stream, as far as it speaks of itself: a lost
        connection is that of the caller.
        """
        return SILENT if code in FAULTS and code not in TOLD else code

    def _down(self, address: Address, reason: str) -> None:
        """Behind the barrier: permits and unaccepted streams of a dead worker."""
        self._plane.home_down(address, reason)
        self.members.down(address, reason)
        self._health.down(address)
        for home, stream in self.occupancy.remove(address.incarnation):
            self.runtime.port.send(home, Lost(stream, address, reason), control=True)

    def _check(self, now: float) -> bool:
        return self.members.check(now, self._runs)

    def _runs(self, key: Key) -> bool:
        """Whether a stream has shown that its worker works, though it goes on."""
        relay = self._plane.relays.get(key)
        if relay is not None:
            return relay.runs
        hosted = self._serving.streams.get(key)
        return hosted is not None and hosted.seq > 0

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

    def _relay(self, kind: type[_Told], take: Callable[[Relay, _Told], None]) -> None:
        """What a home tells its peer is for the worker that this router relays to, which ``take``
        does, or for this actor.
        """
        own, relays = self.runtime.handler(kind), self._plane.relays

        def heard(sender: int, m: _Told) -> None:
            relay = relays.get((sender, m.stream))
            if relay is None:
                own(sender, m)
            else:
                take(relay, m)

        self.runtime.on(kind, heard)

    def begin_stream(self, stream: Served) -> None:
        if stream.open.many:
            self._serving.end(stream, Unsupported(f"{self.name} serves no endpoint itself"))
        elif stream.open.target not in self._handlers:
            # An endpoint without dots.
            self._serving.end(stream, self._knowledge.nobody(stream.open.target))
        else:
            super().begin_stream(stream)

    # What it is asked.

    @handles(BusyAt)
    async def busy_at(self, message: BusyAt) -> AsyncIterator[list[Any]]:
        """Set from when on workers are busy, for all endpoints and at once. Raises SpecError."""
        streams, fraction = message
        if streams is not None and not (type(streams) is int and 0 < streams <= _MOST):
            raise wrong("busy_streams", streams, f"a whole number from 1 to {_MOST}")
        if fraction is not None and not (type(fraction) in (int, float) and 0 < fraction <= 1e9):
            raise wrong("busy_fraction", fraction, "a number above 0")
        limits = self.limits
        former = [limits.streams, limits.fraction]
        limits.streams, limits.fraction = streams, None if fraction is None else float(fraction)
        for pool in self.members.pools.values():
            pool.reload()
        yield former

    @handles(Workers)
    async def workers(self, message: Workers) -> AsyncIterator[list[dict[str, Any]]]:
        """Who serves an endpoint, or everything, and what each carries now."""
        yield self._workers_now(message.endpoint)

    def carries(self) -> dict[str, Any]:
        queue = self._choosing.queue
        return {
            "in_flight": self.occupancy.permits(),
            "queued": 0 if queue is None else len(queue),
            "capacity": None,
            "workers": self._workers_now(),
            "busy": {"streams": self.limits.streams, "fraction": self.limits.fraction},
            "ways": self._ways.standard.remote.ways(),
            "net": self._plane.statistics(),
            "peers": self.peers.states(),
            "discovery": self.sources(),
        }

    def _workers_now(self, endpoint: str = "") -> list[dict[str, Any]]:
        return [
            {
                "endpoint": worker.endpoint,
                "worker": worker.address.name,
                "many": worker.record.many,
                "instance": worker.instance,
                "load": worker.load,
                "permits": worker.permits,
                "capacity": worker.capacity,
                "device": worker.device,
                "device_id": worker.record.device_id,
                "state": state,
                "where": worker.record.via.partition("/")[0],
            }
            for pool in self.members.pools.values()
            if endpoint in ("", pool.endpoint)
            for worker, state in pool.seen()
        ]
