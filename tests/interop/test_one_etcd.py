"""Nodes of ours beside workers and clients of Dynamo's wheel in one etcd.

What a stream does is tried in ``test_their_worker`` and ``test_their_client``, half of it over
etcd; here is who finds whom, and what deaths, drains and an etcd that is away do to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, IngressSpec, NodeSpec, Settings
from actors.errors import CallHomeError, ConnectionLost
from tests.etcd import Etcd
from tests.interop.engines import HERE
from tests.interop.wheel import Meeting, Program, needs_wheel, program
from tests.waiting import LONG, TICK, wait_until

pytestmark = [needs_wheel, pytest.mark.timeout(300)]

#: Their worker serves it under this name, and so do ours here.
GENERATE = "interop.theirs.generate"
PREFIX = "v1/instances/interop/theirs/generate/"
WHO = {"do": "pid"}
#: How their client ends by itself what it is about to send, or has sent, when the record goes.
GIVEN_UP = {
    "Exception: Unavailable: Worker disconnected before response stream was established",
    "Exception: Unavailable: Worker removed before request could be sent (tombstoned instance)",
}


def serving(place: Meeting, name: str = "a", ttl: float = 10.0, **more: Any) -> NodeSpec:
    """A node with an engine and a door, whose own lease has ``ttl`` seconds."""
    settings = Settings.load(lease_ttl=ttl, drain_limit=LONG)
    engines = [EngineSpec(endpoint=GENERATE, engine=HERE + "Answers", **more)]
    return NodeSpec(
        name=name, engines=engines, listen="127.0.0.1:0", settings=settings, **place.spec()
    )


def asking(place: Meeting) -> NodeSpec:
    """A node that only reads."""
    return NodeSpec(**place.spec())


@dataclass
class Calls:
    """What came of our own client's calls."""

    values: Counter[Any] = field(default_factory=Counter)
    failures: list[CallHomeError] = field(default_factory=list)


@contextlib.asynccontextmanager
async def calling(client: Client, callers: int = 4) -> AsyncIterator[Calls]:
    """Call for pids all the time, one call behind the other each."""
    calls = Calls()
    over = asyncio.Event()

    async def caller() -> None:
        while not over.is_set():
            try:
                calls.values[await client.call(GENERATE, WHO, timeout=LONG)] += 1
            except CallHomeError as error:
                calls.failures.append(error)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
        try:
            yield calls
        finally:
            over.set()


@contextlib.asynccontextmanager
async def loading(client: Program, callers: int = 4) -> AsyncIterator[dict[str, Any]]:
    """The same from their client; what came of it stands in the dict behind the block."""
    number = client.order(load=callers, request=WHO)
    found: dict[str, Any] = {}
    try:
        yield found
    finally:
        client.order(halt=number)
        found.update(await client.answer(number))


def pids_of(found: dict[str, Any]) -> dict[int, int]:
    """How many of their client's calls each process has answered."""
    return {json.loads(text)[0]: count for text, count in found["values"].items()}


async def known_to(client: Program) -> list[int]:
    """The instances that their client knows."""
    found: list[int] = (await client.answer(client.order(instances=True)))["instances"]
    return found


async def wait_known(client: Program, count: int, within: float = LONG) -> None:
    """Wait until their client knows so many workers."""

    async def so() -> bool:
        return len(await known_to(client)) == count

    await wait_until(so, within, f"their client knows {count} workers")


async def wait_workers(client: Client, count: int, within: float = LONG) -> None:
    """Wait until our router knows so many workers."""

    async def so() -> bool:
        return len(await client.workers(GENERATE)) == count

    await wait_until(so, within, f"our router knows {count} workers")


