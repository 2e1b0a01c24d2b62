"""The loads of workers on other nodes: followed once an ingress, agreed upon by several routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import Annotated, BidirectionalEngine, Context, Engine, RequestStream, Settings
from actors.cluster.entry import running
from actors.discovery.loads import OCCUPANCY, Load, pack_loads
from actors.discovery.record import SPEAKS
from actors.engine.actor import EngineActor
from actors.errors import EngineError, NoWorkers, WorkerUnavailable
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Accept, Items, Record
from actors.router import reports
from actors.router.actor import RouterActor
from actors.router.occupancy import Carried
from tests.router.nodes import Node, node
from tests.router.rig import RouterRig, Told, far_record, router_rig, spec
from tests.router.standin import Call, standin
from tests.router.standin_mux import MuxEnd, connect, number
from tests.waiting import LONG, wait_until
from transport.bus.address import Address
from transport.wire.codec import encode

GO = "t.far.go"
CHAT = "t.far.chat"
GATE: list[asyncio.Event] = []


class Held(Engine[Any, Any]):
    """Answers, then waits for the gate; an error item first, if that is asked for."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        if request == "raise":
            raise ValueError("no such luck")
        yield Annotated(error="broken") if request == "error item" else 1
        if request != "quick":
            await GATE[-1].wait()


class HeldChat(BidirectionalEngine[Any, Any]):
    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        yield 1
        await GATE[-1].wait()


