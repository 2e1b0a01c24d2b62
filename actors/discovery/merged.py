"""One Discovery out of several: the node's registry, a directory, etcd, nodes that were named.

Used by routers. Sources stand in an order, the node's own registry first: of an instance that
several of them know, the first one's record holds. What is reached through an ingress of this very
node is heard from the registry alone: its engines are on the bus, and one that is gone must not
come back by the long way round.

A node that is followed knows sooner than a directory or etcd what it serves no more: what it
withdraws, or what goes with its connection, is believed of nobody else at the same address until it
is written anew, or long enough for what nobody renews to have expired.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from actors.discovery.base import Change, Discovery, Listener, Subscription
from actors.discovery.registry import Registry, RegistrySubscription
from actors.messages import Added, Record, Removed, Snapshot

_Key = tuple[int, str]

#: Seconds after which others are believed again of what a followed node has withdrawn: a directory
#: expires what nobody renews after ten, and looks a few times a second.
DOUBT: Final = 12.0
#: Seconds that go by, on top of a record's time to live, until its expiry is heard of.
HEARD: Final = 2.0


class _Source:
    """What one source has told so far. Calling it is telling it more."""

    def __init__(self, merged: MergedDiscovery, followed: bool = False) -> None:
        self._merged = merged
        #: What it tells comes from the nodes themselves that serve it.
        self.followed = followed
        self.records: dict[_Key, Record] = {}

    def __call__(self, change: Change) -> None:
        if isinstance(change, Added):
            self._put(change.record)
        elif isinstance(change, Removed):
            self._drop((change.record.instance, change.record.endpoint), change.reason)
        elif isinstance(change, Snapshot):
            told = {(record.instance, record.endpoint) for record in change.records}
            for key in [key for key in self.records if key not in told]:
                self._drop(key, "it is not in the registry any more")
            for record in change.records:
                self._put(record)

    def _put(self, record: Record) -> None:
        key = (record.instance, record.endpoint)
        known = self.records.get(key)
        self.records[key] = record
        if self.followed or record != known:
            self._merged._doubts.pop(key, None)
        self._merged._settle(key, "replaced by a newer record")

    def _drop(self, key: _Key, reason: str) -> None:
        record = self.records.pop(key, None)
        if record is not None:
            if self.followed:
                self._merged._doubt(key, record)
            self._merged._settle(key, reason)


class MergedDiscovery:
    """Records of ``local`` (the node's registry) and of ``others``, each told once.

    Belongs to one event loop. ``others`` are heard from ``start`` on, what is given to ``follow``
    from then on; ``stop`` leaves all. ``doubt``: seconds after which what nobody renews has expired
    at each of the others.
    """

    def __init__(self, local: Discovery, *others: Discovery, doubt: float | None = None) -> None:
        self._discoveries = (local, *others)
        self._sources = [_Source(self) for _ in self._discoveries]
        self._registry = Registry()
        self._subscriptions: list[Subscription] = []
        self._starting = asyncio.Lock()
        self._started = False
        self._doors: set[str] = set()
        #: What followed nodes have withdrawn: at which address, and until when it is believed of no
        #: other source. Oldest first.
        self._doubts: dict[_Key, tuple[str, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._doubting = DOUBT if doubt is None else doubt
        self._stopped = False

    @property
    def records(self) -> list[Record]:
        """What subscribers have been told of; empty before ``start``."""
        return self._registry.records

    async def start(self) -> None:
        """Follow all sources. Raises what following one of them raises."""
        async with self._starting:
            if self._started:
                return
            for discovery, source in zip(self._discoveries, self._sources, strict=False):
                self._subscriptions.append(await discovery.subscribe(source))
            self._started = True

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        """See ``Discovery.subscribe``."""
        await self.start()
        return self._registry.subscribe(listener)

    async def follow(self, discovery: Discovery) -> None:
        """One source more, behind all others, whose records come from the nodes themselves that
        serve them. Raises what following it raises.
        """
        source = _Source(self, followed=True)
        self._sources.append(source)
        self._subscriptions.append(await discovery.subscribe(source))

    def stop(self) -> None:
        """Leave the sources; subscribers hear nothing more. A second call does nothing."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions.clear()
        self._stopped = True
        self._doubts.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _doubt(self, key: _Key, record: Record) -> None:
        """A followed node has withdrawn a record, or is gone with it."""
        if any(key in source.records for source in self._sources) and not self._stopped:
            self._doubts.pop(key, None)
            self._doubts[key] = record.via.partition("/")[0], time.monotonic() + self._doubting
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._doubting, self._believe)

    def _believe(self) -> None:
        """What is still told after so long is being renewed: somebody serves it."""
        self._timer = None
        now = time.monotonic()
        for key, (_, until) in list(self._doubts.items()):
            if until > now:
                self._timer = asyncio.get_running_loop().call_later(until - now, self._believe)
                break
            del self._doubts[key]
            self._publish(key, "it is believed again")

    def _settle(self, key: _Key, reason: str) -> None:
        """Tell what holds for an instance now, if that has changed."""
        if self._notice_doors():
            for each in {each for source in self._sources for each in source.records}:
                self._publish(each, "it is reached through an ingress of this node")
        self._publish(key, reason)

    def _publish(self, key: _Key, reason: str) -> None:
        record = next(self._candidates(key), None)
        if record is None:
            self._registry.remove(*key, reason)
        else:
            self._registry.add(record)

    def _candidates(self, key: _Key) -> Iterator[Record]:
        for source in self._sources:
            record = source.records.get(key)
            if record is None:
                continue
            if source is self._sources[0]:
                yield record
                continue
            door = record.via.partition("/")[0]
            doubt = None if source.followed else self._doubts.get(key)
            if door not in self._doors and (doubt is None or doubt[0] != door):
                yield record

    def _notice_doors(self) -> bool:
        """Whether the addresses of the node's own ingresses have changed."""
        local = self._sources[0].records.values()
        doors = {record.via for record in local if record.kind == "ingress"}
        if doors == self._doors:
            return False
        self._doors = doors
        return True
