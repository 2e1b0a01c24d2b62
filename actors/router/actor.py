"""RouterActor: the door out of its node. Chooses a worker, books a permit, dispatches."""

from __future__ import annotations

import random
from difflib import get_close_matches
from typing import Any

from actors.discovery.base import Change, Discovery
from actors.errors import CallHomeError, NoWorkers, SpecError, Unsupported
from actors.kernel.actor import Actor
from actors.kernel.served import Served
from actors.messages import Added, End, Kill, Lost, Open, Record, Removed, Report, Snapshot, Stop
from actors.router.dispatch import StreamingDispatch
from actors.router.local import LocalDispatch
from actors.router.occupancy import Carried, Occupancy
from actors.router.policy import POLICIES, Policy
from transport.bus.address import Address
from transport.errors import shown, to_wire

#: Longest name, in characters, that a known endpoint could be meant by.
_LONGEST = 256


class RouterActor(Actor):
    """The router of a node; several of them agree because engines tell each what they carry."""

    def __init__(self, policy: str = "least_loaded", seed: int | None = None) -> None:
        if policy not in POLICIES:
            raise SpecError(
                f"policy {policy!r} is unknown; use one of {', '.join(sorted(POLICIES))}"
            )
        self._policy_name = policy
        self._random = random.Random(seed)
        self._policies: dict[str, Policy] = {}
        self._records: dict[str, dict[int, Record]] = {}
        self._serving_now: dict[str, list[Carried]] = {}
        self.occupancy = Occupancy()
        self.discovery: Discovery | None = None

    def facts(self) -> dict[str, Any]:
        """What the node publishes about this router."""
        return {}

    async def on_start(self) -> None:
        runtime = self.runtime
        self.dispatch: StreamingDispatch = LocalDispatch(runtime)
        # Opens for endpoints are routed, all others are for this actor itself.
        self._own = self._serving.open
        runtime.on(Open, self._route)
        runtime.on(Stop, self._forward)
        runtime.on(Kill, self._forward)
        runtime.on(Report, self._report)
        runtime.when_down.append(self._down)
        if self.discovery is not None:
            self._subscription = await self.discovery.subscribe(self._changed)

    async def on_stop(self) -> None:
        if self.discovery is not None:
            self._subscription.cancel()

    def _changed(self, change: Change) -> None:
        if isinstance(change, Added):
            self._add(change.record)
        elif isinstance(change, Removed):
            self._remove(change.record, change.reason)
        elif isinstance(change, Snapshot):
            known = {record.instance for record in change.records}
            for records in list(self._records.values()):
                for record in list(records.values()):
                    if record.instance not in known:
                        self._remove(record, "it is not in the registry any more")
            for record in change.records:
                self._add(record)

    def _add(self, record: Record) -> None:
        if record.kind != "engine" or not self.runtime.peers.watch(record.address):
            return
        self._records.setdefault(record.endpoint, {})[record.instance] = record
        self.occupancy.add(record.address, record.endpoint, record.capacity)
        self._list(record.endpoint)
        self.dispatch.on_instance_added(record)

    def _remove(self, record: Record, reason: str) -> None:
        records = self._records.get(record.endpoint)
        if records is not None and records.pop(record.instance, None) is not None:
            self._list(record.endpoint)
            self.dispatch.on_instance_removed(record, reason)

    def _list(self, endpoint: str) -> None:
        """The workers of an endpoint in a stable order, made when they change and not for each
        stream.
        """
        workers = self.occupancy.workers
        self._serving_now[endpoint] = [
            workers[instance] for instance in sorted(self._records[endpoint]) if instance in workers
        ]

    def _down(self, address: Address, reason: str) -> None:
        """Behind the barrier: permits and unaccepted streams of a dead worker."""
        for records in self._records.values():
            record = records.get(address.incarnation)
            if record is not None:
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
        workers = self._serving_now.get(m.target)
        if not workers:
            self._refuse(m, self._nobody(m.target))
            return
        policy = self._policies.get(m.target)
        if policy is None:
            policy = self._policies[m.target] = POLICIES[self._policy_name](self._random.randrange)
        worker = workers[policy.choose(workers)]
        self.occupancy.book(worker, m.home, m.stream)
        try:
            if m.many:
                self.dispatch.generate_bidirectional(m, worker.address, m.home)
            else:
                self.dispatch.generate(m, worker.address, m.home)
        except CallHomeError as error:
            self.occupancy.unbook(m.home, m.stream)
            self._refuse(m, error)

    def _nobody(self, target: str) -> CallHomeError:
        known = sorted(endpoint for endpoint, workers in self._serving_now.items() if workers)
        if target in self._serving_now:
            return NoWorkers(
                f"no worker of endpoint {shown(target)} is alive; "
                "wait for a restart (see callhome ps)"
            )
        near = get_close_matches(target[:_LONGEST], known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return NoWorkers(
            f"endpoint {shown(target)} is unknown here{hint} (served: {', '.join(known) or 'none'})"
        )

    def _refuse(self, m: Open, error: CallHomeError) -> None:
        self.counters.refused += 1
        self.counters.failed(error)
        self.runtime.port.send(m.home, End(m.stream, 0, to_wire(error)), size=512)

    def _forward(self, sender: int, m: Stop | Kill) -> None:
        """A cancel that was sent before the stream had a peer: it follows its Open, on the same
        lane.
        """
        worker = self.occupancy.find(m.home, m.stream)
        if worker is not None:
            self.runtime.port.send(worker.address, m)
            self.runtime.port.flush()

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
        }

    def _workers_now(self) -> list[dict[str, Any]]:
        return [
            {
                "endpoint": worker.endpoint,
                "worker": worker.address.name,
                "instance": worker.instance,
                "load": worker.load,
                "permits": worker.permits,
                "capacity": worker.capacity,
            }
            for worker in self.occupancy.workers.values()
        ]
