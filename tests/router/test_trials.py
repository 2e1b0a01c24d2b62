"""A worker that had failed is tried by one stream: for how long, where that stream goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors import Settings
from actors.cluster.entry import running
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.router.actor import RouterActor
from actors.router.dispatch import DispatchSeat
from tests.router.dispatches import Inside
from tests.router.local_rig import local_rig
from tests.router.rig import Told, spec
from tests.waiting import TICK, wait_until
from transport.context import Context

GO = "t.dispatch.go"


async def test_a_worker_here_is_back_as_soon_as_its_trial_has_come_to_it(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 2, quarantine=TICK) as here:
        first, other = here.members
        here.pool.ended(first.carried, (1, 1), "worker.unavailable")
        assert first.state == "quarantined"
        await wait_until(lambda: here.pool.faults.due(first.carried.instance))
        held = await here.held(4)  # they last, one of them as the trial
        await wait_until(lambda: first.state == "free")
        assert first.carried.load
        assert other.state == "free"
        here.gate.set()
        assert len([await each for each in held]) == 4


async def last(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """One item, and no end until the caller wants none any more."""
    yield 1
    await ctx.wait_stopped()


class Lasting(Inside):
    """Two instances in the router itself."""

    def __init__(self, seat: DispatchSeat) -> None:
        super().__init__(seat, {GO: (False, last)})
        second = seat.record(GO)
        self.served[second.instance] = last
        seat.publish(second)


async def test_one_of_a_dispatch_is_back_with_the_first_item_of_its_trial(tmp_path: Path) -> None:
    settings = Settings(quarantine=TICK)
    actor = RouterActor(dispatch="t:made", load=lambda target: Lasting)
    actor.discovery = Told()
    async with running(spec(tmp_path, "router", settings), actor):
        runtime = Runtime(run=str(tmp_path), name="client", settings=settings)
        client = Caller(runtime, lambda _: actor.address)
        pool = actor.members.pools[GO]
        first, _ = pool.members.values()
        pool.ended(first.carried, (1, 1), "connection.lost")
        await wait_until(lambda: pool.faults.due(first.carried.instance))
        async with (
            client.stream(GO, None, instance=first.carried.instance) as trial,
            client.stream(GO, None) as one,
            client.stream(GO, None) as two,
        ):
            for each in (trial, one, two):
                assert await anext(each) == 1
            await wait_until(lambda: first.state == "free")
            assert first.carried.load >= 1
            for each in (trial, one, two):
                each.stop()
        await wait_until(lambda: not actor.occupancy.permits())
        runtime.close()
