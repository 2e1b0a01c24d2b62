"""Rolling restarts under load: no request fails, in a node and from others; see ``rolling``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.node import Ps
from tests.e2e.rolling import COUNTS, ECHO, Load, roll
from tests.ports import free_address
from tests.waiting import TICK, wait_until

PATIENT = Settings.load(start_timeout=60.0)
ENGINES = [
    EngineSpec(ECHO, "tests.e2e.bus_engines:echo", replicas=2, capacity=64),
    EngineSpec(COUNTS, "tests.e2e.process_engines:Counts", capacity=64),
]


async def under_load(
    cluster: Cluster, client: Client, *what: tuple[str | None, Sequence[str]]
) -> list[dict[str, Any]]:
    """Restart these actors of these nodes while calls and streams go on, none of which may fail:
    the steps.
    """
    load = Load(client, 50.0, 3)
    running = asyncio.create_task(load.run())
    steps: list[dict[str, Any]] = []
    try:
        await wait_until(lambda: load.seen.times)
        for node, actors in what:
            steps += [step async for step in roll(cluster, [node], actors)]
        await asyncio.sleep(2 * TICK)
    finally:
        load.stop()
        await running
    assert not load.seen.failures, load.seen.told()
    done = [step for step in steps if step["step"] == "done"]
    assert len(done) == len(what)
    assert all(step["ok"] and not step["left"] for step in done), done
    return steps


async def test_b142_a_node_is_started_anew_under_load() -> None:
    """Engines that are not alone drain first, one that is has a successor; routers likewise."""
    routers = [RouterSpec(name="router-0"), RouterSpec(name="router-1")]
    spec = NodeSpec(engines=ENGINES, routers=routers, settings=PATIENT)
    async with Cluster(spec) as cluster, cluster.client() as client:
        before = {each.address.name: each.instance for each in client.records()}
        steps = await under_load(cluster, client, (None, []))
        served = [step["actor"] for step in steps if step["step"] == "serves"]
        assert served == [f"{ECHO}-0", f"{ECHO}-1", COUNTS, "router-0", "router-1"]
        assert [step["actor"] for step in steps if step["step"] == "begins"] == [COUNTS]

        def renewed() -> bool:
            after = {each.address.name: each.instance for each in client.records()}
            stay = [name for name in after if after[name] == before.get(name)]
            return after.keys() == before.keys() and stay == ["node"]

        async def well() -> bool:
            rows = await cluster.ref("node").ask(Ps())
            return [(row["state"], row["restarts"]) for row in rows] == [("up", 0)] * 5

        await wait_until(renewed, what="all but the node are new")
        await wait_until(well, what="all are up, and none was started again by its policy")


async def test_the_only_doors_are_replaced_under_load() -> None:
    """The only ingress of the only node that serves, and the only router of its callers."""
    door = free_address()
    near = NodeSpec(name="a", peers=[door], settings=PATIENT)
    far = NodeSpec(name="b", engines=ENGINES, listen=door, settings=PATIENT)
    async with Cluster([near, far]) as cluster, cluster.client() as client:
        steps = await under_load(cluster, client, ("b", ["ingress"]), ("a", ["router"]))
        assert [step["actor"] for step in steps if step["step"] == "serves"] == [
            "ingress",
            "router",
        ]


async def test_two_nodes_are_started_anew_one_after_the_other_under_load() -> None:
    doors = [free_address(), free_address()]
    served = [
        NodeSpec(name=name, engines=ENGINES, listen=door, settings=PATIENT)
        for name, door in zip("ab", doors, strict=True)
    ]
    near = NodeSpec(name="c", peers=doors, settings=PATIENT)
    async with Cluster([near, *served]) as cluster, cluster.client() as client:
        work: list[tuple[str | None, Sequence[str]]] = [
            ("a", [f"{ECHO}-0", "ingress"]),
            ("b", [COUNTS, "ingress"]),
        ]
        steps = await under_load(cluster, client, *work)
        served_at = [(step["node"], step["actor"]) for step in steps if step["step"] == "serves"]
        assert served_at == [(node, name) for node, names in work for name in names]
