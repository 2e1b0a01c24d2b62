"""Who serves what, as a router is told: records in, pools of workers out.

Whatever discovery tells comes here first. A record that cannot be used costs itself and none of
those behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from actors.discovery.base import Change
from actors.kernel.runtime import Runtime
from actors.messages import Added, Record, Removed, Route, Snapshot
from actors.router.dispatch import HOSTED
from actors.router.faults import Faults
from actors.router.member import Limits
from actors.router.occupancy import Carried, Key, Occupancy, place_of
from actors.router.policy import Policy
from actors.router.pool import Pool
from transport.bus.address import Address
from transport.errors import shown

#: Endpoints without a worker that are remembered, so that a stream to one is told that nobody is
#: alive rather than that nobody knows it. Names come from other nodes: they must not be kept for
#: ever.
_KEPT: Final = 1024


def _own(record: Record) -> bool:
    """Whether discovery has nothing to say of it: the router's dispatch has published it."""
    return record.speaks == HOSTED


class Members:
    """Made by a router. ``policy`` makes the policy of an endpoint. ``freed`` is called with the
    pool in which somebody has become free, ``found`` when there is a record more.
    """

    def __init__(
        self,
        runtime: Runtime,
        occupancy: Occupancy,
        limits: Limits,
        policy: Callable[[str], Policy],
        freed: Callable[[Pool], None],
        found: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._occupancy = occupancy
        self.limits = limits
        self._policy = policy
        self._freed = freed
        self._found = found
        self._records: dict[str, dict[int, Record]] = {}
        #: By endpoint; one whose last worker has left stays for a while.
        self.pools: dict[str, Pool] = {}
        #: Those without a worker, the one that lost its last first.
        self._gone: dict[str, Pool] = {}
        #: Whether streams wait for a worker of an endpoint.
        self.waits: Callable[[str], bool] = lambda endpoint: False
        #: Those with something that time ends, such as a quarantine.
        #: While there is none, how streams end well is no news.
        self.troubled: dict[str, Pool] = {}
        #: Who else wants to know: whoever dispatches, whoever follows loads.
        self.when_added: list[Callable[[Record], None]] = []
        self.when_removed: list[Callable[[Record, str], None]] = []

    def served(self) -> list[str]:
        """Endpoints with a worker, in order."""
        return sorted(each for each, pool in self.pools.items() if pool.members)

    def changed(self, change: Change) -> None:
        """What discovery tells; a record that fails costs itself, and none of those behind it."""
        if isinstance(change, Added):
            self._guarded(self.add, change.record)
        elif isinstance(change, Removed):
            self._guarded(self.remove, change.record, change.reason)
        elif isinstance(change, Snapshot):
            known = {(record.instance, record.endpoint) for record in change.records}
            for records in list(self._records.values()):
                for record in list(records.values()):
                    if (record.instance, record.endpoint) not in known and not _own(record):
                        self._guarded(self.remove, record, "it is not in the registry any more")
            for record in change.records:
                self._guarded(self.add, record)

    def _guarded(self, take: Callable[..., None], record: Record, *more: str) -> None:
        try:
            take(record, *more)
        except Exception as error:
            where = shown(record.via) if record.via else "this node"
            self._runtime.complain(f"the record of {shown(record.endpoint)} at {where}", error)

    def add(self, record: Record) -> None:
        """A worker can serve."""
        if record.kind != "engine":
            return
        # Nobody could be told of it, in an error or by ``callhome ps``. Raises UnicodeEncodeError.
        text = (record.endpoint, record.via, record.address.name, record.codec, record.device)
        "".join((*text, record.device_id)).encode()
        # What is on another node has no process here: its connections tell when it is gone.
        if not record.via and not self._runtime.peers.watch(record.address):
            return
        worker = self._occupancy.add(record)
        self._records.setdefault(record.endpoint, {})[record.instance] = record
        self._gone.pop(record.endpoint, None)
        # Before anybody hears of it, who may withdraw it at once.
        self.pool(record.endpoint).add(worker)
        for hear in self.when_added:
            hear(record)
        self._found()

    def pool(self, endpoint: str) -> Pool:
        """The pool of an endpoint, made when it is first heard of."""
        pool = self.pools.get(endpoint)
        if pool is not None:
            return pool
        settings = self._runtime.settings
        pool = Pool(
            endpoint,
            self._policy(endpoint),
            self.limits,
            Faults(settings.quarantine, settings.quarantine_longest),
            time.monotonic,
            self._occupancy.running,
        )
        pool.freed = lambda: self._freed(pool)
        pool.troubled = lambda: self._trouble(pool)
        self.pools[endpoint] = pool
        return pool

    def remove(self, record: Record, reason: str) -> None:
        """A worker gets no new streams."""
        records = self._records.get(record.endpoint, {})
        known = records.pop(record.instance, None)
        if known is None:
            return
        if not records:
            del self._records[record.endpoint]
        worker = self._occupancy.workers.get(place_of(known))
        pool = self.pools[known.endpoint]
        if worker is not None:
            pool.remove(worker)
        pool.left = f"{known.via or known.address}: {reason}"
        if not pool.members:
            self._gone[pool.endpoint] = pool
            self._forget()
        for hear in self.when_removed:
            hear(known, reason)
        if known.via:
            self._occupancy.retire(place_of(known))

    def near(self) -> Iterator[Address]:
        """The engines of this node, whose processes can be looked after."""
        for records in self._records.values():
            for record in records.values():
                if not record.via:
                    yield record.address

    def judge(
        self, instance: int, code: str, since: float, endpoint: str = "", why: str = ""
    ) -> None:
        """How a worker is, at one endpoint or at all that it serves; see ``Pool.judge``."""
        pools = [self.pools.get(endpoint)] if endpoint else list(self.pools.values())
        for pool in pools:
            if pool is not None:
                pool.judge(instance, code, since, why)

    def _forget(self) -> None:
        """Let go of the endpoints that have been without a worker for longest; not of one for which
        streams wait, or whose workers may come back to what is left of their quarantines.
        """
        for endpoint, pool in list(islice(self._gone.items(), max(0, len(self._gone) - _KEPT))):
            del self._gone[endpoint]
            if pool.calm and not self.waits(endpoint):
                del self.pools[endpoint]
            else:
                self._gone[endpoint] = pool

    def down(self, address: Address, reason: str) -> None:
        """A process of this node is gone."""
        for endpoint, records in list(self._records.items()):
            record = records.get(address.incarnation)
            if record is not None and record.address == address:
                pool = self.pools[endpoint]
                self.remove(record, reason)
                pool.faults.forget(record.instance)

    # What became of streams.

    def told(self, endpoint: str, route: Route) -> None:
        """A home says who has failed its request; see ``Pool.told``."""
        pool = self.pools.get(endpoint)
        if pool is not None:
            pool.told(route)

    def ended(self, worker: Carried, key: Key, code: str) -> None:
        """A stream has ended at a worker with ``code`` ("": well); see ``Pool.ended``."""
        pool = self.pools.get(worker.endpoint)
        if pool is not None:
            pool.ended(worker, key, code)

    def _trouble(self, pool: Pool) -> None:
        self.troubled[pool.endpoint] = pool
        self._runtime.plan_tick()

    def check(self, now: float, runs: Callable[[Key], bool]) -> bool:
        """The coarse timer; see ``Pool.check``."""
        waits = False
        for pool in list(self.troubled.values()):
            waits = pool.check(now, runs) or waits
            if pool.calm:
                del self.troubled[pool.endpoint]
        return waits
