"""An engine that is followed by a home: it tells what it carries for others, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from actors import Annotated, Context, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.messages import Accept, Faulted, Inspect, Kill, Report, Subscribe, Unsubscribe
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import TICK, wait_until
from transport.bus.address import Address

ENDPOINT = "t.engine.go"


async def held(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield Annotated(error="no") if request == "error item" else 1
    await asyncio.Event().wait()


def carried_for_others(home: RawHome) -> list[int]:
    """What a home was told, report by report."""
    return [
        each.in_flight + each.queued - (each.opened - each.settled) for each in home.got(Report)
    ]


async def until(home: RawHome, *wanted: int) -> None:
    await wait_until(
        lambda: carried_for_others(home)[-len(wanted) :] == list(wanted), what=f"{wanted} are told"
    )


async def test_a_home_hears_of_the_streams_of_others_and_not_of_its_own(tmp_path: Path) -> None:
    actor = EngineActor(held, {}, ENDPOINT, 3, 1, None)
    spec = {
        "run": str(tmp_path), "name": "engine", "role": "engine", "settings": Settings().to_dict(),
    }  # fmt: skip
    with ExitStack() as stack:
        ingress, router, other = (stack.enter_context(raw_home(str(tmp_path))) for _ in "123")
        async with running(spec, actor):  # ends before the homes, for whom it would linger
            engine: Address = actor.address
            # Streams that were there before it followed: its own, and a router's.
            ingress.open(engine, 1, ENDPOINT, 1)
            router.open(engine, 1, ENDPOINT, 1, router=router.address)
            await wait_until(lambda: ingress.got(Accept, 1) and router.got(Accept, 1))
            ingress.send(engine, Subscribe(ingress.address, home=True), control=True)
            await until(ingress, 1)
            report = ingress.got(Report)[-1]
            assert (report.in_flight, report.queued, report.capacity) == (2, 0, 3)
            # Its own: one that runs, one that waits, one that is refused, one that asks.
            for stream in (2, 3, 4):
                ingress.open(engine, stream, ENDPOINT, 1)
            end = await ingress.ended(4)
            assert end.error is not None
            assert end.error[0] == "overloaded"
            ingress.open(engine, 5, Inspect.__name__, {})
            await ingress.ended(5)
            for stream in (1, 2, 3):
                ingress.send(engine, Kill(ingress.address.incarnation, stream, "enough"))
            await wait_until(lambda: actor.carries()["in_flight"] == 1)
            await asyncio.sleep(TICK)
            assert carried_for_others(ingress) == [1]
            # Another home's, and an error item of its own, which is nobody's from then on.
            other.open(engine, 1, ENDPOINT, 1)
            await until(ingress, 1, 2)
            ingress.open(engine, 6, ENDPOINT, "error item")
            await until(ingress, 1, 2, 3)
            assert len(ingress.got(Faulted, 6)) == 1
            ingress.send(engine, Kill(ingress.address.incarnation, 6, "enough"))
            await until(ingress, 1, 2, 3, 2)
            router.send(engine, Kill(router.address.incarnation, 1, "enough"))
            await until(ingress, 1, 2, 3, 2, 1)
            ingress.send(engine, Unsubscribe(ingress.address.incarnation), control=True)
            await wait_until(lambda: not actor._followers)
            other.send(engine, Kill(other.address.incarnation, 1, "enough"))
            await wait_until(lambda: actor.carries()["in_flight"] == 0)
            await asyncio.sleep(TICK)
            assert len(ingress.got(Report)) == 5
            # Anew: what it is told begins with what there is.
            ingress.send(engine, Subscribe(ingress.address, home=True), control=True)
            await until(ingress, 1, 0)
