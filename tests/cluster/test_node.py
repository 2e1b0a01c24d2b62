"""The node's process: what it publishes, what it tells, what it answers."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

from actors import ActorSpec, Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.folder import NodeInfo, read_info
from actors.cluster.node import Ps
from actors.discovery.base import Change
from actors.kernel.peers import start_time
from actors.messages import Added, Down, Removed, Snapshot
from tests.cluster.workers import Add, Die, Total
from tests.e2e.watching import program
from tests.waiting import LONG, wait_until
from transport.bus.address import Address

WORKERS = "tests.cluster.workers"
ECHO = EngineSpec(endpoint="test.echo.one", engine=f"{WORKERS}:Echo", capacity=3, queue=5)


def info_of(cluster: Cluster) -> NodeInfo:
    (info,) = cluster.nodes
    return info


async def test_ps_tells_what_runs() -> None:
    core = min(os.sched_getaffinity(0))
    endless = EngineSpec(endpoint="test.endless.one", engine=f"{WORKERS}:Endless", cpus=[core])
    counter = ActorSpec("counter", actor=f"{WORKERS}:Counter")
    spec = NodeSpec(engines=[ECHO, endless], actors=[counter])
    async with Cluster(spec) as cluster, cluster.client() as client:
        assert await client.call("test.echo.one", [1]) == [1]
        async with client.stream("test.endless.one", None) as stream:
            pid = await anext(stream)
            rows = {row["name"]: row for row in await client.ref("node").ask(Ps())}
        assert list(rows) == ["router", "test.echo.one", "test.endless.one", "counter"]
        row = rows["test.endless.one"]
        assert row["pid"] == pid
        assert row["cores"] == [core]
        assert (row["in_flight"], row["queued"], row["capacity"]) == (1, 0, 64)
        assert (row["state"], row["restarts"], row["role"]) == ("up", 0, "engine")
        assert 5_000_000 < row["rss"] < 500_000_000
        assert "counters" not in row
        assert rows["test.echo.one"]["capacity"] == 3
        assert rows["counter"]["capacity"] is None
        full = {row["name"]: row for row in await client.ref("node").ask(Ps(counters=True))}
        assert full["test.echo.one"]["counters"]["items"] >= 1


async def test_an_odd_answer_does_not_hide_the_others() -> None:
    odd = ActorSpec("odd", actor=f"{WORKERS}:Odd")
    odder = ActorSpec("odder", actor=f"{WORKERS}:Odder")
    spec = NodeSpec(engines=[ECHO], actors=[odd, odder])
    async with Cluster(spec) as cluster, cluster.client() as client:
        rows = {row["name"]: row for row in await client.ref("node").ask(Ps(counters=True))}
        assert rows["test.echo.one"]["capacity"] == 3
        for name in ("odd", "odder"):
            assert (rows[name]["state"], rows[name]["in_flight"]) == ("up", None)
        assert rows["odder"]["counters"] is None
        assert rows["odd"]["counters"]["requests"] >= 0


async def test_records_and_files() -> None:
    counter = ActorSpec("counter", actor=f"{WORKERS}:Counter")
    async with Cluster(NodeSpec(engines=[ECHO], actors=[counter]), cluster="t1") as cluster:
        info = info_of(cluster)
        assert (info.cluster, info.node) == ("t1", "a")
        assert {address.name for address in info.children} == {"router", "test.echo.one", "counter"}
        assert stat.S_IMODE(os.stat(info.folder).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(os.path.join(info.folder, "node.json")).st_mode) == 0o600
        async with cluster.client() as client:
            records = {record.address.name: record for record in client.records()}
        assert {name: record.kind for name, record in records.items()} == {
            "node": "node",
            "router": "router",
            "test.echo.one": "engine",
            "counter": "actor",
        }
        echo = records["test.echo.one"]
        assert (echo.endpoint, echo.capacity, echo.many) == ("test.echo.one", 3, False)
        assert echo.instance == echo.address.incarnation
    assert read_info(info.folder) is None
    assert all(start_time(address.pid) == 0 for address in (info.address, *info.children))


async def test_a_killed_engine_is_told_withdrawn_and_back() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        (old,) = [record for record in client.records() if record.kind == "engine"]
        downs: list[Down] = []
        changes: list[Change] = []
        note = client.runtime.peers.reason

        def hear(sender: int, message: Down) -> None:
            downs.append(message)
            note(message.address, message.reason)

        client.runtime.on(Down, hear)
        await client._discovery.subscribe(changes.append)
        os.kill(old.address.pid, signal.SIGKILL)
        await wait_until(lambda: any(isinstance(change, Added) for change in changes))
        assert downs == [Down(old.address, "killed by SIGKILL")]
        snapshot, removed, added = changes
        assert isinstance(snapshot, Snapshot)
        assert removed == Removed(old, "killed by SIGKILL")
        assert isinstance(added, Added)
        assert added.record.instance != old.instance
        assert await client.call("test.echo.one", 1, timeout=LONG) == 1
        (_, row) = await client.ref("node").ask(Ps())
        assert (row["restarts"], row["state"]) == (1, "up")
        await wait_until(lambda: added.record.address in info_of(cluster).children)


async def test_an_actor_in_a_crash_loop_stays_down_alone() -> None:
    settings = Settings.load(max_restarts=1, restart_period=60.0)
    counter = ActorSpec("counter", actor=f"{WORKERS}:Counter")
    spec = NodeSpec(engines=[ECHO], actors=[counter], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        ref = client.ref("counter")
        assert await ref.ask(Add(5)) == 5
        first = ref.address
        await ref.tell(Die(3))
        await wait_until(lambda: any(a.name == "counter" and a != first for a in alive(client)))
        assert (await ref.ask(Total()))[0] == 0  # a new life begins at nothing
        await ref.tell(Die(4))

        async def failed() -> bool:
            row = (await client.ref("node").ask(Ps()))[-1]
            return bool(row["state"] == "failed" and row["reason"] == "exit code 4")

        await wait_until(failed)
        assert await client.call("test.echo.one", 1) == 1


def alive(client: Client) -> list[Address]:
    return [record.address for record in client.records()]


async def test_actors_may_call_endpoints_when_they_start() -> None:
    caller = ActorSpec("caller", actor=f"{WORKERS}:CallsAtStart")
    async with Cluster(NodeSpec(engines=[ECHO], actors=[caller])) as cluster:
        assert len(cluster.nodes) == 1


async def test_actors_stop_in_order_and_on_stop_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    counter = ActorSpec("counter", actor=f"{WORKERS}:Counter", args={"log": str(log)})
    async with Cluster(NodeSpec(engines=[ECHO], actors=[counter])):
        assert log.read_text() == "start\n"
    assert log.read_text() == "start\nstop\n"


async def test_the_node_does_not_hear_an_interrupt() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        info = info_of(cluster)
        for address in (info.address, *info.children):
            os.kill(address.pid, signal.SIGINT)
        assert await client.call("test.echo.one", 1) == 1
        assert read_info(info.folder) == info


async def test_sockets_of_the_killed_go_while_the_node_lives() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        folder = info_of(cluster).folder
        # Of node, router, engine, launcher and this client.
        await wait_until(lambda: len(sockets(folder)) == 2 * 5)
        for _ in range(2):
            old = client.ref("test.echo.one").address
            os.kill(old.pid, signal.SIGKILL)

            def again(old: Address = old) -> bool:
                # This client's own view: the node knows of a restart a moment before it.
                names = [a for a in alive(client) if a.name == old.name and a != old]
                return bool(names) and client.ref(old.name).address == names[0]

            await wait_until(again)
            await wait_until(lambda: len(sockets(folder)) == 2 * 5)
            left = sockets(folder)
            assert not any(f".{old.incarnation:x}." in name for name in left)
        with program("tests.e2e.caller", folder, "test.echo.one", "1", '{"a": 1}') as caller:
            assert caller.stdout is not None
            assert await asyncio.to_thread(caller.stdout.readline) == "open\n"
            await wait_until(lambda: len(sockets(folder)) == 2 * 6)
            caller.kill()
            await wait_until(lambda: sockets(folder) == left)


async def test_sockets_of_a_restart_that_failed_go_too(tmp_path: Path) -> None:
    once = ActorSpec("once", actor=f"{WORKERS}:Once", args={"mark": str(tmp_path / "mark")})
    settings = Settings.load(max_restarts=1, restart_period=60.0)
    async with (
        Cluster(NodeSpec(actors=[once], settings=settings)) as cluster,
        cluster.client() as client,
    ):
        os.kill(client.ref("once").address.pid, signal.SIGKILL)

        async def failed() -> bool:
            return bool((await client.ref("node").ask(Ps()))[-1]["state"] == "failed")

        await wait_until(failed)
        assert [name for name in sockets(info_of(cluster).folder) if name.startswith("once")] == []


def sockets(folder: str) -> set[str]:
    """Names of the socket files in a run folder."""
    return {name for name in os.listdir(folder) if name.endswith((".d", ".c"))}


async def test_a_router_that_is_asked_to_end_comes_back() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        first = client.ref("router").address
        os.kill(first.pid, signal.SIGTERM)
        await wait_until(lambda: any(a.name == "router" and a != first for a in alive(client)))
        await wait_until(lambda: first not in alive(client))
        assert await client.call("test.echo.one", 1, timeout=LONG) == 1
        row = (await client.ref("node").ask(Ps()))[0]
        assert (row["name"], row["state"], row["restarts"]) == ("router", "up", 1)


async def test_a_router_s_restart_is_its_spec_s() -> None:
    spec = NodeSpec(routers=[RouterSpec(restart="on-failure")], engines=[ECHO])
    async with Cluster(spec) as cluster, cluster.client() as client:
        os.kill(client.ref("router").address.pid, signal.SIGTERM)

        async def ended() -> bool:
            return bool((await client.ref("node").ask(Ps()))[0]["state"] == "ended")

        await wait_until(ended)
