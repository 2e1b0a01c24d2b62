"""Nodes that others reach: where they listen, how they find each other, what a wrong door says."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, IngressSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.folder import read_info
from actors.cluster.node import Ps
from actors.cluster.spec import Place
from actors.discovery.files import instances_folder
from actors.errors import CallHomeError, NoWorkers, SpawnError
from tests.cluster.test_launcher import ECHO, WORKERS
from tests.ports import free_address
from tests.waiting import LONG, wait_until

WHERE = EngineSpec(endpoint="test.where.one", engine=f"{WORKERS}:Where")


def files(directory: Path) -> list[str]:
    folder = instances_folder(str(directory))
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


async def called(client: Client, endpoint: str = "test.echo.one") -> bool:
    """Whether the endpoint answers by now; only what may pass is waited out."""
    try:
        return bool(await client.call(endpoint, [1], timeout=LONG))
    except CallHomeError as error:
        if not (error.retry or isinstance(error, NoWorkers)):
            raise
        return False


async def test_an_ingress_is_an_actor_of_its_node_and_shows_where_it_listens() -> None:
    told: list[str] = []
    spec = NodeSpec(engines=[ECHO], listen="127.0.0.1:0")
    async with Cluster(spec, progress=told.append) as cluster, cluster.client() as client:
        (info,) = cluster.nodes
        rows = {row["name"]: row for row in await client.ref("node").ask(Ps())}
        assert list(rows) == ["router", "ingress", "test.echo.one"]
        assert rows["ingress"]["listen"] == info.listen
        assert (rows["ingress"]["role"], rows["router"]["listen"]) == ("ingress", None)
        host, port = info.listen.split(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert any(f"listens at {info.listen}" in line for line in told)
        with socket.create_connection((host, int(port)), timeout=LONG):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=LONG)


async def test_a_door_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        listen = f"{host}:{port}"
        with pytest.raises(SpawnError) as caught:
            async with Cluster(NodeSpec(listen=listen)):
                pass
    assert caught.value.details["actor"] == "ingress"
    words = str(caught.value)
    assert f" did not start: listen: {listen} cannot be bound: Address already in use; " in words
    for word in ("Error", "on_start", "Errno"):  # it is no bug of anybody's
        assert word not in words
    assert "traceback" not in caught.value.details


@pytest.mark.parametrize("place", ["process", "here"])
async def test_a_router_that_nobody_could_call_does_not_start(
    place: Place, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    routers = [RouterSpec(place=place)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for wrong, words in (
            ({"call_home_host": "192.0.2.7"}, "call_home_host: 192.0.2.7 cannot be bound: Cannot"),
            ({"call_home_port": port}, f"call_home_port: 127.0.0.1:{port} cannot be bound: Addr"),
            (
                {"call_home_host": "127.0.0.1", "call_home_port": port},
                f"call_home_host and call_home_port: 127.0.0.1:{port} cannot be bound: Address al",
            ),
            ({"call_home_advertise": "0.0.0.0"}, "call_home_advertise is '0.0.0.0', which no w"),
        ):
            settings = Settings.load(**wrong)
            spec = NodeSpec(routers=routers, peers=[free_address()], settings=settings)
            with pytest.raises(SpawnError) as caught:
                async with Cluster(spec):
                    pass
            assert f" did not start: {words}" in str(caught.value)
    assert capfd.readouterr().err == ""
    ours = [each for each in caplog.records if each.name != "asyncio"]  # it tells of a slow machine
    assert ours == []


async def test_where_nobody_is_called_wrong_settings_of_calls_home_do_no_harm() -> None:
    settings = Settings.load(call_home_host="192.0.2.7")
    spec = NodeSpec(engines=[ECHO], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        assert await client.call("test.echo.one", 1) == 1


@pytest.mark.parametrize("listen", ["203.0.113.1:7400", "no.such.host.invalid:7400"])
async def test_a_door_that_cannot_be_is_named(listen: str) -> None:
    with pytest.raises(SpawnError, match=listen.partition(":")[0].replace(".", r"\.")):
        async with Cluster(NodeSpec(listen=listen)):
            pass


async def test_a_directory_that_cannot_be_written_is_named() -> None:
    spec = NodeSpec(listen="127.0.0.1:0", directory="/proc/callhome")
    with pytest.raises(SpawnError, match=r"did not start: directory: .*callhome' cannot be writ"):
        async with Cluster(spec):
            pass


async def test_peers_of_one_cluster_have_met_when_it_is_up() -> None:
    one, two = free_address(), free_address()
    a = NodeSpec(name="a", engines=[ECHO], listen=one, peers=[two])
    b = NodeSpec(name="b", engines=[WHERE], listen=two, peers=[one])
    async with Cluster([a, b]) as cluster:
        assert [info.listen for info in cluster.nodes] == [one, two]
        async with cluster.client("a") as client:
            found = await client.call("test.where.one", None)
            assert found["pid"] in {child.pid for child in cluster.nodes[1].children}
            assert [each.kind for each in client.records()].count("engine") == 1
        async with cluster.client("b") as client:
            assert await client.call("test.echo.one", [1]) == [1]


async def test_a_peer_that_is_away_holds_up_nothing_and_is_found_when_it_comes() -> None:
    door = free_address()
    near = NodeSpec(name="a", peers=[door])
    async with Cluster(near) as first, first.client() as client:
        with pytest.raises(NoWorkers):
            await client.call("test.echo.one", 1)
        far = NodeSpec(name="b", engines=[ECHO], listen=door)
        async with Cluster(far):
            await wait_until(lambda: called(client), LONG)

        async def gone() -> bool:
            return not await called(client)

        await wait_until(gone)


async def test_a_killed_ingress_comes_back_at_its_door() -> None:
    door = free_address()
    near = NodeSpec(name="a", peers=[door])
    far = NodeSpec(name="b", engines=[ECHO], listen=door)
    async with Cluster([near, far]) as cluster, cluster.client("a") as client:
        (ingress,) = [each for each in cluster.nodes[1].children if each.name == "ingress"]
        os.kill(ingress.pid, signal.SIGKILL)

        def back() -> bool:
            info = read_info(cluster.nodes[1].folder)
            return info is not None and ingress not in info.children and info.listen == door

        await wait_until(back)
        await wait_until(lambda: called(client), LONG)


async def test_nodes_find_each_other_in_a_directory_and_leave_nothing_there(
    tmp_path: Path,
) -> None:
    kv = str(tmp_path)
    near = NodeSpec(name="a", directory=kv)
    far = NodeSpec(
        name="b",
        engines=[ECHO, WHERE],
        ingress=IngressSpec("127.0.0.1:0"),
        directory=kv,
    )
    async with Cluster([near, far]) as cluster, cluster.client("a") as client:
        await wait_until(lambda: called(client))
        await wait_until(lambda: len(files(tmp_path)) == 2)
        where = await client.call("test.where.one", None)
        os.kill(where["pid"], signal.SIGKILL)  # its record goes, that of its successor comes
        await wait_until(lambda: called(client, "test.where.one"))
        await wait_until(lambda: len(files(tmp_path)) == 2)
        async with cluster.client("b") as near_client:  # which finds its own engines once
            assert await near_client.call("test.echo.one", [1]) == [1]
    assert files(tmp_path) == []


async def test_an_ingress_may_live_in_the_launchers_process() -> None:
    door = free_address()
    near = NodeSpec(name="a", peers=[door])
    ingress = IngressSpec(door, place="here")
    far = NodeSpec(name="b", engines=[ECHO], ingress=ingress)
    async with Cluster([near, far]) as cluster, cluster.client("a") as client:
        assert cluster.nodes[1].listen == door
        assert await client.call("test.echo.one", [1]) == [1]


async def test_nodes_that_share_a_directory_have_met_when_they_are_up(tmp_path: Path) -> None:
    def served(name: str, engine: EngineSpec) -> NodeSpec:
        door = "127.0.0.1:0"
        return NodeSpec(name, engines=[engine], listen=door, directory=folder)

    folder, link = str(tmp_path), tmp_path / "link"
    link.symlink_to(tmp_path)
    near = NodeSpec(name="a", directory=str(link))
    async with Cluster([near, served("b", ECHO), served("c", WHERE)]) as cluster:
        for name in "abc":
            async with cluster.client(name) as client:
                assert len(await client.workers()) == 2
                assert await client.call("test.echo.one", [1]) == [1]
                assert await client.call("test.where.one", None)
                assert await client.workers("test.nobody.one") == []
