"""Where calls go: every mode over real workers, here and on another node, by one router and by two.

One cluster stands for the whole module. Its routers live in one process, all modes side by side;
the workers are processes of their own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from actors import BusyAt
from actors.errors import AllBusy, CallHomeError, NoWorkers, WorkerUnavailable
from actors.messages import Record
from actors.router.policy import MODES
from tests.e2e.distribution import (
    Stand,
    Through,
    held_call,
    idle,
    objection,
    router_name,
    run_wave,
    waves,
)
from tests.e2e.routing_engines import HELD
from tests.e2e.standing import inspect
from tests.e2e.watching import ROOT
from tests.waiting import LONG, wait_until

CALLS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes with two routers of each mode, and four workers on one of them; its name."""
    command = [sys.executable, "-m", "tests.e2e.distribution", "serve"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(LONG) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_conformance_26_held_calls_of_every_shape_by_every_mode(
    cluster: str, mode: str
) -> None:
    async with Stand(cluster) as stand:
        for road, shape, routers in (
            ("near", "call", 1),
            ("near", "stream", 2),
            ("near", "bidi", 2),
            ("far", "call", 2),
            ("far", "bidi", 1),
        ):
            wave = await run_wave(stand, mode, shape, road, routers, CALLS)
            why = objection(mode, wave, CALLS, routers)
            assert not why, f"{road} {shape} by {routers} routers: {why}: {wave}"


@pytest.mark.parametrize("road", ["near", "far"])
async def test_b110_a_burst_is_spread_as_it_is_counted(cluster: str, road: str) -> None:
    async with Stand(cluster) as stand:
        wave = await run_wave(stand, "least_loaded", "call", road, 1, 100)
        assert wave.counts == [25] * 4
        wave = await run_wave(stand, "power_of_two_choices", "call", road, 1, 100)
        assert max(wave.counts) <= 40


@pytest.mark.parametrize("road", ["near", "far"])
async def test_b116_idle_workers_take_turns(cluster: str, road: str) -> None:
    async with Stand(cluster) as stand:
        client = await stand.client(road, router_name("least_loaded", 0))
        found = Counter([await client.call(HELD, {}) for _ in range(400)])
        assert len(found) == 4
        assert 50 <= min(found.values()) <= max(found.values()) <= 150


async def test_b117_of_two_choices_the_loaded_one_is_never_taken(cluster: str) -> None:
    async with Stand(cluster) as stand:
        client = await stand.client("near", router_name("power_of_two_choices", 0))
        workers = await stand.workers(HELD, router_name("power_of_two_choices", 0))
        loaded = next(iter(workers))
        one, wave = workers[loaded].instance, next(waves)
        held = [
            asyncio.create_task(held_call(client, "call", {"hold": wave}, instance=one))
            for _ in range(50)
        ]
        await carries(client, 50)
        found = Counter([await client.call(HELD, {}) for _ in range(300)])
        assert found[loaded] == 0
        await client.call(HELD, {"release": wave}, instance=one)
        assert await asyncio.wait_for(asyncio.gather(*held), LONG) == [loaded] * 50


@pytest.mark.parametrize("road", ["near", "far"])
async def test_a_call_for_an_instance_that_is_gone_fails_and_no_other(
    cluster: str, road: str
) -> None:
    async with Stand(cluster) as stand:
        workers = await stand.workers(HELD, router_name("direct", 0))
        one = next(iter(workers.values()))
        for mode in MODES:
            client = await stand.client(road, router_name(mode, 0))
            for instance in (1, (1 << 64) - 1):
                with pytest.raises(WorkerUnavailable, match=f"{one.instance}"):
                    await client.call(HELD, {}, instance=instance, timeout=LONG)
            wrong: Any
            for wrong in (-1, 1 << 64, "1", True):
                with pytest.raises(CallHomeError, match="instance"):
                    await client.call(HELD, {}, instance=wrong)
            assert await client.call(HELD, {}, instance=one.instance) == one.address.pid


async def test_direct_wants_an_instance_and_says_so(cluster: str) -> None:
    async with Stand(cluster) as stand:
        client = await stand.client("near", router_name("direct", 0))
        with pytest.raises(CallHomeError, match="instance="):
            await client.call(HELD, {}, timeout=LONG)


async def test_the_workers_that_can_be_named_are_listed(cluster: str) -> None:
    async with Stand(cluster) as stand:
        known = await stand.workers(HELD, router_name("direct", 0))
        for road in ("near", "far"):
            client = await stand.client(road, router_name("direct", 0))
            await wait_until(partial(idle, client.ref(client.through)), what="all is told")
            found = await client.workers(HELD)
            assert {each.instance for each in found} == {each.instance for each in known.values()}
            assert sorted(each.device for each in found) == ["cpu", "cpu", "cuda", "cuda"]
            assert {(each.load, each.capacity, each.state) for each in found} == {(0, 1024, "free")}
            assert all(bool(each.where) == (road == "far") for each in found)
            assert await client.workers("t.nobody.there") == []


async def test_b117_nobody_all_busy_and_one_are_told_apart_in_every_mode(cluster: str) -> None:
    async with Stand(cluster) as stand:
        workers = await stand.workers(HELD, router_name("direct", 0))
        for mode in MODES:
            client = await stand.client("near", router_name(mode, 0))
            for road in ("near", "far"):
                through = await stand.client(road, client.through)
                with pytest.raises(NoWorkers, match=r"t\.nobody\.there"):
                    await asyncio.wait_for(through.call("t.nobody.there"), LONG)
            if mode != "direct":  # whoever names a worker goes there: only its engine may refuse
                await all_busy(client, workers)


async def carries(client: Through, streams: int) -> None:
    """Wait until the client's router has given so many to workers."""

    async def check() -> bool:
        return bool((await inspect(client.ref(client.through)))["in_flight"] == streams)

    await wait_until(check, what=f"the router carries {streams} streams")


async def all_busy(client: Through, workers: dict[int, Record]) -> None:
    """With a limit of one stream a worker, four calls are held, and the fifth is refused."""
    router, wave = client.ref(client.through), next(waves)
    await wait_until(partial(idle, router), what="the loads of the mode before are told")
    assert await router.ask(BusyAt(streams=1), timeout=LONG) == [None, None]
    held = [asyncio.create_task(client.call(HELD, {"hold": wave})) for _ in workers]
    await carries(client, len(workers))
    with pytest.raises(AllBusy, match="busy_streams=1"):
        await client.call(HELD, {})
    assert await router.ask(BusyAt(), timeout=LONG) == [1, None]
    assert await client.call(HELD, {}) in workers
    for each in workers.values():
        await client.call(HELD, {"release": wave}, instance=each.instance)
    assert set(await asyncio.wait_for(asyncio.gather(*held), LONG)) == set(workers)
