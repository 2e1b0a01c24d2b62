"""Finds actors by name and routers for calls, from what discovery has told so far.

Used by references (``actors.kernel.ref``), by clients and by engines that call endpoints. Answers
come from the mirror in this process, so looking up costs no message.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from actors.discovery.base import Change, Discovery
from actors.errors import ActorDead, NoWorkers
from actors.messages import Added, Record, Removed, Snapshot
from transport.bus.address import Address
from transport.errors import shown


class NodeLookup:
    """The actors and routers of one node as one process sees them; ``start`` it before asking."""

    def __init__(
        self, discovery: Discovery, well: Callable[[Address], bool] = lambda _: True
    ) -> None:
        """``well``: whether a new stream may go to a router; asked where there are several."""
        self._well = well
        self._discovery = discovery
        self._actors: dict[str, Record] = {}
        self._routers: dict[int, Address] = {}
        self._near: list[Address] = []
        self._turn = 0
        #: Called after each change.
        self.when_changed: list[Callable[[], None]] = []
        #: Why the last router is gone, where the node has said so.
        self._gone = ""

    async def start(self) -> None:
        """Follow the registry. Raises DeadlineExceeded or ActorDead if the node does not answer."""
        await self._discovery.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, Snapshot):
            self._actors.clear()
            self._routers.clear()
            for record in change.records:
                self._add(record)
        elif isinstance(change, Added):
            self._add(change.record)
        elif isinstance(change, Removed):
            self._remove(change.record, change.reason)
        # Chosen here, not at each call: a router in this process costs no hop.
        routers, own = list(self._routers.values()), os.getpid()
        self._near = [router for router in routers if router.pid == own] or routers
        for hear in self.when_changed:
            hear()

    def _add(self, record: Record) -> None:
        self._actors[record.address.name] = record
        if record.kind == "router":
            self._routers[record.instance] = record.address

    def _remove(self, record: Record, reason: str) -> None:
        if self._routers.pop(record.instance, None) is not None:
            self._gone = reason
        current = self._actors.get(record.address.name)
        if current is not None and current.instance == record.instance:
            del self._actors[record.address.name]

    def alive(self, name: str) -> bool:
        """Whether there is an actor of this name now."""
        return name in self._actors

    def actor(self, name: str) -> Address:
        """The living incarnation of the actor ``name``. Raises ActorDead when there is none now."""
        record = self._actors.get(name)
        if record is None:
            known = ", ".join(sorted(self._actors)) or "none"
            raise ActorDead(
                f"no actor {shown(name)} is alive on this node (alive: {known}); "
                "check the name, or try again after its restart"
            )
        return record.address

    def router(self, target: str) -> Address:
        """A router for calls to endpoint ``target``: one in this process if there is, else in turn.
        One that is frozen or stalled is passed over, as long as another is well.

        Raises NoWorkers when the node has no router.
        """
        near = self._near
        if not near:
            raise NoWorkers(
                f"{shown(target)}: no router is alive on this node"
                f"{self._gone and f' ({self._gone})'}; "
                "add a RouterSpec to its NodeSpec, or try again after its restart"
            )
        self._turn += 1
        router = near[self._turn % len(near)]
        if len(near) > 1 and not self._well(router):
            return self._other(router)
        return router

    def _other(self, unwell: Address) -> Address:
        for _ in self._near:
            self._turn += 1
            router = self._near[self._turn % len(self._near)]
            if self._well(router):
                return router
        return unwell
