"""Processes of a node that are killed: what their callers get, and what comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, ResponseStream, RouterSpec, Settings
from actors.errors import (
    CallHomeError,
    NoWorkers,
    PeerLost,
    WorkerLost,
)
from tests.e2e.watching import Trace, inspect, kill, program, wait_idle
from tests.waiting import DEADLINE, LONG, PATIENCE, wait_until, wait_until_sync

SLOW = "t.slow.go"
BRISK = "t.brisk.go"
ENGINES = "tests.e2e.cancel_engines"
#: How soon callers hear of a death, in seconds: far below the time that their calls may take.
TOLD = DEADLINE


def node(trace: Trace, replicas: int = 1) -> NodeSpec:
    """One slow engine that writes a trace, and a brisk one."""
    args = {"trace": trace.path}
    return NodeSpec(
        name="a",
        routers=[RouterSpec()],
        engines=[
            EngineSpec(SLOW, f"{ENGINES}:Slow", args=args, replicas=replicas),
            EngineSpec(BRISK, f"{ENGINES}:Brisk"),
            EngineSpec("t.fragile.go", f"{ENGINES}:Fragile"),
        ],
        settings=Settings.load(start_timeout=LONG),
    )


async def open_all(client: Client, count: int, **request: object) -> list[ResponseStream]:
    """So many streams, opened but not read."""
    streams = [client.stream(SLOW, {**request, "tag": number}) for number in range(count)]
    for stream in streams:
        await stream.__aenter__()
    return streams


async def rest(stream: ResponseStream) -> tuple[list[object], CallHomeError | None, float]:
    """All items, the error behind them, and when it came."""
    items: list[object] = []
    try:
        async for item in stream:
            items.append(item)
    except CallHomeError as error:
        return items, error, time.monotonic()
    return items, None, time.monotonic()


async def serves(client: Client, endpoint: str = SLOW) -> None:
    """Wait until an endpoint answers (again)."""

    async def answers() -> bool:
        try:
            if endpoint == SLOW:
                return bool(await client.call(SLOW, {"wait": 0.0}, timeout=PATIENCE) == "late")
            return bool(await client.call(endpoint, {"items": 1}, timeout=PATIENCE) == 0)
        except CallHomeError:
            return False

    await wait_until(answers, LONG, f"{endpoint} serves")


async def test_a_killed_engine_fails_its_streams_behind_all_that_it_had_sent(
    tmp_path: Path,
) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        engine = client.ref(SLOW).address
        assert await client.call(SLOW, {"wait": 0.0}) == "late"  # it is connected with us
        ended = await open_all(client, 10, items=20, wait=0.0)
        await trace.until("ended", 11)
        streams = await open_all(client, 50, items=20)
        await asyncio.sleep(0)  # the Opens leave
        # The loop stands still, so not one item has been read when the engine dies.
        wait_until_sync(lambda: trace.count("sent") == 60)
        kill(engine.pid)
        died = time.monotonic()
        results = await asyncio.gather(*map(rest, streams))
        for items, error, when in results:
            assert items == list(range(20))
            assert type(error) is PeerLost
            assert "SIGKILL" in str(error)
            assert str(engine.pid) in str(error)
            assert when - died < TOLD
        for stream in ended:
            items, error, _ = await rest(stream)
            assert error is None
            assert items == [*range(20), "late"]
        await serves(client)
        await wait_idle(client, SLOW)  # its name too is back, by its own road
        assert client.ref(SLOW).address.pid != engine.pid


async def test_no_memory_of_a_killed_engine_is_left(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    size = 200_000
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        engine = client.ref(SLOW).address
        streams = await open_all(client, 50, items=2, frames=size)
        await trace.until("sent", 50)
        kept = [await anext(stream) for stream in streams]
        assert mapped("memfd") > 0
        kill(engine.pid)
        results = await asyncio.gather(*map(rest, streams))
        assert [len(items) for items, _, _ in results] == [1] * 50
        assert {type(error) for _, error, _ in results} == {PeerLost}
        assert all(int(array[-1]) == 0 and array.shape == (size,) for array in kept)
        del kept, results
        # The streams are still there, and what they raised must not hold their reader's items.
        await wait_until(lambda: mapped("memfd") == 0, what="its memory is unmapped")
        assert len(streams) == 50
        await serves(client)


def mapped(word: str) -> int:
    """Mappings of this process whose line has the word."""
    return sum(word in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize(("code", "text"), [(3, "exit code 3"), (0, "exit code 0")])
async def test_the_error_names_the_exit_code(tmp_path: Path, code: int, text: str) -> None:
    async with Cluster(node(Trace(tmp_path))) as cluster, cluster.client() as client:
        path = str(tmp_path / "end")
        async with client.stream("t.fragile.go", {"code": code, "until": path}) as stream:
            assert [await anext(stream), await anext(stream)] == [0, 1]
            leave(path)
            items, error, _ = await rest(stream)
        assert items == []
        assert type(error) is PeerLost
        assert text in str(error)


async def test_an_engine_that_dies_before_it_accepts_is_a_lost_worker(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        engine = client.ref(SLOW).address
        kill(engine.pid, signal.SIGSTOP)
        calls = [asyncio.create_task(client.call(SLOW, {})) for _ in range(10)]

        async def sent() -> bool:
            return bool((await inspect(client, "router")).get("in_flight") == 10)

        await wait_until(sent)
        hold = f"{trace.path}.hold"
        leave(hold)  # its successor does not come up so far
        kill(engine.pid)
        died = time.monotonic()
        for call in calls:
            with pytest.raises(WorkerLost, match="SIGKILL") as caught:
                await call
            assert caught.value.retry
        assert time.monotonic() - died < TOLD
        assert trace.count("started") == 0
        # Until it is back nobody serves, and that is said at once.
        began = time.monotonic()
        with pytest.raises(NoWorkers, match="restart"):
            await client.call(SLOW, {})
        assert time.monotonic() - began < TOLD
        os.unlink(hold)
        await serves(client)
        await wait_idle(client, SLOW)


async def test_one_dead_replica_does_not_disturb_the_others(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace, replicas=2)) as cluster, cluster.client() as client:
        streams = await open_all(client, 10, items=3, polite=True)
        for stream in streams:
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        kill(client.ref(f"{SLOW}-0").address.pid)
        reading = [asyncio.create_task(rest(stream)) for stream in streams]
        await wait_until(lambda: sum(each.done() for each in reading) >= 5, what="five are lost")
        for task, stream in zip(reading, streams, strict=True):
            if not task.done():
                stream.stop()
        results = await asyncio.gather(*reading)
        lost = [items for items, error, _ in results if type(error) is PeerLost]
        whole = [items for items, error, _ in results if error is None]
        assert (lost, whole) == ([[]] * 5, [["last"]] * 5)
        # Calls between the death and the return go to the living.
        await wait_idle(client, f"{SLOW}-1")
        assert await client.call(SLOW, {"wait": 0.0}) == "late"


async def test_a_killed_client_gives_everything_back(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        request = '{"items": 3, "frames": 100000}'
        folder = cluster.nodes[0].folder
        with program("tests.e2e.caller", folder, SLOW, "50", request) as caller:
            assert caller.stdout is not None
            line = await asyncio.to_thread(caller.stdout.readline)
            assert line == "open\n"
            await trace.until("sent", 50)
            assert (await inspect(client, SLOW))["in_flight"] == 50
            assert (await leases(client)) > 0
            kill(caller.pid)
            await trace.until("ended", 50)  # and not when they would by themselves
        assert trace.count("completed") == 0
        await wait_idle(client, SLOW)

        async def returned() -> bool:
            return await leases(client) == 0

        await wait_until(returned, what="leases are back")


async def leases(client: Client) -> int:
    """Leases that the slow engine has given and not got back."""
    found: int = await client.call(SLOW, {"ask": "leases"})
    return found


async def test_a_killed_router_takes_no_accepted_stream_with_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        router = client.ref("router").address
        accepted = await open_all(client, 5, items=2, polite=True)
        await trace.until("sent", 5)
        first = [await anext(stream) for stream in accepted]
        kill(router.pid, signal.SIGSTOP)
        opened = [asyncio.create_task(client.call(SLOW, {})) for _ in range(5)]
        for _ in range(3):
            await asyncio.sleep(0)
        kill(router.pid)
        died = time.monotonic()
        for call in opened:
            with pytest.raises(PeerLost, match="SIGKILL"):
                await call
        assert time.monotonic() - died < TOLD
        assert first == [0] * 5
        await serves(client)
        assert client.ref("router").address.pid != router.pid

        # The new router knows what the engine carries for others, and holds no permit for it.
        async def knows() -> bool:
            found = await inspect(client, "router")
            (worker,) = (each for each in found["workers"] if each["endpoint"] == SLOW)
            return bool(worker["load"] == 5 and worker["permits"] == found["in_flight"] == 0)

        await wait_until(knows)
        for stream in accepted:
            stream.stop()
        for items, error, _ in await asyncio.gather(*map(rest, accepted)):
            assert error is None
            assert items == [1, "last"]
        await wait_idle(client, SLOW)


async def test_nothing_runs_on_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    name = f"died{os.getpid():x}"
    cluster = Cluster(node(trace), cluster=name)
    async with cluster, cluster.client() as client:
        info = cluster.nodes[0]
        pids = [each.pid for each in info.children]
        assert len(pids) == 4
        streams = await open_all(client, 5, items=1)
        assert [await anext(stream) for stream in streams] == [0] * 5
        kill(info.address.pid)
        for items, error, _ in await asyncio.gather(*map(rest, streams)):
            assert items == []
            assert type(error) is PeerLost
        await wait_until(lambda: not any(map(lives, pids)), what="all actors are gone")
        began = time.monotonic()
        with pytest.raises(CallHomeError):
            await client.call(SLOW, {}, timeout=LONG)
        assert time.monotonic() - began < TOLD
        ended, how = await asyncio.wait_for(cluster.wait_ended(), DEADLINE)
        assert ended == "a"
        assert "SIGKILL" in str(how)
    assert not there(info.folder)


async def test_a_later_start_sweeps_what_a_killed_launcher_and_node_left(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    name = f"swept{os.getpid():x}"
    first = Cluster(node(trace), cluster=name)
    async with first:
        info = first.nodes[0]
        left = f"{info.folder}/router.1234.d"
        kill(info.address.pid)
        await wait_until(lambda: not any(lives(each.pid) for each in info.children))
        leave(left)
        assert there(f"{info.folder}/node.json")
        lines: list[str] = []
        async with Cluster(node(trace), cluster=name, progress=lines.append) as second:
            assert second.nodes[0].folder == info.folder
            assert not there(left)
            assert any("left by a dead node" in line for line in lines)
            async with second.client() as client:
                await serves(client)


def there(path: str) -> bool:
    """Whether a file or folder exists."""
    return Path(path).exists()


def leave(path: str) -> None:
    """Make a file, as a socket leaves one."""
    Path(path).touch()


def lives(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
