"""Clusters from a script: up, used, gone; every way to fail is a typed error and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import ActorSpec, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings, connect
from actors.cluster.folder import NodeInfo, folders, live_nodes
from actors.cluster.launcher import find_node
from actors.cluster.node import Ps
from actors.cluster.stopping import stop_node
from actors.errors import (
    ActorDead,
    CallHomeError,
    LocalProtocolError,
    NameTaken,
    SpawnError,
    SpecError,
)
from actors.kernel.peers import start_time
from tests.cluster.workers import Add, Total
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address

WORKERS = "tests.cluster.workers"
ROOT = str(Path(__file__).resolve().parent.parent.parent)
ECHO = EngineSpec(endpoint="test.echo.one", engine=f"{WORKERS}:Echo")


def run_root() -> str:
    return os.environ["CALLHOME_RUN"]


def everybody(info: NodeInfo) -> list[Address]:
    return [info.address, *info.children]


def gone(addresses: list[Address]) -> bool:
    return all(start_time(address.pid) != address.started for address in addresses)


async def fails(spec: NodeSpec) -> SpawnError:
    with pytest.raises(SpawnError) as caught:
        async with asyncio.timeout(LONG), Cluster(spec):
            pytest.fail("the cluster came up")
    assert folders(run_root()) == []
    return caught.value


async def test_up_used_and_gone() -> None:
    lines: list[str] = []
    async with Cluster(NodeSpec(engines=[ECHO]), progress=lines.append) as cluster:
        (info,) = cluster.nodes
        async with cluster.client() as client:
            assert await client.call("test.echo.one", {"a": 1}) == {"a": 1}
        assert [line for line in lines if line.startswith("engine test.echo.one is ready (pid ")]
        addresses = everybody(info)
    assert gone(addresses)
    assert folders(run_root()) == []


async def test_an_engine_whose_constructor_raises() -> None:
    bad = EngineSpec(endpoint="test.bad.one", engine=f"{WORKERS}:Refuses")
    error = await fails(NodeSpec(engines=[ECHO, bad]))
    assert "engine 'test.bad.one'" in str(error)
    assert "ValueError: this engine refuses" in str(error)
    assert error.details["stage"] == "constructor"
    assert "workers.py" in error.details["traceback"]


async def test_an_import_that_fails() -> None:
    error = await fails(NodeSpec(engines=[EngineSpec(endpoint="a.b.c", engine="no.such:Engine")]))
    assert error.details["stage"] == "import"
    assert "'a.b.c'" in str(error)
    assert "No module named 'no'" in str(error)


async def test_a_start_that_takes_too_long() -> None:
    stuck = EngineSpec(endpoint="test.stuck.one", engine=f"{WORKERS}:Stuck")
    spec = NodeSpec(engines=[stuck], settings=Settings.load(start_timeout=10 * TICK))
    error = await fails(spec)
    assert error.details["stage"] == "timeout"
    assert "start_timeout" in str(error)


async def test_a_name_that_is_taken() -> None:
    async with Cluster(NodeSpec(engines=[ECHO]), cluster="t2") as cluster:
        (info,) = cluster.nodes
        with pytest.raises(NameTaken, match=rf"pid {info.address.pid}\)"):
            async with Cluster(NodeSpec(engines=[ECHO]), cluster="t2"):
                pytest.fail("the second came up")
        async with cluster.client() as client:
            assert await client.call("test.echo.one", 1) == 1
        assert live_nodes(run_root()) == [info]


def test_clusters_without_a_name_get_their_own() -> None:
    assert Cluster(NodeSpec()).name != Cluster(NodeSpec()).name


def test_mistakes_are_told_before_anything_starts() -> None:
    with pytest.raises(SpecError, match="available"):
        Cluster(NodeSpec(), cores=[4000])
    with pytest.raises(SpecError, match="available"):
        Cluster(NodeSpec(), cores="0-4000")
    with pytest.raises(SpecError, match=r"cluster name: .*1 to 40"):
        Cluster(NodeSpec(), cluster="a/b")
    with pytest.raises(SpecError, match=r"cluster name: '' is not allowed"):
        Cluster(NodeSpec(), cluster="")
    with pytest.raises(SpecError, match="'a' stands twice"):
        Cluster([NodeSpec(), NodeSpec()])
    with pytest.raises(SpecError, match="at least one"):
        Cluster([])


async def test_outside_its_block_a_cluster_has_no_clients() -> None:
    cluster = Cluster(NodeSpec())
    with pytest.raises(LocalProtocolError, match="async with"):
        cluster.client()
    with pytest.raises(LocalProtocolError, match="async with"):
        cluster.ref("x")


async def test_cores_are_spread_and_held() -> None:
    core = min(os.sched_getaffinity(0))
    where = EngineSpec(endpoint="test.where.one", engine=f"{WORKERS}:Where")
    cluster = Cluster(NodeSpec(engines=[where]), cores=[core])
    async with cluster, cluster.client() as client:
        assert (await client.call("test.where.one", None))["cores"] == [core]


async def test_several_nodes_of_one_cluster() -> None:
    nodes = [NodeSpec(name="a", engines=[ECHO]), NodeSpec(name="b", engines=[ECHO])]
    async with Cluster(nodes) as cluster:
        assert [info.node for info in cluster.nodes] == ["a", "b"]
        for name in ("a", "b"):
            async with cluster.client(name) as client:
                assert await client.call("test.echo.one", name) == name
        with pytest.raises(SpecError, match="no node 'c'; it has: a, b"):
            cluster.client("c")


async def test_refs_reach_users_actors() -> None:
    counter = ActorSpec("counter", actor=f"{WORKERS}:Counter")
    async with Cluster(NodeSpec(actors=[counter])) as cluster:
        ref = cluster.ref("counter")
        await ref.tell(Add(1))
        assert await ref.ask(Add(2)) == 3
        with pytest.raises(ActorDead, match="'nobody'"):
            await cluster.ref("nobody").ask(Add(1))


async def test_actors_placed_here() -> None:
    spec = NodeSpec(
        routers=[RouterSpec(place="here")],
        engines=[ECHO],
        actors=[ActorSpec("counter", actor=f"{WORKERS}:Counter", place="here")],
    )
    async with Cluster(spec) as cluster, cluster.client() as client:
        assert await client.call("test.echo.one", "x") == "x"
        assert await cluster.ref("counter").ask(Add(4)) == 4
        total, pid = await client.ref("counter").ask(Total())
        assert (total, pid) == (4, os.getpid())
        placed = {record.address.name for record in client.records() if record.address.pid == pid}
        assert placed == {"router", "counter"}
        rows = await client.ref("node").ask(Ps())
        assert [row["name"] for row in rows] == ["test.echo.one"]


async def test_a_client_that_was_never_closed_does_not_keep_the_cluster() -> None:
    spec = NodeSpec(routers=[RouterSpec(place="here")], engines=[ECHO])
    async with Cluster(spec) as cluster:
        client = await cluster.client().__aenter__()
        assert await client.call("test.echo.one", 1) == 1


async def test_an_actor_placed_here_that_cannot_start() -> None:
    spec = NodeSpec(engines=[EngineSpec("a.b.c", f"{WORKERS}:Refuses", place="here")])
    error = await fails(spec)
    assert "'a.b.c' (in this process)" in str(error)
    assert "this engine refuses" in str(error)


async def test_a_start_here_that_takes_too_long() -> None:
    stuck = EngineSpec("test.stuck.one", f"{WORKERS}:Stuck", place="here")
    router = RouterSpec(place="here")  # or a busy machine may need that second for its process
    settings = Settings.load(start_timeout=10 * TICK)
    spec = NodeSpec(routers=[router], engines=[stuck], settings=settings)
    error = await fails(spec)
    assert error.details["stage"] == "timeout"
    assert "'test.stuck.one' (in this process)" in str(error)


async def test_the_body_s_own_error_comes_through_and_nothing_is_left() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Cluster(NodeSpec(engines=[ECHO])):
            raise ZeroDivisionError
    assert folders(run_root()) == []


async def test_a_cancelled_start_leaves_nothing() -> None:
    stuck = EngineSpec(endpoint="test.stuck.one", engine=f"{WORKERS}:Stuck")
    settings = Settings.load(start_timeout=10 * LONG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(8 * TICK), Cluster(NodeSpec(engines=[stuck], settings=settings)):
            pytest.fail("the cluster came up")
    assert folders(run_root()) == []


async def test_the_death_of_the_node_is_seen_and_swept() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        (info,) = cluster.nodes
        os.kill(info.address.pid, signal.SIGKILL)
        name, how = await cluster.wait_ended()
        assert (name, str(how)) == ("a", "killed by SIGKILL")
        await wait_until(lambda: gone(everybody(info)))

        async def refused() -> bool:
            try:
                await client.call("test.echo.one", 1, timeout=10 * TICK)
            except CallHomeError:
                return True
            return False

        await wait_until(refused)
    assert folders(run_root()) == []


SCRIPT = """
import asyncio, json, sys
from actors import Cluster, EngineSpec, NodeSpec

