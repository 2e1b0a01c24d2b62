"""Field reports on streams and on the road between nodes, with the numbers that they name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, Settings
from actors.errors import CallHomeError, Cancelled, ConnectionLost, PeerLost
from tests.e2e import field_engines
from tests.e2e.engines import ECHO, HERE, PART
from tests.e2e.standing import FarClient, FarCluster, cluster_on, inspect, wait_idle
from tests.e2e.test_streaming import collect, direct, pid_of, rss
from tests.e2e.watching import Trace, kill, program
from tests.waiting import DEADLINE, LONG, TICK, wait_until

GO, TALK = "t.part.go", "t.talk.go"
MIB = 1 << 20


def far_pid(cluster: Cluster, name: str) -> int:
    """The process of an actor on node ``b``."""
    (far,) = [info for info in cluster.nodes if info.node == "b"]
    return pid_of(far, name)


# -------------------------------------------------------------------------------------- streaming


async def test_b67_five_of_ten_items_and_sigkill_over_two_nodes() -> None:
    async with FarCluster(NodeSpec(engines=[PART])) as cluster, cluster.client() as client:
        async with client.stream(GO, {"do": "hang_after", "n": 5}, timeout=LONG) as items:
            assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
            kill(far_pid(cluster, "part"))
            with pytest.raises(ConnectionLost, match="after 5 items") as lost:
                await anext(items)
            assert "SIGKILL" in str(lost.value)
        await wait_until(lambda: serves(client), LONG)
        assert await collect(client, GO, {"do": "numbers", "n": 3}) == [0, 1, 2]
        await wait_idle(client)


async def serves(client: Client) -> bool:
    try:
        return bool(await client.call(GO, {"do": "pid"}, timeout=DEADLINE / 4))
    except CallHomeError:
        return False


async def test_b71_items_that_were_delivered_are_never_repeated_over_two_nodes() -> None:
    spec = EngineSpec(endpoint=GO, engine=HERE + "Part", replicas=2, restart="never")
    async with FarCluster(NodeSpec(engines=[spec])) as cluster, cluster.client() as client:
        async with client.stream(GO, {"do": "die_after", "n": 3}, timeout=LONG) as items:
            got = [await anext(items) for _ in range(3)]
            far = client._far  # type: ignore[attr-defined]
            name = next(
                each.address.name for each in far.records() if each.address.pid == got[0][0]
            )
            with contextlib.suppress(PeerLost):  # it may die before it has answered
                await direct(far, name, {"do": "open_gate"})
            with pytest.raises(ConnectionLost, match="after 3 items"):
                await anext(items)
        assert [number for _, number in got] == [0, 1, 2]
        assert len({pid for pid, _ in got}) == 1
        assert items.received == 3
        assert await collect(client, GO, {"do": "numbers", "n": 3}) == [0, 1, 2]
        await wait_idle(client)


@pytest.mark.parametrize("kind", ["bytes", "text"])
async def test_b68_a_producer_does_not_run_ahead_over_two_nodes(kind: str) -> None:
    size = 64 << 10
    async with FarCluster(NodeSpec(engines=[PART])) as cluster, cluster.client() as client:
        pids = [far_pid(cluster, name) for name in ("part", "ingress")]
        request = {"do": "blocks", "kind": kind, "size": size, "id": "b68"}
        await collect(client, GO, request | {"n": 600})  # pages that stay are touched once
        base = sum(map(rss, pids))
        async with client.stream(GO, request | {"n": 2000}, timeout=2 * LONG) as items:
            for _ in range(5):
                assert len(await anext(items)) == size
                await asyncio.sleep(2 * TICK)  # a slow reader is what this is about
                look = await client.call(GO, {"do": "look", "of": "b68"}, timeout=DEADLINE)
                assert look["yielded"] <= 256 + 200
                assert sum(map(rss, pids)) - base < 50 * MIB
            rest = [len(item) async for item in items]
        assert rest == [size] * 1995
        await wait_idle(client)


async def test_b74_bytes_held_over_two_nodes_are_bounded() -> None:
    """A window and an item at the engine, and as much in the memory that the router takes in."""
    size, cap = 16 * MIB, 32 * MIB
    # Steps that hold one item each, so that memory is taken for what is there.
    settings = Settings.load(window_items=64, window_bytes=cap, arena_step=size + MIB)
    spec = NodeSpec(engines=[PART], settings=settings)
    async with (
        FarCluster(spec) as cluster,
        FarClient(cluster.name, settings) as client,
        cluster.client() as other,
    ):
        pids = [far_pid(cluster, "part"), far_pid(cluster, "ingress")]
        pids.append(pid_of(next(each for each in cluster.nodes if each.node == "a"), "router"))
        request = {"do": "blocks", "kind": "array", "size": size, "id": "b74"}
        base = sum(map(pss, pids))
        async with client.stream(GO, request | {"n": 16}, timeout=2 * LONG) as items:
            await wait_until(lambda: items.received >= 2, LONG, "the window is full")
            for _ in range(5):
                await asyncio.sleep(2 * TICK)
                assert items.received == 2
                look = await other.call(GO, {"do": "look", "of": "b74"}, timeout=DEADLINE)
                assert look["yielded"] <= 4
                assert sum(map(pss, pids)) - base <= 2 * (cap + size) + 16 * MIB
            assert [item.nbytes async for item in items] == [size] * 16
        await wait_idle(client)


async def test_b80_a_pause_of_seconds_loses_nothing() -> None:
    """Longer than pings, probes and the gap limit allow for a connection that is dead: that is 4 s,
    where the report pauses for ten."""
    async with FarCluster(NodeSpec(engines=[PART])) as cluster, cluster.client() as client:
        looked = asyncio.Event()

        async def paused(request: dict[str, object], at: int) -> int:
            count = 0
            async with client.stream(GO, request, gap_timeout=5.0) as items:
                async for item in items:
                    count += 1
                    assert not isinstance(item, int) or item == count - 1
                    if count == at:
                        await asyncio.sleep(6)
                        await looked.wait()
            return count

        small = {"do": "numbers", "n": 5000, "id": "b80 small"}
        large = {"do": "blocks", "kind": "bytes", "size": MIB, "n": 200, "id": "b80 large"}
        waiting = asyncio.gather(paused(small, 2500), paused(large, 50))
        for _ in range(22):  # others are served all the time
            assert await client.call(GO, {"do": "echo", "value": 1}, timeout=DEADLINE) == 1
            await asyncio.sleep(0.2)
        look = await client.call(GO, {"do": "look", "of": "b80 small"}, timeout=DEADLINE)
        assert look["yielded"] < 2500 + 1024
        looked.set()
        assert list(await waiting) == [5000, 200]
        await wait_idle(client)


# ------------------------------------------------------------------------------- streams each way


async def test_b128_the_ends_of_both_directions_are_their_own(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    spec = NodeSpec(name="a", engines=[field_engines.talk(trace)])
    async with cluster_on(spec, road) as cluster, cluster.client() as client:
        # (a) Our side ends after three items, three more come.
        async with client.open(TALK, timeout=LONG) as chat:
            for item in ("more", 0, 1, 2):
                await chat.send(item)
            await chat.end()
            assert [item async for item in chat] == [0, 1, 2]
        await trace.until("heard=3")
        # (b) The worker ends first: our send says so.
        async with client.open(TALK, timeout=LONG) as chat:
            for item in ("first", 0, 1, 2):
                await chat.send(item)
            async with asyncio.timeout(DEADLINE):
                assert [item async for item in chat] == []
                with pytest.raises(Cancelled):
                    await chat.send(3)
        # (c) The client dies behind the end of its input.
        folder = next(each for each in cluster.nodes if each.node == "a").folder
        with program("tests.e2e.halfway", folder, TALK) as caller:
            await trace.until("heard=1", within=LONG)
            kill(caller.pid)
            await wait_until(lambda: "wait" in trace.tags("ended"))
        # (d) What feeds the stream fails: no clean end of the input.
        with pytest.raises(ZeroDivisionError):
            await fails(client)
        await trace.until("ended", 4)
        assert {each.what for each in trace.events() if each.tag == "echo"} == {"started", "ended"}
        await wait_idle(client)
        assert client.runtime.home.streams == {}


async def fails(client: Client) -> None:
    async with client.open(TALK, timeout=LONG) as chat:
        for item in ("echo", 0):
            await chat.send(item)
        assert await anext(chat) == 0
        raise ZeroDivisionError


async def test_b139_a_thousand_ping_pongs_of_64_bytes_know_no_steps() -> None:
    asyncio.get_running_loop().set_debug(False)
    async with FarCluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        for _ in range(10):  # others share the machine: one quiet stretch is enough
            times = []
            async with client.open("t.echo.go", timeout=2 * LONG) as chat:
                for number in range(1000):
                    begun = time.perf_counter()
                    await chat.send(b"%064d" % number)
                    assert await anext(chat) == b"%064d" % number
                    times.append(time.perf_counter() - begun)
            quiet = min(max(times[at : at + 25]) for at in range(0, 1000, 25))
            if quiet < 0.03:
                return
        pytest.fail(f"steps of {quiet * 1000:.1f} ms in every 25 ping-pongs")


# ------------------------------------------------------------------------------------------ ports


@pytest.mark.timeout(300)
async def test_b136_short_streams_in_a_row_over_two_nodes() -> None:
    """6,000 of them here; the long form is 20 rounds of ``python -m tests.e2e.short_streams``."""
    rounds = 6
    async with FarCluster(NodeSpec(engines=[PART])) as cluster:
        folder = next(each for each in cluster.nodes if each.node == "a").folder
        pids = [far_pid(cluster, name) for name in ("part", "ingress")]
        pids.append(pid_of(next(each for each in cluster.nodes if each.node == "a"), "router"))
        with program("tests.e2e.short_streams", folder, GO, str(rounds)) as caller:
            assert caller.stdout is not None
            found, base, used = [], [], [0.0]
            for _ in range(rounds):
                found.append(json.loads(await asyncio.to_thread(caller.stdout.readline)))
                base.append(list(map(descriptors, pids)))
                used.append(sum(map(cpu_seconds, [*pids, caller.pid])))
        assert [each["failed"] for each in found] == [0] * rounds
        assert base == [base[0]] * rounds
        # What goes wrong with time does so in all of the last rounds and costs time of ours;
        # other work on this machine only makes them wait.
        p99, cpu = [each["p99"] for each in found], [b - a for a, b in pairwise(used)]
        slower = min(p99[3:]) > 2 * min(p99[:3])
        assert not (slower and min(cpu[3:]) > 2 * min(cpu[1:3])), (p99, cpu)
        async with cluster.client() as client:
            await wait_idle(client)

            async def followed() -> bool:
                ways = (await inspect(client.ref("router")))["ways"]
                return [each["streams"] for each in ways] == [2]

            await wait_until(followed, what="the other node's records and loads alone are followed")


def pss(pid: int) -> int:
    """Resident bytes of a process; what it shares with others counts as its share."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors since it started."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
