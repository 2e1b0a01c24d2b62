"""EngineActor: runs the user's engine, admits by capacity, and tells each router what it
carries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from actors.engine.accounts import Account, Follower
from actors.engine.adapt import Adapted, Handler
from actors.engine.api import EngineContext
from actors.engine.canary import Canary
from actors.errors import Draining, Overloaded, Unsupported
from actors.kernel.actor import Actor
from actors.kernel.draining import Drainer
from actors.kernel.requests import bytes_only
from actors.kernel.served import Served
from actors.kernel.serving import Serving
from actors.messages import Faulted, Open, Report, Subscribe, Unsubscribe
from transport.bus.address import Address
from transport.wire.adapter import PayloadAdapter

#: Reports go out at most this often, in seconds; the End of each stream carries one anyway.
_REPORT_EVERY = 0.005
#: How a stream has settled that goes on behind an error item.
_ERROR_ITEM = "engine.item"
#: Settled streams named in one report.
_NAMED = 4096


class EngineActor(Actor):
    """The actor around one engine; started by the node for each EngineSpec."""

    passes_errors = False
    #: The ``canary`` of its spec, and what tells others whether it was answered ("": yes, or why it
    #: was not); set by whoever runs it, before on_start.
    canary_request: Any = None
    tell_ready: Callable[[str], None] = staticmethod(lambda why: None)
    #: When its start has failed unless it is ready (time.monotonic); None: by its settings.
    start_by: float | None = None

    def __init__(
        self,
        target: Any,
        args: dict[str, Any],
        endpoint: str,
        capacity: int,
        queue: int,
        adapter: PayloadAdapter | None,
    ) -> None:
        self.endpoint = endpoint
        self.capacity = capacity
        self.queue = queue
        self.handler = Handler(target, args)
        self._adapter = adapter
        self._waiting: OrderedDict[tuple[int, int], Served] = OrderedDict()
        self._in_flight = 0
        self._accounts: dict[int, Account] = {}
        self._followers: dict[int, Follower] = {}
        #: Streams that run on behind an error item, and have settled for their router, or behind a
        #: kill, and count no more at the ingress that they came through.
        self._faulted: set[tuple[int, int]] = set()
        self._report_planned: asyncio.Handle | None = None
        self._reported = 0.0
        #: Items of streams that are over, and error items of all.
        self._gave = self._erred = 0
        #: Why nothing new begins, once it is to stop.
        self._draining = ""

    def facts(self) -> dict[str, Any]:
        """What the node publishes about this engine."""
        return {"many": self.handler.many, "capacity": self.capacity, "codec": self.settings.codec}

    async def on_start(self) -> None:
        self.adapted = Adapted(self.handler, self.runtime, self._adapter)
        self.runtime.on(Subscribe, self._subscribed)
        self.runtime.on(Unsubscribe, self._unsubscribed)
        self.runtime.when_down.append(self._router_down)
        self._drainer = Drainer(self, self.runtime, self.tasks)
        self.canary = Canary(self, self.canary_request)
        await self.handler.start()
        self.canary.start()
        await self.canary.wait_first()

    async def on_stop(self) -> None:
        self.canary.stop()
        if self._report_planned is not None:
            self._report_planned.cancel()
        self.adapted.close()
        await self.handler.stop()

    async def wait_drained(self, limit: float) -> int:
        return await self._drainer.wait_drained(limit)

    def hurry(self) -> None:
        self._drainer.hurry()

    def refuse(self, reason: str, succeeded: bool = False) -> None:
        """See ``actors.kernel.draining``: streams that wait for a place are not new."""
        self._draining = reason

    @property
    def serving(self) -> Serving:
        """What its streams have in common, for its canary."""
        return self._serving

    @property
    def has_place(self) -> bool:
        """Whether a stream would begin at once."""
        return not self._draining and self._in_flight < self.capacity

    def good_items(self) -> int:
        """Items that its streams have given, less those that were errors; may fall by a few that
        were not sent in the end.
        """
        streams = self._serving.streams.values()
        given = sum(each.seq + len(each.batch) for each in streams if self._is_ours(each))
        return self._gave + given - self._erred

    def _is_ours(self, stream: Served) -> bool:
        return stream.open.target == self.endpoint

    def refill(self) -> None:
        """A place is free."""
        while self._waiting and self._in_flight + self.canary.held < self.capacity:
            _, waiting = self._waiting.popitem(last=False)
            self._start(waiting)

    def under_way(self) -> int:
        """See ``actors.kernel.draining``: a stream that its caller has killed does not count."""
        streams = self._serving.streams.values()
        ours = [each for each in streams if each.open.target == self.endpoint]
        return sum(not each.context.killed for each in ours)

    def cut(self, reason: str) -> None:
        """See ``actors.kernel.draining``; what has only waited for its place may go elsewhere."""
        for stream in list(self._waiting.values()):
            self._serving.end(stream, Draining(f"{self.endpoint}: {reason}"))
        self._serving.shut(reason)

    def role(self) -> EngineActor:
        return self

    def carries(self) -> dict[str, Any]:
        return {
            "in_flight": self._in_flight,
            "queued": len(self._waiting),
            "capacity": self.capacity,
        }

    def _counters_of_role(self) -> dict[str, int]:
        return self.canary.counts()

    def make_context(self, message: Open, deadline: float | None) -> EngineContext:
        return EngineContext(
            message.request_id, message.metadata, deadline, self.runtime, self._lookup
        )

    def came(self, stream: Served) -> None:
        """Count what came from each router, whether it begins or not: ``gone`` counts it again."""
        if stream.router is None:
            if self._followers and stream.open.target == self.endpoint:
                self._count(stream, 1)
            return
        account = self._account(stream.router)
        if account is not None:
            account.opened += 1

    def _count(self, stream: Served, step: int) -> None:
        follower = self._followers.get(stream.home.incarnation)
        if follower is not None:
            follower.mine += step

    def begin(self, stream: Served) -> None:
        """Start the stream, queue it, or refuse it: capacity and wait queue are the engine's
        alone.
        """
        message = stream.open
        if message.target != self.endpoint and stream.router is not None:
            self._refuse(
                stream, Unsupported(f"{self.name} serves {self.endpoint}, not {message.target}")
            )
        elif message.target != self.endpoint:
            self.begin_stream(stream)  # an ask or a stream of somebody's Ref
        elif message.many != self.handler.many:
            wanted, verb = (
                ("a stream of requests", "open()")
                if self.handler.many
                else ("one request", "call() or stream()")
            )
            self._refuse(stream, Unsupported(f"{self.endpoint} takes {wanted}: use {verb}"))
        elif self._adapter is not None and message.handles:
            self._refuse(stream, bytes_only(self.endpoint))
        elif self._draining:
            self._refuse(stream, Draining(f"{self.endpoint}: {self._draining}; try another worker"))
        elif self._in_flight + self.canary.held < self.capacity:
            self._start(stream)
        elif len(self._waiting) < self.queue + self.canary.held:
            self._waiting[stream.key] = stream
            self._changed()
        else:
            text = (
                f"{self.endpoint}: all {self.capacity} places and {self.queue} queue places of "
                f"{self.name} are taken; try again later, or raise capacity, queue or replicas"
            )
            self.counters.refused += 1
            self._refuse(stream, Overloaded(text))

    def _refuse(self, stream: Served, error: Exception) -> None:
        self._serving.end(stream, error)

    def _start(self, stream: Served) -> None:
        self._in_flight += 1
        stream.task = self.tasks.create_task(self._run(stream))
        self._changed()

    async def _run(self, stream: Served) -> None:
        stream.begun = True
        try:
            items = self.adapted.items(stream, self._serving.request)
        except Exception as error:
            self._serving.end(stream, error)
            return
        await self._serving.pump.run(stream, items)

    def faulted(self, stream: Served) -> None:
        """An error item: its router counts the stream as settled, though it is in flight here."""
        self._erred += self._is_ours(stream)
        if stream.key in self._faulted or stream.key not in self._serving.streams:
            return
        if stream.open.target != self.endpoint:
            return  # an ask of somebody's Ref
        self._faulted.add(stream.key)
        if stream.router is None:
            # An ingress, behind which another node's router holds the permit.
            self.runtime.port.send(stream.home, Faulted(stream.key[1]))
            self._count(stream, -1)
            self._changed()
            return
        account = self._accounts.get(stream.router.incarnation)
        if account is not None:
            self._settle(account, stream, _ERROR_ITEM)
            self._changed(settled=True)

    def killed(self, stream: Served) -> None:
        """Its handler takes its time. An ingress has forgotten it, and gets no End: to it that is
        a stream of others. A router's permit comes back when it has ended.
        """
        if stream.router is not None or stream.open.target != self.endpoint:
            return
        if stream.key not in self._faulted:
            self._faulted.add(stream.key)
            self._count(stream, -1)
            self._changed()

    def _settle(self, account: Account, stream: Served, code: str) -> None:
        account.settled += 1
        account.ended.append([*stream.key, code])
        if len(account.ended) > _NAMED:
            self._report_to(account)

    def gone(self, stream: Served) -> None:
        """A stream has left: its place is free before its End is sent."""
        if stream.open.target != self.endpoint and stream.router is None:
            return
        self._gave += stream.seq + len(stream.batch)
        account = (
            self._accounts.get(stream.router.incarnation) if stream.router is not None else None
        )
        if self._faulted and stream.key in self._faulted:
            self._faulted.discard(stream.key)
        elif account is not None:
            self._settle(account, stream, stream.outcome)
        elif self._followers and stream.router is None:
            self._count(stream, -1)
        if self._waiting.pop(stream.key, None) is None and stream.task is not None:
            self._in_flight -= 1
            if self._waiting:
                self.refill()
        self._changed(settled=True)

    def report(self, stream: Served) -> Report | None:
        """The report for the stream's router; the client hands it on with its next Open."""
        account = (
            self._accounts.get(stream.router.incarnation) if stream.router is not None else None
        )
        return self._report(account, []) if account is not None else None

    def _account(self, router: Address | None) -> Account | None:
        if router is None:
            return None
        account = self._accounts.get(router.incarnation)
        if account is None:
            if not self.runtime.peers.watch(router):
                return None
            account = self._accounts[router.incarnation] = Account(router)
        return account

    def _report(self, account: Account, ended: list[list[Any]]) -> Report:
        account.seq += 1
        return Report(
            self.address.incarnation,
            account.seq,
            self._in_flight,
            len(self._waiting),
            self.capacity,
            account.opened,
            account.settled,
            ended,
        )

    def _changed(self, settled: bool = False) -> None:
        """Plan reports; at once, behind this tick's Ends, when a place is free after a rest."""
        if not self._accounts and not self._is_news():
            return
        loop = self.runtime.loop
        if settled and loop.time() - self._reported >= _REPORT_EVERY:
            if self._report_planned is not None:
                self._report_planned.cancel()
            self._reported = loop.time()
            self._report_planned = loop.call_soon(self._send_reports)
        elif self._report_planned is None:
            self._report_planned = loop.call_later(_REPORT_EVERY, self._send_reports)

    def _is_news(self) -> bool:
        """Whether a follower has to be told something."""
        carried = self._in_flight + len(self._waiting)
        # No any(): each stream would pay for its generator.
        for follower in self._followers.values():
            if carried - follower.mine != follower.told:
                return True
        return False

    def _send_reports(self) -> None:
        self._report_planned = None
        self._reported = self.runtime.loop.time()
        for account in self._accounts.values():
            self._report_to(account)
        for follower in self._followers.values():
            self._tell(follower)

    def _tell(self, follower: Follower) -> None:
        others = self._in_flight + len(self._waiting) - follower.mine
        if others == follower.told:
            return
        if self.runtime.port.backlog(follower.address, control=True):
            self._changed()  # as below
            return
        follower.told = others
        follower.seq += 1
        report = Report(
            self.address.incarnation,
            follower.seq,
            self._in_flight,
            len(self._waiting),
            self.capacity,
            follower.mine,
            0,
        )
        self.runtime.port.send(follower.address, report, control=True)

    def _report_to(self, account: Account) -> None:
        if self.runtime.port.backlog(account.address, control=True):
            # It does not read: one report will do, when it reads again. They are cumulative.
            self._changed()
            return
        ended, account.ended = account.ended, []
        self.runtime.port.send(account.address, self._report(account, ended), control=True)

    def _subscribed(self, sender: int, m: Subscribe) -> None:
        """A router wants to know what this engine carries, whoever sends it streams; or a home."""
        if m.home:
            self._follow(m.address)
            return
        account = self._account(m.address)
        if account is not None:
            self._report_to(account)

    def _follow(self, home: Address) -> None:
        if not self.runtime.peers.watch(home):
            return
        mine = sum(
            each.home == home and each.router is None and each.open.target == self.endpoint
            for key, each in self._serving.streams.items()
            if key not in self._faulted
        )
        self._followers[home.incarnation] = follower = Follower(home, mine)
        self._tell(follower)

    def _unsubscribed(self, sender: int, m: Unsubscribe) -> None:
        """A home follows no more."""
        self._followers.pop(m.incarnation, None)

    def _router_down(self, address: Address, reason: str) -> None:
        self._accounts.pop(address.incarnation, None)
        self._followers.pop(address.incarnation, None)
