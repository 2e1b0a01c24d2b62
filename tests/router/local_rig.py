"""A router and engines of one node on this loop, with a client; the engines wait until told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Context, Engine, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.errors import ConnectionLost
from actors.kernel.calls import Caller
from actors.kernel.ref import Ref
from actors.kernel.runtime import Runtime
from actors.messages import Record
from actors.router.actor import RouterActor
from actors.router.member import Member
from actors.router.pool import Pool
from tests.router.rig import Told, spec
from tests.waiting import wait_until
from transport.bus.address import Address

GO = "t.near.go"


class Gate(Engine[Any, Any]):
    """Answers with the number of its worker once the gate is open."""

    def __init__(self, number: int, gate: asyncio.Event, order: list[Any]) -> None:
        self.number = number
        self.gate = gate
        self.order = order

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        self.order.append(request)
        if request != "quick":
            await self.gate.wait()
        if request == "raise":
            raise ConnectionError("no such luck")
        if request == "lose":
            raise ConnectionLost("somebody of its own")
        yield self.number


class _Lookup:
    """Knows the router."""

    def __init__(self, router: RouterActor) -> None:
        self._router = router

    def actor(self, name: str) -> Address:
        return self._router.address

    def router(self, target: str) -> Address:
        return self._router.address


class LocalRig:
    """The router, its engines and a client."""

    def __init__(
        self, router: RouterActor, told: Told, engines: list[EngineActor], runtime: Runtime
    ) -> None:
        self.router = router
        self.told = told
        self.engines = engines
        self.runtime = runtime
        self.client = Caller(runtime, lambda _: router.address)
        self.ref = Ref("router", runtime, _Lookup(router))
        self.gate = asyncio.Event()
        #: Requests in the order in which handlers began with them.
        self.order: list[Any] = []

    @property
    def pool(self) -> Pool:
        return self.router.members.pools[GO]

    @property
    def members(self) -> list[Member]:
        return [self.pool.members[each.address.incarnation] for each in self.engines]

    @property
    def loads(self) -> list[int]:
        return [each.carried.load for each in self.members]

    @property
    def waiting(self) -> int:
        queue = self.router._choosing.queue
        return 0 if queue is None else len(queue)

    def call(self, request: Any = "go", **options: Any) -> asyncio.Task[Any]:
        """A call that goes on beside the test."""
        return asyncio.ensure_future(self.client.call(GO, request, **options))

    async def held(self, count: int, **options: Any) -> list[asyncio.Task[Any]]:
        """So many calls that handlers hold, or the router lets wait."""
        # A call that was answered just now may be among the loads until its worker has told.
        await wait_until(lambda: sum(self.loads) + self.waiting <= len(self.runtime.home.streams))
        before = sum(self.loads) + self.waiting
        tasks = [self.call(f"held {each}", **options) for each in range(count)]
        await wait_until(lambda: sum(self.loads) + self.waiting == before + count)
        return tasks

    async def settled(self) -> None:
        """Let the router do what it has planned for the next turns of this loop."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def idle(self) -> None:
        """Wait until nothing is left of any stream."""
        await wait_until(lambda: not any(self.loads) and not self.router.occupancy.permits())
        await wait_until(lambda: not self.waiting and not self.router._plane.relays)
        await wait_until(lambda: not self.runtime.home.streams)


@asynccontextmanager
async def local_rig(
    folder: Path,
    workers: int = 2,
    *,
    capacity: int = 4,
    queue: int = 0,
    router: dict[str, Any] | None = None,
    more: tuple[Record, ...] = (),
    **settings: Any,
) -> AsyncIterator[LocalRig]:
    """``workers`` engines of so much capacity and queue behind a router with these options."""
    given = Settings(**settings)
    async with AsyncExitStack() as stack:
        gate, told = asyncio.Event(), Told()
        order: list[Any] = []
        engines: list[EngineActor] = []
        for number in range(workers):
            args = {"number": number, "gate": gate, "order": order}
            actor = EngineActor(Gate, args, GO, capacity, queue, None)
            name = spec(folder, f"engine-{number}", given) | {"role": "engine"}
            await stack.enter_async_context(running(name, actor))
            own = actor.address
            engines.append(actor)
            told.records.append(Record(own.incarnation, own, "engine", GO, False, capacity))
        told.records += more
        door = RouterActor(**(router or {}))
        door.discovery = told
        await stack.enter_async_context(running(spec(folder, "router", given), door))
        runtime = Runtime(run=str(folder), name="client", settings=given)
        stack.callback(runtime.close)
        rig = LocalRig(door, told, engines, runtime)
        rig.gate, rig.order = gate, order
        yield rig
        gate.set()
        await rig.idle()
