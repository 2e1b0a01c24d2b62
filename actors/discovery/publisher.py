"""Tells the other processes of the node what its registry holds: the serving end of
RegistryDiscovery.

Used by the node's actor. A subscriber gets a Snapshot and then every change; one that does not read
until its outbox is full gets, once it reads again, a new Snapshot instead of the changes that it
missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import ActorDead, CallHomeError, OutboxFull
from actors.messages import (
    Added,
    Down,
    Removed,
    Snapshot,
    Subscribe,
    Sync,
    Synced,
    Unsubscribe,
)
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome.registry")


#: Seconds between two looks whether those who have not answered can.
_LOOK: Final = 0.1


class _Subscriber:
    """One process that wants to hear of changes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.subscription: RegistrySubscription | None = None
        self.behind = False


class Publisher:
    """Serves one registry over one runtime. Its tasks run in ``group``."""

    def __init__(self, runtime: Runtime, registry: Registry, group: asyncio.TaskGroup) -> None:
        self._runtime = runtime
        self._registry = registry
        self._group = group
        self._subscribers: dict[int, _Subscriber] = {}
        self._number = 0
        self._asked: dict[int, set[int]] = {}
        self._answered = asyncio.Event()
        runtime.on(Synced, self._on_synced)
        runtime.on(Subscribe, self._on_subscribe)
        runtime.on(Unsubscribe, lambda sender, message: self._forget(message.incarnation))
        runtime.when_down.append(lambda address, reason: self._forget(address.incarnation))

    @property
    def subscribers(self) -> list[Address]:
        """Who is subscribed."""
        return [each.address for each in self._subscribers.values()]

    async def sync(self, limit: float, deaf: Callable[[Address], bool] = lambda _: False) -> None:
        """Wait until every subscriber has taken in every change made so far; not for those who are
        ``deaf``: nothing that they send can be wrong for what they have not heard.

        Gives up after ``limit`` seconds, which is logged: one that hangs must not stop the others.
        """
        self._number += 1
        number = self._number
        asked = self._asked[number] = set(self._subscribers)
        for each in self.subscribers:
            try:
                self._runtime.send(each, Sync(number), control=True)
            except CallHomeError:
                asked.discard(each.incarnation)
        try:
            async with asyncio.timeout(limit):
                while asked:
                    self._answered.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await self._answered.wait()
                            continue
                    asked -= {each.incarnation for each in self.subscribers if deaf(each)}
        except TimeoutError:
            log.warning("%d subscribers of the registry did not answer in %g s", len(asked), limit)
        finally:
            del self._asked[number]

    def _on_synced(self, sender: int, message: Synced) -> None:
        self._asked.get(message.number, set()).discard(sender)
        self._answered.set()

    def tell_down(self, address: Address, reason: str, others: list[Address]) -> None:
        """Tell all subscribers, and ``others``, how the process at ``address`` ended."""
        everybody = {each.incarnation: each for each in [*self.subscribers, *others]}
        everybody.pop(address.incarnation, None)
        for each in everybody.values():
            try:
                self._runtime.send(each, Down(address, reason), control=True)
            except CallHomeError as error:
                # They learn of the death from their own watch; only the reason is lost.
                log.info("%s was not told the end of %s: %s", each, address, error)
        try:
            # Before the caller clears away what the dead has left: others wait for the reason, and
            # not for long.
            self._runtime.port.flush()
        except Exception:  # the caller has the dead's records to remove
            log.exception("how %s ended was perhaps not told to all", address)

    def _on_subscribe(self, sender: int, message: Subscribe) -> None:
        self._forget(message.address.incarnation)
        subscriber = _Subscriber(message.address)
        self._subscribers[message.address.incarnation] = subscriber
        self._follow(subscriber)

    def _follow(self, subscriber: _Subscriber) -> None:
        subscriber.behind = False
        subscriber.subscription = self._registry.subscribe(
            lambda change: self._send(subscriber, change)
        )

    def _send(self, subscriber: _Subscriber, change: Snapshot | Added | Removed) -> None:
        if subscriber.behind:
            return  # the Snapshot that it will get contains this change
        try:
            self._runtime.send(subscriber.address, change, control=True)
        except ActorDead:
            self._forget(subscriber.address.incarnation)
        except OutboxFull:
            subscriber.behind = True
            self._group.create_task(self._catch_up(subscriber), name="registry catch-up")
        except CallHomeError as error:  # nothing leaves this node's process any more: it ends
            log.info("%s was not told of a change: %s", subscriber.address, error)

    async def _catch_up(self, subscriber: _Subscriber) -> None:
        """Wait until the subscriber reads again; its death ends the wait as well."""
        await self._runtime.port.wait_drained(subscriber.address, control=True)
        if self._subscribers.get(subscriber.address.incarnation) is subscriber:
            if subscriber.subscription is not None:
                subscriber.subscription.cancel()
            self._follow(subscriber)

    def _forget(self, incarnation: int) -> None:
        for asked in self._asked.values():
            asked.discard(incarnation)
        self._answered.set()
        subscriber = self._subscribers.pop(incarnation, None)
        if subscriber is not None and subscriber.subscription is not None:
            subscriber.subscription.cancel()