async def main():
    echo = EngineSpec(endpoint="test.echo.one", engine="tests.cluster.workers:Echo", replicas=2)
    async with Cluster(NodeSpec(engines=[echo]), cluster="other") as cluster:
        (info,) = cluster.nodes
        print(json.dumps([info.address, *info.children]), flush=True)
        name, how = await cluster.wait_ended()
        print(name, how, flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@asynccontextmanager
async def launcher() -> AsyncIterator[tuple[asyncio.subprocess.Process, list[Address]]]:
    """A launcher script as a process of its own, with a cluster that is up."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        addresses: list[Any] = json.loads(line)
        yield process, [Address(*fields) for fields in addresses]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_killed_launcher_takes_its_cluster_with_it() -> None:
    async with launcher() as (process, addresses):
        assert len(addresses) == 4
        process.kill()
        await wait_until(lambda: gone(addresses))
        await wait_until(lambda: folders(run_root()) == [])


async def test_an_interrupt_ends_a_launcher_in_order() -> None:
    async with launcher() as (process, addresses):
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), LONG)
        assert out == b"interrupted\n"
        assert process.returncode == 0
        assert gone(addresses)
        assert folders(run_root()) == []


async def test_others_find_call_and_stop_a_node() -> None:
    async with launcher() as (process, addresses):
        info = find_node()
        assert (info.cluster, info.node, info.address) == ("other", "a", addresses[0])
        assert find_node("other", "a") == info
        async with connect() as client:
            assert await client.call("test.echo.one", 5) == 5
        with pytest.raises(ActorDead, match="other/a"):
            find_node("another")
        assert await stop_node(info, LONG) == (True, [])
        out, _ = await asyncio.wait_for(process.communicate(), LONG)
        assert out == b"a exit code 0\n"
        assert gone(addresses)
    with pytest.raises(ActorDead, match="callhome up"):
        connect()


async def test_a_node_that_somebody_has_stopped_ends_in_order() -> None:
    async with launcher() as (process, addresses):
        info = find_node()
        os.kill(info.address.pid, signal.SIGSTOP)
        assert (await stop_node(info, LONG)).in_order
        await asyncio.wait_for(process.communicate(), LONG)
        await wait_until(lambda: gone(addresses))
    assert folders(run_root()) == []


async def test_several_running_nodes_must_be_named() -> None:
    async with launcher(), Cluster(NodeSpec(), cluster="mine"):
        with pytest.raises(SpecError, match=r"mine/a, other/a"):
            find_node()
        assert find_node("mine").cluster == "mine"


async def test_what_a_dead_node_left_is_swept_at_the_next_start() -> None:
    async with launcher() as (process, addresses):
        os.kill(process.pid, signal.SIGSTOP)  # it must not clean up
        os.kill(addresses[0].pid, signal.SIGKILL)
        await wait_until(lambda: gone(addresses))
        left = folders(run_root())
        assert len(left) == 1
        lines: list[str] = []
        async with Cluster(NodeSpec(), cluster="other", progress=lines.append):
            assert any("left by a dead node" in line for line in lines)
            process.kill()
            await process.wait()
            assert len(live_nodes(run_root())) == 1
    assert folders(run_root()) == []


BARE = """
import asyncio, os, sys
from actors import Cluster, EngineSpec, NodeSpec

async def main() -> None:
    spec = NodeSpec(engines=[EngineSpec("test.echo.one", "tests.cluster.workers:Echo")])
    async with Cluster(spec, progress=True) as cluster, cluster.client() as client:
        assert await client.call("test.echo.one", 7, timeout=60.0) == 7
        links = [os.readlink(f"/proc/{child.pid}/fd/{fd}")
                 for child in cluster.nodes[0].children for fd in CLOSED]
    assert set(links) == {"/dev/null"}, links

CLOSED = [int(number) for number in sys.argv[1]]
asyncio.run(main())
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "02", "012"])
def test_a_launcher_without_its_first_descriptors(closed: str) -> None:
    shut = " ".join(f"{fd}>&-" for fd in closed)
    command = f'exec {sys.executable} -c "$CODE" {closed} {shut}'
    environ = {**os.environ, "CODE": BARE, "PYTHONPATH": ROOT}
    found = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