class Callers:
    """Held streams through several routers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def hold(self, caller: Caller, target: str = GO, request: Any = None) -> None:
        """A stream that has given its first item and stays."""
        if target == CHAT:
            open_ = await self._stack.enter_async_context(caller.open(target))
            assert await anext(open_) == 1
            return
        items = await self._stack.enter_async_context(
            caller.stream(target, request, annotated=True)
        )
        await anext(items)


@asynccontextmanager
async def routers(folder: Path, count: int, told: Callable[[], Told]) -> AsyncIterator[
    list[RouterRig]
]:  # fmt: skip
    """Routers of one node with a client each."""
    async with AsyncExitStack() as stack:
        rigs = []
        for number in range(count):
            actor = RouterActor(seed=number)
            actor.discovery = told()
            name = spec(folder, "router", Settings()) | {"name": f"router-{number}"}
            await stack.enter_async_context(running(name, actor))
            runtime = Runtime(run=str(folder), name=f"client-{number}", settings=Settings())
            stack.callback(runtime.close)
            rigs.append(RouterRig(actor, actor.discovery, runtime))
        GATE.append(asyncio.Event())
        stack.callback(lambda: GATE[-1].set())
        yield rigs


def workers(here: RouterRig, target: str = GO) -> list[Carried]:
    known = here.actor.occupancy.workers.values()
    found = [each for each in known if each.endpoint == target]
    return sorted(found, key=lambda each: each.instance)


def loads(here: RouterRig, target: str = GO) -> list[int]:
    return [each.load for each in workers(here, target)]


async def until(here: RouterRig, wanted: list[int], target: str = GO) -> None:
    await wait_until(
        lambda: loads(here, target) == wanted, what=f"loads {wanted}, now {loads(here, target)}"
    )


async def agree(
    rigs: list[RouterRig], target: str, carried: Callable[[], list[int]], hold: Any
) -> None:
    """Twenty streams by turns through each router: no engine gets more than its share."""
    for count in range(1, 21):
        await hold(rigs[count % len(rigs)].client, target)
        for here in rigs:  # each hears of the stream before the next is placed
            await wait_until(partial(lambda h, n: sum(loads(h, target)) == n, here, count))
    assert carried() == [5, 5, 5, 5]
    for here in rigs:
        assert loads(here, target) == [5, 5, 5, 5]
        assert here.permits == 20 // len(rigs)


@pytest.mark.parametrize(("target", "engine"), [(GO, Held), (CHAT, HeldChat)])
async def test_two_routers_agree_about_workers_of_another_node(
    tmp_path: Path, target: str, engine: Any
) -> None:
    async with (
        node(tmp_path / "b", *[(target, engine, {})] * 4) as far,
        routers(tmp_path / "a", 2, lambda: Told(*far.records)) as rigs,
        AsyncExitStack() as stack,
    ):
        for here in rigs:
            await wait_until(lambda here=here: all(each.seq for each in workers(here, target)))
        await agree(rigs, target, lambda: carried_by(far), Callers(stack).hold)
        assert len(far.ingress.loads.streams) == 2
        GATE[-1].set()
        for here in rigs:
            await until(here, [0, 0, 0, 0], target)


def carried_by(far: Node) -> list[int]:
    return [each.carries()["in_flight"] for each in far.engines]


async def test_two_routers_agree_about_workers_of_their_own_node(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        folder = tmp_path / "a"
        engines, records = [], []
        for number in range(4):
            actor = EngineActor(Held, {}, GO, 64, 64, None)
            role = spec(folder, f"engine-{number}", Settings()) | {"role": "engine"}
            await stack.enter_async_context(running(role, actor))
            own = actor.address
            engines.append(actor)
            records.append(Record(own.incarnation, own, "engine", GO, False, 64))
        rigs = await stack.enter_async_context(routers(folder, 2, lambda: Told(*records)))
        held = await stack.enter_async_context(AsyncExitStack())
        await agree(
            rigs, GO, lambda: [each.carries()["in_flight"] for each in engines], Callers(held).hold
        )


async def test_streams_of_others_count_and_an_idle_worker_is_known_to_be_idle(
    tmp_path: Path,
) -> None:
    """B122: a worker that was busy for others is free again though nobody calls it."""
    async with (
        node(tmp_path / "b", (GO, Held, {}), capacity=2) as far,
        routers(tmp_path / "a", 1, lambda: Told(*far.records)) as (here,),
        AsyncExitStack() as stack,
    ):
        runtime = Runtime(run=str(tmp_path / "b"), name="neighbour", settings=Settings())
        stack.callback(runtime.close)
        engine = far.engines[0].address
        neighbour = Caller(runtime, lambda _: engine)
        async with AsyncExitStack() as streams:
            for _ in range(3):
                items = await streams.enter_async_context(neighbour.stream(GO))
                if len(runtime.home.streams) < 3:
                    await anext(items)
                else:
                    first = asyncio.ensure_future(anext(items))  # it waits for a place
                    stack.callback(first.cancel)
            await until(here, [3])
            (worker,) = workers(here)
            assert (worker.in_flight, worker.queued, worker.capacity, worker.permits) == (
                2,
                1,
                2,
                0,
            )
        await until(here, [0])


async def test_conformance_29_and_b113_a_permit_is_held_to_the_end_or_the_first_error_item(
    tmp_path: Path,
) -> None:
    async with (
        node(tmp_path / "b", (GO, Held, {}), capacity=4) as far,
        routers(tmp_path / "a", 1, lambda: Told(*far.records)) as (here,),
        AsyncExitStack() as stack,
    ):
        (worker,) = workers(here)
        await wait_until(lambda: worker.seq, what="its load is told")
        hold = Callers(stack).hold
        await hold(here.client)
        assert (worker.permits, worker.load) == (1, 1)
        await hold(here.client, request="error item")
        # The item is here, so the permit was back before.
        assert worker.permits == 1
        await until(here, [2])
        assert carried_by(far) == [2]
        with pytest.raises(EngineError):
            await here.client.call(GO, "raise")
        assert worker.permits == 1
        GATE[-1].set()
        await until(here, [0])
        assert worker.permits == 0


async def test_a_node_that_is_gone_and_comes_back_is_followed_anew(tmp_path: Path) -> None:
    told = Told()
    async with routers(tmp_path / "a", 1, lambda: told) as (here,):
        async with node(tmp_path / "b", (GO, Held, {})) as far:
            told.add(far.records[0])
            (worker,) = workers(here)
            await wait_until(lambda: worker.seq > 0)
            here.actor.occupancy.hear(worker, worker.seq + 1, 7, 0, 64, 0)
            told.add(far.records[0]._replace(capacity=5))  # told anew: nothing is forgotten
            assert worker.load == 7
            assert len(far.ingress.loads.streams) == 1
        await wait_until(lambda: worker.load == worker.seq == 0, what="what was told is void")
        async with node(tmp_path / "c", (GO, Held, {})) as far:
            record = far.records[0]
            told.add(record)
            await wait_until(
                lambda: any(
                    each.instance == record.instance and each.seq for each in workers(here)
                ),
                what="the new incarnation is heard",
            )
            told.remove(record)
            await wait_until(lambda: not far.ingress.loads.streams, what="it is left alone")


# A node that a test plays: what it may tell, and one that tells nothing.


async def told_by(end: MuxEnd, call: Call, first: int, *loads: Load) -> None:
    if first == 0:
        end.send(Accept(number(call), Address("far", 0x77, 1, 1), 0, 0))
    end.send(Items(number(call), first, [encode(pack_loads(loads), codec="msgpack")]))


async def test_b122_of_loads_the_newest_holds_and_those_of_later_records_are_kept(
    tmp_path: Path,
) -> None:
    async with standin() as far:
        one, two = (
            far_record(f"{far.address}/{each:x}/t/far/go", GO, each, speaks=SPEAKS)
            for each in (1, 2)
        )
        async with router_rig(tmp_path, one, follows=True) as here:
            call, end = await connect(far)
            assert call.path == OCCUPANCY
            await told_by(end, call, 0, Load(2, 5, 3, 0, 4, 0), Load(1, 6, 1, 1, 4, 0))
            await wait_until(lambda: loads(here) == [2])
            here.told.add(two)
            assert loads(here) == [2, 3], "known before its record was"
            await told_by(end, call, 1, Load(2, 4, 9, 0, 4, 0), Load(1, 7, 0, 0, 4, 0))
            await until(here, [0, 3])
            end.send(Items(number(call), 2, [encode({"loads": [[2, 9], 5]}), encode({"news": 1})]))
            await told_by(end, call, 4, Load(1, 8, 1, 0, 4, 0))
            await until(here, [1, 3])
            here.told.remove(one)
            await told_by(end, call, 5, Load(1, 9, 7, 0, 4, 0), Load(2, 9, 4, 0, 4, 0))
            await until(here, [4])
            end.half.close()
            await until(here, [0])
            again, end = await connect(far)
            await told_by(end, again, 0, Load(2, 1, 2, 0, 4, 0))  # it counts from 1 again
            await until(here, [2])
            far.hang_up()


async def test_b122_a_node_that_does_not_tell_is_asked_again_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def pausing(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    aside = SimpleNamespace(**vars(asyncio) | {"sleep": pausing})
    monkeypatch.setattr(reports, "asyncio", aside)
    async with standin() as far:
        record = far_record(f"{far.address}/1/t/far/go", GO, 1, speaks=SPEAKS)
        async with router_rig(tmp_path, record, follows=True) as here:
            for _ in range(9):
                call = await far.next()
                call.reply(f"Server unavailable: nothing is served at path {OCCUPANCY!r}".encode())
            await wait_until(lambda: len(pauses) >= 8)
            assert pauses[:8] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
            assert here.actor.counters.errors == {}
            await asyncio.wait_for(asyncio.shield(served(here, far)), LONG)
            assert loads(here) == [0]
    assert not [each for each in caplog.records if each.levelname not in ("DEBUG", "INFO")]


async def served(here: RouterRig, far: Any) -> None:
    """A stream to such a node, which counts by its permit."""
    task = asyncio.ensure_future(here.client.call(GO, "x", timeout=LONG))
    while (call := await far.next()).path == OCCUPANCY:
        call.reply(b"Server unavailable: still not")
    assert loads(here) == [1]
    call.reply(b"Server unavailable: it stops")
    with pytest.raises(WorkerUnavailable, match="it stops"):
        await task


async def test_dynamo_workers_and_workers_here_are_not_asked_and_nodes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reports, "MOST", 2)
    far = [far_record(f"127.0.0.1:{each}/a", GO, each, speaks=SPEAKS) for each in range(1, 5)]
    async with router_rig(tmp_path, far_record("127.0.0.1:9/a", GO, 9), *far, follows=True) as here:
        followed = here.actor._knowledge.reports._followed
        assert list(followed) == ["127.0.0.1:1", "127.0.0.1:2"]
        assert sum("further ones go by" in each.message for each in caplog.records) == 1
        here.told.remove(far[3])
        here.told.remove(far[0])
        assert list(followed) == ["127.0.0.1:2", "127.0.0.1:3"]  # it had no place before
        here.told.add(far[3])
        here.told.remove(far[1])
        assert list(followed) == ["127.0.0.1:3", "127.0.0.1:4"]
        door = here.actor._knowledge.reports.find(here.actor.address, "callhome.occupancy@x:1")
        assert door is not None
        assert (door.via, door.instance) == (f"x:1/{OCCUPANCY}", 0)
        with pytest.raises(NoWorkers, match="is unknown here"):
            await here.client.call("callhome.occupancy@x:1")  # nobody else gets in by that door
