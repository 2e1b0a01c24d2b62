"""A process that stands still costs nobody else anything, and goes on where it stood."""

from __future__ import annotations

import asyncio
import json
import signal

from actors import Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from tests.e2e.watching import inspect, kill, program, wait_idle
from tests.waiting import LONG, wait_until

BRISK = "t.brisk.go"


def node(**settings: float) -> NodeSpec:
    return NodeSpec(
        name="a",
        routers=[RouterSpec()],
        engines=[EngineSpec(BRISK, "tests.e2e.cancel_engines:Brisk")],
        settings=Settings(**settings),  # type: ignore[arg-type]
    )


async def test_a_client_that_stands_still_holds_up_its_own_streams_only() -> None:
    spec = node(outbox_bytes=1 << 20)
    async with Cluster(spec) as cluster, cluster.client() as client:
        pid = client.ref(BRISK).address.pid
        request = json.dumps({"items": 2000, "size": 2000})
        with program(
            "tests.e2e.caller", cluster.nodes[0].folder, BRISK, "20", request, "all"
        ) as other:
            assert other.stdout is not None
            assert await asyncio.to_thread(other.stdout.readline) == "open\n"
            kill(other.pid, signal.SIGSTOP)

            async def stuck() -> bool:
                # Nothing moves but this question: the engine has filled what it may fill.
                seen = [(await inspect(client, BRISK))["counters"]["items"] for _ in range(5)]
                return len(set(seen)) == 1

            await wait_until(stuck, LONG)
            for _ in range(20):
                async with client.stream(BRISK, {"items": 50, "size": 100}) as items:
                    assert [number async for number, _ in items] == list(range(50))

            async def others_only() -> bool:
                return bool((await inspect(client, BRISK))["in_flight"] == 20)

            await wait_until(others_only, what="only its streams are left")
            kill(other.pid, signal.SIGCONT)
            assert await asyncio.to_thread(other.stdout.readline) == "all 20 x 2000\n"
        await wait_idle(client, BRISK)
        assert client.ref(BRISK).address.pid == pid


async def test_a_client_that_stands_still_and_dies_leaves_nothing() -> None:
    spec = node(outbox_bytes=1 << 20)
    async with Cluster(spec) as cluster, cluster.client() as client:
        request = json.dumps({"items": 2000, "size": 2000})
        with program("tests.e2e.caller", cluster.nodes[0].folder, BRISK, "20", request) as other:
            assert other.stdout is not None
            assert await asyncio.to_thread(other.stdout.readline) == "open\n"
            kill(other.pid, signal.SIGSTOP)
            assert (await inspect(client, BRISK))["in_flight"] == 20
            kill(other.pid)
            await wait_idle(client, BRISK)
        async with client.stream(BRISK, {"items": 50, "size": 100}) as items:
            assert [number async for number, _ in items] == list(range(50))


async def test_a_router_that_stands_still_delays_calls_and_loses_none() -> None:
    patient = node(connect_timeout=LONG, frozen_after=LONG)  # it stands as long as the test does
    async with Cluster(patient) as cluster, cluster.client() as client:
        router = client.ref("router").address
        async with client.stream(BRISK, {"items": 500}) as items:
            assert await anext(items) == 0
            kill(router.pid, signal.SIGSTOP)
            calls = [asyncio.create_task(client.call(BRISK, {"items": 1})) for _ in range(500)]
            # An accepted stream needs no router.
            assert [number async for number in items] == list(range(1, 500))
            kill(router.pid, signal.SIGCONT)
            assert await asyncio.gather(*calls) == [0] * 500
        await wait_idle(client, BRISK)
