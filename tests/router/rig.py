"""A router on this loop with a client of its own, told by hand what there is elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Settings
from actors.cluster.entry import running
from actors.discovery.base import Change, Discovery, Listener
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Added, Record, Removed, Snapshot
from actors.router.actor import RouterActor
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address

#: Limits that must not strike where a test says nothing of them.
PATIENT: dict[str, Any] = dict.fromkeys(("connect_timeout", "ack_timeout", "dial_in_timeout"), LONG)


class Told:
    """A discovery that says what a test says."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self._listeners: list[Listener] = []

    async def subscribe(self, listener: Listener) -> Told:
        self._listeners.append(listener)
        listener(Snapshot(self.records))
        return self

    def cancel(self) -> None:
        self._listeners.clear()

    def _tell(self, change: Change) -> None:
        for listener in list(self._listeners):
            listener(change)

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._tell(Added(record))

    def remove(self, record: Record, reason: str = "it was withdrawn") -> None:
        self.records.remove(record)
        self._tell(Removed(record, reason))


class RouterRig:
    """The router, its discovery, and a client that calls through it."""

    def __init__(self, actor: RouterActor, told: Told, runtime: Runtime) -> None:
        self.actor = actor
        self.told = told
        self.runtime = runtime
        self.client = Caller(runtime, lambda _: actor.address)

    @property
    def permits(self) -> int:
        return self.actor.occupancy.permits()

    @property
    def relays(self) -> int:
        return len(self.actor._plane.relays)

    async def idle(self) -> None:
        """Wait until all permits are back and no stream is left."""
        await wait_until(lambda: not self.permits and not self.relays, what="an idle router")
        await wait_until(lambda: not self.runtime.home.streams, what="a client without streams")
        assert not self.actor._plane.waiting

    def awaited(self) -> int:
        """Halves of streams for which somebody may still dial in."""
        return self.actor._plane.reception.awaited


def spec(folder: Path, role: str, settings: Settings) -> dict[str, Any]:
    """What an actor's process is told."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return {"run": str(folder), "name": role, "role": role, "settings": settings.to_dict()}


@asynccontextmanager
async def router_rig(
    folder: Path,
    *records: Record,
    peers: tuple[str, ...] = (),
    follows: bool = False,
    discovery: Discovery | None = None,
    **settings: Any,
) -> AsyncIterator[RouterRig]:
    """A router in ``folder`` that knows ``records``, or what ``discovery`` finds; ``follows`` loads
    of other nodes, or leaves alone who plays one.
    """
    given = Settings(**PATIENT | settings)
    told = Told(*records)
    actor = RouterActor()
    actor.discovery = discovery or told
    actor.static_peers = list(peers)
    actor.follows = follows
    actor.patience = 3 * TICK  # what stands for a worker need not read a good-bye
    async with running(spec(folder, "router", given), actor):
        runtime = Runtime(run=str(folder), name="client", settings=given)
        try:
            yield RouterRig(actor, told, runtime)
        finally:
            runtime.close()


def far_record(
    via: str, endpoint: str = "t.far.go", instance: int = 0xABC, **fields: Any
) -> Record:
    """The record of a worker on another node."""
    address = Address(f"{endpoint}@{via.partition('/')[0]}", instance, 0, 0)
    return Record(instance, address, "engine", endpoint, via=via, **fields)
