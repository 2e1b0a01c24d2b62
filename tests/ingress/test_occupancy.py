"""The stream of loads that routers of other nodes follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Annotated, Context
from actors.discovery.loads import OCCUPANCY, Load, read_loads
from actors.ingress.occupancy import EVERY
from actors.messages import Accept, Credit, End, Faulted, Items, Kill, Stop
from tests.ingress.muxhome import MuxHome, mux_home
from tests.ingress.rig import Rig, rig
from tests.ingress.standin import requester
from tests.waiting import wait_until

GATE: list[asyncio.Event] = []


async def held(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Runs until the gate is open; an error item first, if that is asked for."""
    if request == "error item":
        yield "before"
        yield Annotated(error="broken")
    else:
        yield request
    if request != "deaf":
        await GATE[-1].wait()
    while not GATE[-1].is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await GATE[-1].wait()


@asynccontextmanager
async def both(tmp_path: Path) -> AsyncIterator[tuple[Rig, MuxHome]]:
    GATE.append(asyncio.Event())
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        try:
            yield at, home
        finally:
            GATE[-1].set()


def told(home: MuxHome, stream: int) -> list[Load]:
    """What the ingress has told on a stream, in order."""
    return [load for item in home.items(stream) for load in read_loads(item)]


async def until(home: MuxHome, stream: int, wanted: Callable[[Load], bool], what: str) -> Load:
    """Wait until the newest load is as wanted."""
    await wait_until(
        lambda: any(told(home, stream)[-1:]) and wanted(told(home, stream)[-1]), what=what
    )
    return told(home, stream)[-1]


