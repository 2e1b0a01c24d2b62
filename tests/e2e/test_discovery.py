"""Whole nodes that find each other in etcd: joins, deaths, stops and outages, under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from actors import Client, Cluster, NodeSpec, RouterSpec
from actors.cluster.folder import read_info
from actors.cluster.node import Ps
from actors.errors import NoWorkers
from tests.e2e.fleet import TTL, WHO, Load, caller, calling, known, settings, worker
from tests.etcd import Etcd
from tests.waiting import TICK, wait_until

PATIENCE = 200 * TICK


def pid_of(cluster: Cluster, name: str, node: int = 0) -> int:
    info = read_info(cluster.nodes[node].folder)
    return next((each.pid for each in info.children if each.name == name), 0) if info else 0


def instances(etcd: Etcd) -> set[int]:
    """What stands in etcd now."""
    return {int(key.rpartition("/")[2], 16) for key in etcd.get("v1/instances/")}


async def listed(etcd: Etcd) -> set[int]:
    return await asyncio.to_thread(instances, etcd)


async def until_listed(etcd: Etcd, count: int, patience: float = PATIENCE) -> set[int]:
    """Wait until so many stand there; who they are."""
    found: set[int] = set()

    async def so_many() -> bool:
        nonlocal found
        found = await listed(etcd)
        return len(found) == count

    await wait_until(so_many, patience, f"{count} records in etcd")
    return found


async def until_known(client: Client, wanted: set[int], router: str = "router") -> None:
    """Wait until a router knows exactly these, each once."""

    async def just_these() -> bool:
        return sorted(await known(client, router)) == sorted(wanted)

    await wait_until(just_these, PATIENCE, f"{router} knows {len(wanted)} instances")


async def test_b142_a_worker_gets_calls_when_it_is_ready_and_a_router_knows_all_when_it_is(
    etcd: Etcd,
) -> None:
    first, warming = worker(etcd, "b", replicas=2), worker(etcd, "c", args={"warm": 2.0})
    async with Cluster(first), Cluster(caller(etcd)) as near, near.client() as client:
        # What etcd knew, a router that has just started knows: before its first stream.
        assert set(await known(client)) == instances(etcd)
        assert len(await known(client)) == 2
        async with calling(client, 100.0) as load:
            async with Cluster(warming):
                await until_answered(load, "c")
                ready = next(each["ready"] for each in load.answers if each["name"] == "c")
                joined = [each["at"] for each in load.answers if each["name"] == "c"]
                assert 0.0 < ready <= min(joined)
                router = pid_of(near, "router")
                os.kill(router, signal.SIGKILL)
                await wait_until(lambda: pid_of(near, "router") not in (0, router), PATIENCE)
                await until_known(client, await listed(etcd))
                # Its streams ended with the router, and no others did.
                failed, load.failures[:] = list(load.failures), []
            assert all("router" in str(error) for error in failed), failed
            await until_listed(etcd, 2)
            await asyncio.sleep(2 * TICK)
        assert load.failures == []


async def until_answered(load: Load, name: str, patience: float = PATIENCE) -> None:
    """Wait until it answers (again)."""
    since = time.monotonic()
    await wait_until(lambda: name in load.names(since), patience, f"{name} answers")


async def test_b141_who_stood_still_is_back_at_once(etcd: Etcd) -> None:
    async with (
        Cluster(worker(etcd, "b", replicas=2)) as far,
        Cluster(caller(etcd)) as near,
        near.client() as client,
    ):
        both = await until_listed(etcd, 2)
        stopped = pid_of(far, f"{WHO}-1")
        async with calling(client, 50.0) as load:
            os.kill(stopped, signal.SIGSTOP)
            (other,) = await until_listed(etcd, 1)
            await until_known(client, {other})
            os.kill(stopped, signal.SIGCONT)
            assert await until_listed(etcd, 2) == both  # the same, not successors
            await until_known(client, both)
        # A call that it had taken went on with it; all others went elsewhere.
        assert load.failures == []
        ingress = pid_of(far, "ingress")
        os.kill(ingress, signal.SIGSTOP)
        await until_listed(etcd, 0)
        await until_known(client, set())
        os.kill(ingress, signal.SIGCONT)
        assert await until_listed(etcd, 2) == both
        await until_known(client, both)
        assert (await client.call(WHO, None))["name"] == "b"


async def test_b147_an_outage_of_etcd_disturbs_no_call_and_who_came_meanwhile_appears(
    etcd: Etcd,
) -> None:
    async with (
        Cluster(worker(etcd, "b", replicas=2)),
        Cluster(caller(etcd)) as near,
        near.client() as client,
        calling(client, 50.0) as load,
    ):
        before = await until_listed(etcd, 2)
        etcd.freeze()
        await asyncio.sleep(5.0)
        assert set(await known(client)) == before
        etcd.thaw()
        await until_known(client, before)
        etcd.kill()
        async with Cluster(worker(etcd, "c")):
            assert set(await known(client)) == before
            await asyncio.to_thread(etcd.start)
            back = time.monotonic()
            await until_answered(load, "c")
            after = await until_listed(etcd, 3)
            assert before < after
            await until_known(client, after)
            # Before that nobody believes a withdrawal, after such an outage.
            await asyncio.sleep(back + TTL + 1.0 - time.monotonic())
        await until_known(client, before)
    assert load.failures == []


async def test_b148_the_successor_of_a_killed_worker_stays_listed(etcd: Etcd) -> None:
    async with (
        Cluster(worker(etcd, "b")) as far,
        Cluster(caller(etcd, place="here")) as near,
        near.client() as client,
    ):
        (first,) = await until_listed(etcd, 1)
        killed = time.monotonic()
        for name in (WHO, "ingress"):  # so that nobody is left to withdraw it: its lease has to end
            os.kill(pid_of(far, name), signal.SIGKILL)

        async def succeeded() -> bool:
            found = await listed(etcd)
            return len(found) == 1 and found != {first}

        await wait_until(succeeded, PATIENCE)
        second = await listed(etcd)
        await asyncio.sleep(max(TTL / 2, killed + 2 * TTL - time.monotonic()))
        assert await listed(etcd) == second
        await until_known(client, second)
        assert (await client.call(WHO, None))["pid"] == pid_of(far, WHO)


async def test_b145_two_deployments_in_one_etcd_and_directory_do_not_meet(
    etcd: Etcd, tmp_path: Path
) -> None:
    shared = {"directory": str(tmp_path)}

    def deployment(name: str) -> list[NodeSpec]:
        mine = {"namespace": name, **shared}
        return [
            caller(etcd, "a", place="here", **mine),
            worker(etcd, "b", f"{name}.who.go", args={"name": name}, place="here", **mine),
        ]

    async def calls(client: Client, name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            found = [
                tasks.create_task(client.call(f"{name}.who.go", None, timeout=20.0))
                for _ in range(100)
            ]
        assert {each.result()["name"] for each in found} == {name}

    async with Cluster(deployment("red")) as red, red.client("a") as its:
        async with Cluster(deployment("blue")) as blue, blue.client("a") as others:
            await asyncio.gather(calls(its, "red"), calls(others, "blue"))
            assert len(await known(its)) == len(await known(others)) == 1
            for client, foreign in ((its, "blue.who.go"), (others, "red.who.go")):
                with pytest.raises(NoWorkers, match="is unknown here"):
                    await client.call(foreign, None)
        await until_listed(etcd, 1)
        await calls(its, "red")
    assert instances(etcd) == set()


async def test_b150_routers_that_start_among_joining_workers_know_all_of_them(etcd: Etcd) -> None:
    routers = [RouterSpec(name="here", place="here"), RouterSpec(name="process")]
    crowd = [worker(etcd, name, replicas=2) for name in ("b", "c")]
    async with asyncio.TaskGroup() as tasks:
        near = Cluster(caller(etcd, routers=routers))
        fleets = [Cluster(spec) for spec in crowd]
        started = [tasks.create_task(each.__aenter__()) for each in (near, *fleets)]
    assert all(task.done() for task in started)
    try:
        async with near.client() as client:
            everybody = await until_listed(etcd, 4)
            for router in routers:
                await until_known(client, everybody, router.name)
    finally:
        for each in (near, *fleets):
            await each.__aexit__(None, None, None)


async def test_a_node_starts_without_etcd_and_joins_when_it_comes(etcd: Etcd) -> None:
    etcd.kill()
    local = worker(etcd, "b", routers=caller(etcd).routers, settings=settings())
    told: list[str] = []
    async with (
        Cluster([local, caller(etcd)], progress=told.append) as cluster,
        cluster.client() as client,
    ):
        # Nobody has waited for what cannot be.
        (line,) = [each for each in told if "has not met its peer" in each]
        assert f"yet: {etcd.address} cannot be used" in line
        assert (await client.call(WHO, None))["name"] == "b"
        with pytest.raises(NoWorkers, match=etcd.address):
            await client.call("t.other.go", None)
        rows = {row["name"]: row for row in await client.ref("node").ask(Ps())}
        for name in ("router", "ingress"):
            assert "for " in rows[name]["discovery"][etcd.address]
        etcd.start()
        await until_listed(etcd, 1)
        async with cluster.client("a") as other:
            await until_known(other, instances(etcd))

        async def told_well() -> bool:
            rows = {row["name"]: row for row in await client.ref("node").ask(Ps())}
            return all(
                rows[name]["discovery"] == {etcd.address: ""} for name in ("router", "ingress")
            )

        await wait_until(told_well, PATIENCE)
    assert instances(etcd) == set()
