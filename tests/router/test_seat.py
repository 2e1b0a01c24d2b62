"""A dispatch of the user's own: how it is made, what it serves, what it cannot break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import DispatchSeat, RequestStream, RouterSpec, Settings
from actors.cluster.entry import running
from actors.errors import (
    ActorDead,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EngineError,
    LocalProtocolError,
    NoWorkers,
    SpecError,
)
from actors.kernel.runtime import Runtime
from actors.kernel.stage import StageError
from actors.messages import Open, Record
from actors.router.actor import RouterActor
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.dispatches import Inside
from tests.router.rig import RouterRig, Told, far_record, spec
from tests.waiting import LONG, wait_until
from transport.bus.address import Address
from transport.context import Context
from transport.wire.codec import Annotated

GO, CHAT = "t.own.go", "t.own.chat"
SEEN: list[str] = []


async def go(request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
    """Yields ``n`` numbers, then does what ``do`` says."""
    SEEN.append("began")
    try:
        for number in range(request.get("n", 0)):
            yield number
        what = request.get("do")
        if what == "break":
            raise ConnectionLost("the road of this dispatch is broken")
        if what == "raise":
            raise ValueError("no such luck")
        if what == "wait":
            await asyncio.Event().wait()
        if what == "sum":
            yield int(request["array"].sum())
        if what == "metadata":
            yield {"id": ctx.id, "metadata": ctx.metadata, "left": ctx.remaining()}
        if what == "error item":
            yield Annotated(event="error", comment=["it is bad"])
            await asyncio.Event().wait()
    finally:
        SEEN.append("killed" if ctx.killed else "stopped" if ctx.stopped else "ended")


async def chat(lines: RequestStream[str], ctx: Context) -> AsyncIterator[str]:
    """Says each line back."""
    async for line in lines:
        yield line


class Own(Inside):
    """Serves both endpoints itself; keeps what a test wants to look at."""

    def __init__(self, seat: DispatchSeat) -> None:
        super().__init__(seat, {GO: (False, go), CHAT: (True, chat)})
        self.records: list[Record] = []

    def on_instance_added(self, record: Record) -> None:
        self.records.append(record)


@asynccontextmanager
async def rig(
    folder: Path, factory: Callable[[DispatchSeat], object], **settings: Any
) -> AsyncIterator[RouterRig]:
    """A router with the dispatch that ``factory`` makes, and a client."""
    SEEN.clear()
    given, told = Settings(**settings), Told()
    actor = RouterActor(dispatch="t:made", load=lambda target: factory)
    actor.discovery = told
    async with running(spec(folder, "router", given), actor):
        runtime = Runtime(run=str(folder), name="client", settings=given)
        try:
            yield (here := RouterRig(actor, told, runtime))
            await here.idle()
        finally:
            runtime.close()


async def test_streams_of_both_kinds_end_at_its_handlers(tmp_path: Path) -> None:
    async with rig(tmp_path, Own) as here:
        async with here.client.stream(GO, {"n": 5000}) as items:
            assert [item async for item in items] == list(range(5000))  # more than one window
        async with here.client.open(CHAT) as talk:
            for number in range(300):
                await talk.send(f"{number}")
                assert await talk.recv() == f"{number}"
            await talk.end()
            assert [item async for item in talk] == []
        seen = await here.client.call(
            GO, {"do": "metadata"}, metadata={"k": "v"}, request_id="mine", timeout=500.0
        )
        assert (seen["id"], seen["metadata"]) == ("mine", {"k": "v"})
        assert 400.0 < seen["left"] <= 500.0
        array = np.arange(100_000, dtype=np.int32)  # it travels in shared memory
        assert await here.client.call(GO, {"do": "sum", "array": array}) == int(array.sum())
        assert here.actor.counters.requests == 4


async def test_cancels_and_deadlines_reach_its_handlers(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, Own) as here:
        async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:
            assert await anext(items) == 0
            assert here.permits == 1
            items.kill("now")
            with pytest.raises(Cancelled):
                await anext(items)
        await wait_until(lambda: SEEN == ["began", "killed"])
        await here.idle()
        call = asyncio.ensure_future(here.client.call(GO, {"do": "wait"}, timeout=LONG))
        await wait_until(lambda: SEEN == ["began", "killed", "began"])
        clock.turn(LONG)
        with pytest.raises(DeadlineExceeded):
            await call
        await wait_until(lambda: SEEN == ["began", "killed"] * 2)
        async with here.client.open(CHAT) as talk:  # left in the middle
            await talk.send("hello")
            assert await talk.recv() == "hello"
        async with here.client.stream(GO, {"do": "wait"}):
            pass  # left before anything came
        await here.idle()


async def test_what_its_handlers_raise_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with rig(tmp_path, Own, retry_limit=0) as here:
        with pytest.raises(ConnectionLost, match="the road of this dispatch is broken") as caught:
            await here.client.call(GO, {"do": "break"})
        worker = next(iter(here.actor.occupancy.workers.values()))
        assert caught.value.details["instance"] == str(worker.instance)
        with pytest.raises(EngineError, match="no such luck") as told:
            await here.client.call(GO, {"do": "raise"})
        assert told.value.remote_type == "ValueError"
        assert await here.client.call(GO, {"n": 1}) == 0  # of the last one, and so not quarantined


class Two(Inside):
    """Has a second instance of an endpoint, whose road is broken."""

    def __init__(self, seat: DispatchSeat) -> None:
        super().__init__(seat, {GO: (False, go)})
        broken = seat.record(GO)
        self.served[broken.instance] = lambda request, ctx: go({"do": "break"}, ctx)
        seat.publish(broken)


async def test_a_broken_road_of_a_dispatch_quarantines_that_instance(tmp_path: Path) -> None:
    async with rig(tmp_path, Two, retry_limit=0, quarantine=LONG) as here:
        answers: list[object] = []
        for _ in range(16):
            try:
                answers.append(await here.client.call(GO, {"n": 1}))
            except ConnectionLost:
                answers.append("lost")
        assert answers.count("lost") == 1


async def test_conformance_29_its_permit_comes_back_at_an_error_item(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, Own) as here,
        here.client.stream(GO, {"n": 1, "do": "error item"}, annotated=True) as items,
    ):
        await anext(items)
        assert (await anext(items)).event == "error"
        assert here.permits == 0
        assert SEEN == ["began"]


async def test_what_is_withdrawn_is_not_chosen_and_what_it_has_goes_on(tmp_path: Path) -> None:
    made: list[Own] = []

    def make(seat: DispatchSeat) -> Own:
        made.append(Own(seat))
        return made[0]

    async with rig(tmp_path, make) as here:
        (own,) = made
        (record,) = [each for each in own.records if each.endpoint == GO]
        async with here.client.open(CHAT) as talk:
            await talk.send("hello")
            assert await talk.recv() == "hello"
            for each in own.records:
                own.seat.withdraw(each, "enough for today")
            with pytest.raises(NoWorkers):
                await here.client.call(GO, {"n": 1})
            await talk.send("still there")
            assert await talk.recv() == "still there"
        own.seat.publish(record)
        assert await here.client.call(GO, {"n": 1}) == 0


async def test_what_discovery_tells_anew_leaves_its_instances_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, Own) as here:
        here.told.add(record := far_record("127.0.0.1:1/x", "t.far.go"))
        here.told.remove(record)
        await here.told.subscribe(here.told._listeners[0])
        assert await here.client.call(GO, {"n": 1}) == 0


async def test_conformance_31_what_discovery_removes_and_adds_at_once_is_heard_as_both(
    tmp_path: Path,
) -> None:
    heard: list[str] = []

    class Ear(Own):
        def on_instance_added(self, record: Record) -> None:
            heard.append(f"added {record.endpoint}")

        def on_instance_removed(self, record: Record, reason: str) -> None:
            heard.append(f"removed {record.endpoint}: {reason}")

    async with rig(tmp_path, Ear) as here:
        record = far_record("127.0.0.1:1/x", "t.far.go")
        here.told.add(record)
        for _ in range(2):
            here.told.remove(record)
            here.told.add(record)
        added, removed = "added t.far.go", "removed t.far.go: it was withdrawn"
        assert heard[2:] == [added, removed, added, removed, added]


class Fickle(Own):
    """Takes back what it has published as soon as it hears of it."""

    def on_instance_added(self, record: Record) -> None:
        self.seat.withdraw(record, "on second thoughts")
        super().on_instance_added(record)


async def test_a_dispatch_may_withdraw_inside_a_callback(tmp_path: Path) -> None:
    made: list[Fickle] = []

    def make(seat: DispatchSeat) -> Fickle:
        made.append(Fickle(seat))
        return made[0]

    async with rig(tmp_path, make) as here:
        with pytest.raises(NoWorkers):
            await here.client.call(GO, {"n": 1})
        third = made[0].seat.record("t.own.third")  # of an endpoint that is new to the router
        made[0].seat.publish(third)
        assert made[0].records[-1] == third
        for endpoint in (GO, "t.own.third"):
            with pytest.raises(NoWorkers):
                await here.client.call(endpoint, {"n": 1})


class Broken(Own):
    """Raises what no dispatch may."""

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        raise ZeroDivisionError("a bug of this dispatch")


async def test_a_dispatch_that_raises_costs_that_stream(tmp_path: Path) -> None:
    async with rig(tmp_path, Broken) as here:
        with pytest.raises(LocalProtocolError, match="router failed: a bug of this dispatch"):
            await here.client.call(GO, {"n": 1})
        async with here.client.open(CHAT) as talk:
            await talk.send("hello")
            assert await talk.recv() == "hello"


async def test_what_it_holds_open_is_closed_in_reverse(tmp_path: Path) -> None:
    closed: list[str] = []

    def make(seat: DispatchSeat) -> Own:
        def trouble() -> None:
            raise ValueError("it is stuck")

        seat.when_stopped(lambda: closed.append("first"))
        seat.when_stopped(trouble)
        seat.when_stopped(lambda: closed.append("second"))
        return Own(seat)

    async with rig(tmp_path, make) as here:
        assert await here.client.call(GO, {"n": 1}) == 0
        assert closed == []
    assert closed == ["second", "first"]


async def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    def make(seat: DispatchSeat) -> Own:
        with pytest.raises(SpecError, match="'nowhere' is no endpoint; use 'namespace"):
            seat.record("nowhere")
        with pytest.raises(SpecError, match="make the record with seat"):
            seat.publish(far_record("127.0.0.1:1/x"))
        hosted = seat.record(GO)
        with pytest.raises(LocalProtocolError, match="must serve it itself"):
            seat.standard.generate(None, hosted, seat.router)  # type: ignore[arg-type]
        return Own(seat)

    async with rig(tmp_path, make):
        pass


def _raises(seat: DispatchSeat) -> object:
    raise ConnectionRefusedError("nobody listens there")


async def _is_async(seat: DispatchSeat) -> object:
    return seat.standard


class _Half:
    """Has two of four methods."""

    def __init__(self, seat: DispatchSeat) -> None:
        self.generate = self.generate_bidirectional = seat.standard.generate


class _Awaited(Own):
    """Means well."""

    async def generate(self, open: Open, worker: Record, home: Address) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (_raises, "raised ConnectionRefusedError: nobody listens there"),
        (_is_async, "returned coroutine, which has no method generate"),
        (_Half, "returned _Half, which has no method on_instance_added; a StreamingDispatch has"),
        (_Awaited, "generate is 'async def'; a dispatch is called, not awaited"),
        (lambda seat: Own, "returned type, which has no method"),
        (17, "is no function; name one that takes a DispatchSeat"),
    ],
)
async def test_a_dispatch_that_cannot_be_made_is_named_at_the_start(
    tmp_path: Path, factory: Any, words: str
) -> None:
    with pytest.raises(StageError) as caught:
        async with rig(tmp_path, factory):
            pass
    assert type(caught.value.cause) is SpecError
    assert str(caught.value.cause).startswith("RouterSpec.dispatch: t:made")
    assert words in str(caught.value.cause)


async def test_a_module_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    def load(target: str) -> object:
        raise ModuleNotFoundError("No module named 't'")

    actor = RouterActor(dispatch="t:made", load=load)
    with pytest.raises(StageError) as caught:
        async with running(spec(tmp_path, "router", Settings()) | {"role": "actor"}, actor):
            pass
    assert "t:made cannot be imported: ModuleNotFoundError" in str(caught.value.cause)
    with pytest.raises(SpecError, match=r"RouterSpec\.dispatch"):
        RouterSpec(dispatch="no target")


async def test_a_stream_of_a_dead_caller_ends(tmp_path: Path) -> None:
    async with rig(tmp_path, Own) as here:
        other = Runtime(run=str(tmp_path), name="other", settings=Settings())
        try:
            caller = type(here.client)(other, lambda _: here.actor.address)
            async with caller.stream(GO, {"n": 1, "do": "wait"}) as items:
                assert await anext(items) == 0
                other.close()
                with pytest.raises((Cancelled, ActorDead, ConnectionLost, LocalProtocolError)):
                    await anext(items)
        finally:
            other.close()
        await wait_until(lambda: SEEN == ["began", "killed"])