async def test_both_sides_use_both_workers_and_each_is_told_by_its_codec(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of theirs, which takes JSON, and one of ours at one endpoint, called from both sides.
    Our node finds etcd by Dynamo's environment alone.
    """
    place = Meeting(etcd=etcd.address)
    for name, value in place.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
    engines = [EngineSpec(endpoint=GENERATE, engine=HERE + "Answers")]
    spec = NodeSpec(engines=engines, ingress=IngressSpec())
    assert spec.etcd == etcd.address
    with program("worker", place, "json") as worker:
        async with Cluster(spec) as cluster, cluster.client() as own:
            await wait_workers(own, 2)
            (engine,) = [each.pid for each in cluster.nodes[0].children if "generate" in each.name]
            with program("client", place, "msgpack", GENERATE) as client:
                await wait_known(client, 2)
                async with loading(client) as theirs, calling(own) as ours:
                    await wait_until(lambda: sum(ours.values.values()) >= 100, LONG)
            assert (theirs["failed"], ours.failures) == (0, [])
            pids = {worker.process.pid, engine}
            assert set(pids_of(theirs)) == set(ours.values) == pids
            records = {key: json.loads(kept.value) for key, kept in etcd.get(PREFIX).items()}
            codecs = [each["request_plane_codec"] for each in records.values()]
            assert sorted(codecs) == ["json", "msgpack"]
            for key, record in records.items():
                assert key == f"{PREFIX}{record['instance_id']:x}"
        # Our record goes with our node, theirs stays.
        assert [
            json.loads(kept.value)["request_plane_codec"] for kept in etcd.get(PREFIX).values()
        ] == ["json"]


async def test_their_worker_that_is_killed_is_not_chosen_behind_its_lease(etcd: Etcd) -> None:
    place = Meeting(etcd=etcd.address, ttl=6)
    with program("worker", place) as one, program("worker", place) as other:
        async with Cluster(asking(place)) as cluster, cluster.client() as own:
            await wait_workers(own, 2)
            async with calling(own) as calls:
                await wait_until(lambda: len(calls.values) == 2, what="both are called")
                os.kill(one.process.pid, signal.SIGKILL)
                await wait_workers(own, 1)
                failed, gone = len(calls.failures), calls.values[one.process.pid]
                served = calls.values[other.process.pid]
                await wait_until(lambda: calls.values[other.process.pid] > served + 100)
            # Before: what it had, and what was sent to it while it was believed to live.
            assert all(isinstance(each, ConnectionLost) for each in calls.failures[:failed])
            assert calls.failures[failed:] == []
            assert calls.values[one.process.pid] == gone
            assert len(etcd.get(PREFIX)) == 1


async def test_our_worker_that_is_killed_is_not_chosen_by_their_client(etcd: Etcd) -> None:
    place = Meeting(etcd=etcd.address)
    async with Cluster(serving(place, replicas=2, restart="never")) as cluster:
        pids = [each.pid for each in cluster.nodes[0].children if "generate" in each.name]
        with program("client", place, "msgpack", GENERATE) as client:
            await wait_known(client, 2)
            async with loading(client) as before:
                os.kill(pids[0], signal.SIGKILL)
                # The node sees it at once; no lease has to end.
                await wait_known(client, 1)
            assert before["failed"] <= 8, before["failures"]
            async with loading(client) as after:
                await asyncio.sleep(5 * TICK)
            assert after["failed"] == 0
            assert list(pids_of(after)) == [pids[1]]


async def test_c35_our_node_that_is_told_to_end_refuses_nothing_to_their_client(etcd: Etcd) -> None:
    """SIGTERM: the record goes first, requests of who has not heard it yet are served for
    ``drain_grace``, and streams under way end in their own time.
    """
    callers = 4
    place = Meeting(etcd=etcd.address)
    async with Cluster([serving(place, "a"), serving(place, "b")]) as cluster:
        node = cluster.nodes[0]
        engine = next(each.pid for each in node.children if "generate" in each.name)
        with program("client", place, "msgpack", GENERATE) as client:
            await wait_known(client, 2)
            slow = {"do": "slow", "n": 80}
            async with loading(client, callers) as found:
                streams = [client.order(request=slow, tell=3) for _ in range(10)]
                for number in streams:
                    await client.hear(event="reached", order=number)
                os.kill(node.address.pid, signal.SIGTERM)
                await wait_known(client, 1)
                for number in streams:
                    done = await client.answer(number)
                    assert done["error"] == ""
                    assert len(done["items"]) == 80
                await wait_until(lambda: not os.path.exists(f"/proc/{engine}"), LONG)
            # When the record goes, their client gives up on what it would send there, or has sent
            # and has no answer to yet, whoever's worker it was. Nothing else fails.
            assert found["failed"] <= callers
            assert set(found["failures"]) <= GIVEN_UP
            assert len(pids_of(found)) == 2
            async with loading(client) as after:
                await asyncio.sleep(5 * TICK)
            assert after["failed"] == 0
            assert engine not in pids_of(after)


async def test_an_etcd_that_is_away_for_a_moment_fails_nobody(etcd: Etcd) -> None:
    """Killed and back within the lease of theirs, who give up when theirs ends. A node of ours that
    starts meanwhile is found by both sides afterwards.
    """
    place = Meeting(etcd=etcd.address, ttl=20)
    with program("worker", place) as worker:
        async with Cluster(serving(place)) as cluster, cluster.client() as own:
            await wait_workers(own, 2)
            with program("client", place, "msgpack", GENERATE) as client:
                await wait_known(client, 2)
                etcd.kill()
                async with loading(client) as theirs, calling(own) as ours:
                    async with Cluster(serving(place, "b")):
                        etcd.start()
                        await wait_known(client, 3)
                        await wait_workers(own, 3)
                        await wait_until(lambda: len(ours.values) == 3)
                        async with loading(client) as later:
                            await asyncio.sleep(5 * TICK)
                    # As above: only the end of that node may cost their client what it has begun.
                    await wait_known(client, 2)
                assert ours.failures == []
                assert theirs["failed"] <= 4
                assert set(theirs["failures"]) <= GIVEN_UP
                assert (later["failed"], len(pids_of(later))) == (0, 3)
                assert worker.process.poll() is None


def low_port() -> str:
    """A free port that the wheel takes, which reads this one as 16 bits with a sign."""
    for port in range(20_000 + os.getpid() % 1000, 1 << 15):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("0.0.0.0", port))
            return str(port)
    raise AssertionError("no port below 32768 is free")


async def test_a_worker_of_theirs_with_a_canary(etcd: Etcd) -> None:
    """Its canaries are its own affair: it stays in etcd while they fail, and so in use."""
    place = Meeting(etcd=etcd.address)
    health = {
        "DYN_HEALTH_CHECK_ENABLED": "true",
        "DYN_CANARY_WAIT_TIME": "1",
        "DYN_SYSTEM_PORT": low_port(),  # without one it sends none
    }
    with program("worker", place, "msgpack", "canary", **health) as worker:
        async with Cluster(asking(place)) as cluster, cluster.client() as own:
            await wait_workers(own, 1)
            await worker.hear(event="canary")
            assert await own.call(GENERATE, WHO) == worker.process.pid
            worker.order(unwell=True)
            await wait_until(lambda: any("unwell" in line for line in worker.noise), LONG)
            assert len(etcd.get(PREFIX)) == 1
            assert await own.call(GENERATE, WHO) == worker.process.pid
