"""Conformance 36 and B144: engines that do not answer, and engines that are only busy, as routers
here and elsewhere, their callers and etcd see them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings, StreamWarning
from actors.cluster.node import Ps
from actors.errors import AllBusy, WorkerUnavailable
from tests.e2e.standing import ROADS, Standing, standing
from tests.e2e.unready_engines import fault
from tests.etcd import Etcd
from tests.waiting import LONG, TICK, wait_until

GO, BLOCK = "t.unready.go", "t.unready.block"
SLACK = LONG
WHY = "its canary raised RuntimeError: the weights are gone"
TTL = 4.0
QUICK: dict[str, Any] = {"canary_wait": 0.5, "canary_timeout": LONG}


@pytest.fixture(scope="module", params=ROADS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Standing, str]]:
    """Two workers with a canary, on the node of their callers or on another."""
    folder = str(tmp_path_factory.mktemp("faults"))
    engine = EngineSpec(
        GO, "tests.e2e.unready_engines:Answers", args={"folder": folder}, replicas=2, canary={}
    )
    spec = NodeSpec(
        engines=[engine],
        routers=[RouterSpec(policy="round_robin")],
        settings=Settings.load(**QUICK),
    )
    with standing(spec, request.param) as found:
        yield found, folder


async def workers(client: Client) -> dict[int, str]:
    return {each.instance: each.state for each in await client.workers(GO)}


async def until(client: Client, **wanted: int) -> None:
    """Wait until the router has so many workers in each state."""

    async def so() -> bool:
        states = list((await workers(client)).values())
        return {each: states.count(each) for each in states} == wanted

    await wait_until(so, SLACK, f"workers are {wanted}")


async def test_c36_ready_not_ready_ready_at_routers_here_and_elsewhere(
    cluster: tuple[Standing, str], tmp_path: Path
) -> None:
    at, folder = cluster
    async with at.client() as client:
        await until(client, free=2)
        pids = {each.instance: each.address.pid for each in client.records() if each.endpoint == GO}
        (one, first), (other, second) = pids.items()
        heard: list[StreamWarning] = []
        hold = {"hold": str(tmp_path / "go on")}
        async with client.stream(GO, hold, instance=one, on_warning=heard.append) as items:
            assert await anext(items) == [first, ""], "a real request bears no mark"
            fault(folder, first).touch()
            await until(client, free=1, unready=1)
            found = [await client.call(GO, {}, timeout=SLACK) for _ in range(6)]
            assert found == [[second, ""]] * 6
            with pytest.raises(WorkerUnavailable, match=rf"is unready since \d.* s: {WHY}"):
                await client.call(GO, {}, instance=one)

            def told() -> list[str]:
                return [each.text for each in heard if each.code == "unready"]

            await wait_until(told, SLACK, "its caller is warned")
            assert WHY in told()[0]
            assert f"(pid {first})" in told()[0]
            fault(folder, second).touch()
            await until(client, unready=2)
            with pytest.raises(AllBusy, match=rf"2 unready; .*{WHY}") as nobody:
                await client.call(GO, {})
            assert str(other) in str(nobody.value)
            await look_at_ps(client)
            for pid in (first, second):
                fault(folder, pid).unlink()
            await until(client, free=2)
            await wait_until(lambda: heard[-1].code == "thawed", SLACK, "and told that it is over")
            (tmp_path / "go on").touch()
            assert [each async for each in items] == ["went on"]
        assert len(told()) == 1
        assert (await client.call(GO, {}, instance=one, timeout=SLACK))[0] == first


async def look_at_ps(client: Client) -> None:
    """The node of the engines, which looks for itself, shows both, and asks them all the same."""
    rows: list[dict[str, Any]] = []

    async def both_unready() -> bool:
        rows[:] = await client.ref("node").ask(Ps(False), timeout=SLACK)
        return all(row["state"] == "unready" for row in rows if row["endpoint"] == GO)

    await wait_until(both_unready, SLACK, "ps shows both as unready")
    for row in rows:
        assert row["lag"] is not None
        if row["endpoint"] != GO:
            continue
        assert (row["state"], row["reason"]) == ("unready", WHY)
        assert row["since"] >= 0
        assert row["capacity"] == 64


def keys(etcd: Etcd, endpoint: str) -> int:
    return len(etcd.get(f"v1/instances/{endpoint.replace('.', '/')}/"))


async def test_b144_a_busy_worker_stays_listed_and_a_stopped_or_unready_one_does_not(
    etcd: Etcd, tmp_path: Path
) -> None:
    engines = [
        EngineSpec(BLOCK, "tests.e2e.unready_engines:blocks", replicas=2),
        EngineSpec(
            GO, "tests.e2e.unready_engines:Answers", args={"folder": str(tmp_path)}, canary={}
        ),
    ]
    settings = Settings.load(frozen_after=1.5, lease_ttl=TTL, drain_grace=0.0, **QUICK)
    spec = NodeSpec(engines=engines, etcd=etcd.address, listen="127.0.0.1:0", settings=settings)

    async def listed(endpoint: str, count: int) -> bool:
        return await asyncio.to_thread(keys, etcd, endpoint) == count

    async with Cluster(spec) as cluster, cluster.client() as client:
        await wait_until(lambda: listed(BLOCK, 2), SLACK, "both are listed")
        records = [each for each in client.records() if each.endpoint == BLOCK]
        calls = [
            asyncio.ensure_future(
                client.call(
                    BLOCK, {"how": how, "seconds": TTL + 1.2}, instance=each.instance, timeout=SLACK
                )
            )
            for how, each in zip(("sleep", "numpy"), records, strict=True)
        ]
        seen, stalled = set[int](), False
        while not all(each.done() for each in calls):
            seen.add(await asyncio.to_thread(keys, etcd, BLOCK))
            states = {each.state for each in await client.workers(BLOCK)}
            stalled = stalled or states == {"stalled"}
            await asyncio.sleep(TICK / 2)
        assert [await each for each in calls] == [each.address.pid for each in records]
        assert seen == {2}, "who is busy stays listed"
        assert stalled, "and gets no new streams meanwhile"

        pid = records[0].address.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await wait_until(lambda: listed(BLOCK, 1), SLACK, "who is stopped is not")
            (tmp_path / str(client.ref(GO).address.pid)).touch()
            await wait_until(lambda: listed(GO, 0), SLACK, "nor who is unready")
        finally:
            os.kill(pid, signal.SIGCONT)
        (tmp_path / str(client.ref(GO).address.pid)).unlink()
        await wait_until(lambda: listed(BLOCK, 2), SLACK, "it goes on")
        await wait_until(lambda: listed(GO, 1), SLACK, "it answers again")
        await until(client, free=1)
        assert (await client.call(GO, {}, timeout=SLACK))[0] == client.ref(GO).address.pid
