"""The registry of a node, and the way to it from the other processes of the node.

``Registry`` is the table itself (pure). The node's process owns one and publishes what its children
serve; every other process keeps a mirror of it, ``RegistryDiscovery``, fed over the bus by
Snapshot, Added and Removed. Both are lossless: a subscriber is told of each change exactly once, in
the order in which they were made, even when a listener makes changes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from actors.discovery.base import Change, Listener
from actors.errors import ActorDead, CallHomeError, DeadlineExceeded
from actors.messages import Added, Record, Removed, Snapshot, Subscribe, Sync, Synced, Unsubscribe
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

_Key = tuple[int, str]


def _key(record: Record) -> _Key:
    return record.instance, record.endpoint


class RegistrySubscription:
    """A listener's place in a Registry."""

    def __init__(self, registry: Registry, listener: Listener) -> None:
        self._registry = registry
        self.listener = listener
        self.due: deque[Change] = deque()

    def cancel(self) -> None:
        """The listener hears nothing more; a second call does nothing."""
        self.due.clear()
        self._registry._forget(self)


class Registry:
    """Which records exist, by (instance, endpoint), and who wants to know. No I/O, no clock."""

    def __init__(self) -> None:
        self._records: dict[_Key, Record] = {}
        self._subscriptions: list[RegistrySubscription] = []
        self._telling = False

    @property
    def records(self) -> list[Record]:
        """All records, oldest first."""
        return list(self._records.values())

    def add(self, record: Record) -> None:
        """Publish ``record``; the same one is not told twice, a changed one replaces the old."""
        old = self._records.get(_key(record))
        if old == record:
            return
        if old is not None:
            self.remove(old.instance, old.endpoint, "replaced by a newer record")
        self._records[_key(record)] = record
        self._tell(Added(record))

    def remove(self, instance: int, endpoint: str | None, reason: str) -> None:
        """Withdraw an instance's record for ``endpoint``, or all its records (None)."""
        gone = [
            key
            for key in self._records
            if key[0] == instance and (endpoint is None or key[1] == endpoint)
        ]
        for key in gone:
            record = self._records.pop(key, None)
            if record is not None:
                self._tell(Removed(record, reason))

    def change(self, change: Added | Removed) -> None:
        """``add`` or ``remove``, as somebody else has told it."""
        record = change.record
        if isinstance(change, Added):
            self.add(record)
        else:
            self.remove(record.instance, record.endpoint, change.reason)

    def replace(self, records: Iterable[Record]) -> None:
        """Take over a Snapshot; subscribers are told the Snapshot, not the difference."""
        self._records = {_key(record): record for record in records}
        self._tell(Snapshot(self.records))

    def subscribe(self, listener: Listener) -> RegistrySubscription:
        """Tell ``listener`` the Snapshot at once and every later change."""
        subscription = RegistrySubscription(self, listener)
        self._subscriptions.append(subscription)
        subscription.due.append(Snapshot(self.records))
        self._drain()
        return subscription

    def _forget(self, subscription: RegistrySubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def _tell(self, change: Change) -> None:
        for subscription in self._subscriptions:
            subscription.due.append(change)
        self._drain()

    def _drain(self) -> None:
        """Deliver what is due; a change made by a listener waits, so that all hear one order."""
        if self._telling:
            return
        self._telling = True
        try:
            while due := [each for each in self._subscriptions if each.due]:
                for subscription in due:
                    if subscription.due:
                        subscription.listener(subscription.due.popleft())
        finally:
            self._telling = False


class RegistryDiscovery:
    """The node's registry as another process of the node sees it. One a runtime, many listeners.

    ``node`` is the address of the node's actor. It subscribes there when it is first asked.
    """

    def __init__(self, runtime: Runtime, node: Address) -> None:
        self._runtime = runtime
        self._node = node
        runtime.node = node.incarnation
        self._mirror = Registry()
        self._answered = asyncio.Event()
        self._subscribed = False
        self._gone = ""

    @property
    def records(self) -> list[Record]:
        """The records as last heard; empty before ``start``."""
        return self._mirror.records

    async def start(self, limit: float | None = 5.0) -> None:
        """Subscribe at the node and wait at most ``limit`` seconds for its Snapshot
        (None: without limit).

        Raises DeadlineExceeded when the node does not answer, ActorDead when its process is gone.
        """
        if not self._subscribed:
            self._runtime.on(Snapshot, self._on_snapshot)
            self._runtime.on(Added, self._on_added)
            self._runtime.on(Removed, self._on_removed)
            self._runtime.on(Sync, self._on_sync)
            self._runtime.when_down.append(self._on_down)
            self._runtime.send(self._node, Subscribe(self._runtime.address), control=True)
            self._subscribed = True
        try:
            async with asyncio.timeout(limit):
                await self._answered.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the registry of {self._node} did not answer within {limit:g} s: {self._silent()}"
            ) from None
        if self._gone:
            raise ActorDead(
                f"{self._node} is dead: {self._gone}; start the node again (callhome up)"
            )

    def _silent(self) -> str:
        """Why the node does not answer, and what to do."""
        verdict = self._runtime.vigil.of(self._node, time.monotonic())
        if verdict.well:
            return "it may be too busy; try again, or stop it (callhome stop)"
        return (
            f"{verdict.text('it')}; let it go on where somebody has stopped it "
            f"(kill -CONT {self._node.pid}), or end it (callhome stop)"
        )

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        """See ``Discovery.subscribe``."""
        await self.start()
        return self._mirror.subscribe(listener)

    def stop(self) -> None:
        """Unsubscribe at the node; listeners hear nothing more."""
        if not self._subscribed:
            return
        self._subscribed = False
        self._runtime.when_down.remove(self._on_down)
        with contextlib.suppress(CallHomeError):  # a node that is gone needs no goodbye
            bye = Unsubscribe(self._runtime.address.incarnation)
            self._runtime.send(self._node, bye, control=True)

    def _on_snapshot(self, sender: int, message: Snapshot) -> None:
        if sender == self._node.incarnation:
            self._mirror.replace(message.records)
            self._answered.set()

    def _on_added(self, sender: int, message: Added) -> None:
        if sender == self._node.incarnation:
            self._mirror.change(message)

    def _on_removed(self, sender: int, message: Removed) -> None:
        if sender == self._node.incarnation:
            self._mirror.change(message)

    def _on_sync(self, sender: int, message: Sync) -> None:
        # Control messages of one sender keep their order: all changes before this one are in.
        self._runtime.send(self._node, Synced(message.number), control=True)

    def _on_down(self, address: Address, reason: str) -> None:
        """A node that is gone withdraws nothing any more: its engines die with it, each seen so."""
        if address.incarnation == self._node.incarnation:
            self._gone = reason
            self._answered.set()
