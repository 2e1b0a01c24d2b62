"""An ingress with engines behind it, each with a runtime of its own, on this loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Settings
from actors.cluster.entry import running
from actors.discovery.base import Listener
from actors.discovery.record import routing_path
from actors.discovery.registry import Registry, RegistrySubscription
from actors.discovery.sources import Sources
from actors.engine.actor import EngineActor
from actors.ingress.actor import IngressActor
from actors.messages import Record
from tests.ingress.standin import Requester, requester
from tests.waiting import wait_until


class Known:
    """A node's registry without the node."""

    def __init__(self) -> None:
        self.registry = Registry()

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        return self.registry.subscribe(listener)


class Rig:
    """The ingress, its requester and what it knows."""

    def __init__(self, tmp_path: Path, settings: Settings, stack: AsyncExitStack) -> None:
        self._tmp_path = tmp_path
        self._settings = settings
        self._stack = stack
        self.known = Known()
        self.engines: list[EngineActor] = []
        self.ingress: IngressActor
        self.requester: Requester

    async def engine(
        self,
        target: Any,
        endpoint: str = "t.engine.go",
        capacity: int = 64,
        queue: int = 64,
        adapter: Any = None,
    ) -> str:
        """Start an engine; the path that names it."""
        actor = EngineActor(target, {}, endpoint, capacity, queue, adapter)
        name = f"engine-{len(self.engines)}"
        await self._stack.enter_async_context(running(self.spec(name), actor))
        self.engines.append(actor)
        record = Record(
            actor.address.incarnation, actor.address, "engine", endpoint, actor.handler.many,
            capacity, self._settings.codec,
        )  # fmt: skip
        self.known.registry.add(record)
        return routing_path(record)

    def spec(self, name: str) -> dict[str, Any]:
        return {
            "run": str(self._tmp_path),
            "name": name,
            "role": "actor",
            "settings": self._settings.to_dict(),
        }

    @property
    def errors(self) -> dict[str, int]:
        """Failures that the ingress has counted, by kind."""
        return self.ingress.counters.errors

    @property
    def cancelled(self) -> int:
        return self.ingress.counters.cancelled

    def carried(self) -> int:
        """Streams and requests that the ingress and its engines have."""
        at = self.ingress
        engines: int = sum(
            each.carries()["in_flight"] + each.carries()["queued"] for each in self.engines
        )
        mine: int = len(at.streams.table) + at.admission.placed + at.admission.waiting
        return mine + engines

    async def idle(self) -> None:
        """Wait until nothing is carried any more, and nothing is left of it."""
        await wait_until(lambda: not self.carried(), what="nothing is carried")
        await wait_until(lambda: not self.ingress.streams.lingering, what="no socket lingers")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await wait_until(condition, what=what)


@asynccontextmanager
async def rig(tmp_path: Path, *, directory: str = "", **settings: Any) -> AsyncIterator[Rig]:
    """An ingress that knows no engine yet, and a requester connected to it."""
    async with AsyncExitStack() as stack:
        at = Rig(tmp_path, Settings(**settings), stack)
        ingress = IngressActor("127.0.0.1:0")
        ingress.discovery = at.known
        ingress.sources = Sources(directory)
        await stack.enter_async_context(running(at.spec("ingress"), ingress))
        at.ingress = ingress
        at.requester = await stack.enter_async_context(requester(ingress.reached))
        yield at