async def test_a_reader_gets_all_loads_and_then_each_change_with_what_is_its_own(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (at, home), AsyncExitStack() as stack:
        path = await at.engine(held, capacity=2, queue=9)
        engine = at.engines[0].address.incarnation
        stream = await home.ask(OCCUPANCY, None)
        await home.until(Accept, stream)
        first = await until(home, stream, lambda load: True, "the idle engine")
        assert (first.instance, *first[2:]) == (engine, 0, 0, 2, 0)
        # A requester of Dynamo's and another router count, and are not this reader's own.
        other = await stack.enter_async_context(
            mux_home(await stack.enter_async_context(requester(at.ingress.reached)))
        )
        mine = [await home.ask(path, "mine") for _ in range(2)]
        for each in mine:  # what is its own a reader knows itself
            await home.until(Items, each)
        theirs = await other.ask(path, "theirs")
        await until(home, stream, lambda load: load[2:] == (2, 1, 2, 2), "three, two of them mine")
        reader = await other.ask(OCCUPANCY, None)
        await until(other, reader, lambda load: load[2:] == (2, 1, 2, 1), "one of them is theirs")
        assert [load[2:] for load in told(home, stream)] == [(0, 0, 2, 0), (2, 1, 2, 2)]
        for each in mine:
            home.send(Kill(home.incarnation, each, "enough"))
        await until(home, stream, lambda load: load[2:] == (1, 0, 2, 0), "it is full no more")
        await until(other, reader, lambda load: load[2:] == (1, 0, 2, 1), "nobody else is there")
        numbers = [load.seq for load in told(home, stream)]
        assert numbers == sorted(set(numbers))
        GATE[-1].set()
        await other.ended(theirs)
        await until(home, stream, lambda load: load[2:] == (0, 0, 2, 0), "an idle engine says so")


async def test_a_slow_reader_gets_the_newest_only_and_others_not_more_often_than_they_should(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(held)
        async with requester(at.ingress.reached) as requests, mux_home(requests) as other:
            await other.connected_by(path)
            stream = await home.ask(OCCUPANCY, None, metadata={"x-callhome-window": "1,65536"})
            await home.until(Items, stream)
            loop = asyncio.get_running_loop()
            quick, began = home.open(OCCUPANCY), loop.time()
            for number in range(40):
                other.open(path, number)
                await asyncio.sleep(0.002)  # the load changes faster than it is told
            await until(home, quick, lambda load: load[2:] == (40, 0, 64, 0), "forty of others")
            assert len(home.got(Items, quick)) <= (loop.time() - began) / EVERY + 3
            assert len(home.got(Items, stream)) == 1
            home.send(Credit(stream, 1, 65536))
            await until(home, stream, lambda load: load[2:] == (40, 0, 64, 0), "the newest")
            assert len(home.got(Items, stream)) == 2


async def test_engines_are_asked_only_while_somebody_follows(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        await at.engine(held)
        asked = at.engines[0]._followers
        assert not asked
        first = await home.ask(OCCUPANCY, None)
        await home.until(Items, first)
        second = home.open(OCCUPANCY)
        await until(home, second, lambda load: True, "the load that is known already")
        assert list(asked) == [at.ingress.address.incarnation]
        await at.engine(held, endpoint="t.engine.late")
        late = at.engines[1].address.incarnation
        await until(home, first, lambda load: load.instance == late, "an engine that came later")
        home.send(Kill(home.incarnation, first, "enough"))
        home.send(Stop(home.incarnation, second, "enough"))
        assert (await home.ended(second)).error is None
        await wait_until(lambda: not asked and not at.engines[1]._followers, what="nobody follows")
        assert not at.ingress.loads.engines
        third = home.open(OCCUPANCY)
        await wait_until(lambda: len(told(home, third)) == 2, what="asked anew")
        home.cut()
        await wait_until(lambda: not asked, what="a reader that is gone follows no more")
        assert not at.ingress.loads.streams


async def test_what_an_engine_that_is_gone_carried_is_told_no_more(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        await at.engine(held)
        stream = await home.ask(OCCUPANCY, None)
        await until(home, stream, lambda load: True, "its load")
        at.known.registry.remove(at.engines[0].address.incarnation, None, "withdrawn")
        again = home.open(OCCUPANCY)
        await home.until(Items, again)
        assert told(home, again) == []


async def test_conformance_29_an_error_item_is_announced_and_counts_the_stream_out(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(held)
        early = await home.ask(path, "error item")
        await wait_until(lambda: len(home.items(early)) == 2)
        # Who does not follow the loads may be too old to know the word.
        assert home.got(Faulted, early) == []
        stream = home.open(OCCUPANCY)
        await until(
            home, stream, lambda load: load[2:] == (1, 0, 64, 0), "it runs, and is nobody's"
        )
        late = home.open(path, "error item")
        await wait_until(lambda: len(home.items(late)) == 2)
        assert [type(each) for each in home.of(late)][-2:] == [Faulted, Items]
        await until(home, stream, lambda load: load[2:] == (2, 0, 64, 0), "neither is counted")
        assert home.got(End, late) == []
        GATE[-1].set()
        await home.ended(late)
        await until(home, stream, lambda load: load[2:] == (0, 0, 64, 0), "both are gone")


async def test_a_killed_stream_counts_until_its_handler_has_ended(tmp_path: Path) -> None:
    """Not for the router that had sent it, which has let go of it: as one of others."""
    async with both(tmp_path) as (at, home):
        path = await at.engine(held, capacity=2)
        early = await home.ask(path, "deaf")
        await home.until(Items, early)
        home.send(Kill(home.incarnation, early, "enough"))
        await wait_until(lambda: not at.ingress.streams.table, what="the ingress has let go")
        stream = home.open(OCCUPANCY)
        await until(home, stream, lambda load: load[2:] == (1, 0, 2, 0), "killed before")
        late = home.open(path, "deaf")
        await home.until(Items, late)
        for _ in range(2):
            home.send(Kill(home.incarnation, late, "enough"))
        await until(home, stream, lambda load: load[2:] == (2, 0, 2, 0), "killed while it is told")
        assert at.engines[0].carries()["in_flight"] == 2
        GATE[-1].set()
        await until(home, stream, lambda load: load[2:] == (0, 0, 2, 0), "both are gone")


async def test_the_loads_are_told_to_nodes_of_ours_alone(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, home):
        await home.ask(OCCUPANCY, many=True, reply=b"Server unavailable: ")
        assert "is for nodes of callhome" in home.replies[-1]
