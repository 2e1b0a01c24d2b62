"""What field reports ask for beyond what the tests beside this one do: whoever was there and is
gone, requests that nobody waits for any more, a hub that comes back under load, files in /dev/shm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from actors import ActorSpec, Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.errors import (
    ActorDead,
    CallHomeError,
    DeadlineExceeded,
    NoWorkers,
    PeerLost,
    WorkerLost,
)
from tests.e2e.api_players import Through
from tests.e2e.frame_engines import HOLDS, WAITS, check
from tests.e2e.reconnects import ECHO, ENGINE
from tests.e2e.standing import FarClient, on_road
from tests.e2e.watching import Trace, kill
from tests.kernel.players import Add
from tests.leaks import shared
from tests.waiting import DEADLINE, LONG, PATIENCE, TICK, wait_until

MIB = 1 << 20
PLAYER = "tests.e2e.api_players:Player"
SLOW = "t.slow.go"
CANCEL = "tests.e2e.cancel_engines"
OFTEN: dict[str, Any] = {"max_restarts": 1000, "restart_period": 0.5}


async def test_b26_b173_whoever_never_was_and_whoever_is_gone_are_errors_at_once() -> None:
    mortal = ActorSpec("mortal", PLAYER, restart="never")
    spec = NodeSpec(actors=[ActorSpec("a", PLAYER), mortal])
    async with Cluster(spec) as cluster, cluster.client() as client:
        kept, a = client.ref("mortal"), client.ref("a")
        assert isinstance(await a.ask(Through(kept, 1), timeout=DEADLINE), int)
        pid = kept.address.pid
        kill(pid)
        await wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        await asyncio.sleep(1.0)  # what the report asks for
        for gone in (kept, client.ref("mortal"), client.ref("nobody")):
            uses: list[Any] = [
                lambda gone=gone: gone.ask(Add(1), timeout=2 * LONG),
                lambda gone=gone: gone.tell(Add(1)),
                lambda gone=gone: a.ask(Through(gone, 1), timeout=2 * LONG),
            ]
            for use in uses:
                began = time.monotonic()
                with pytest.raises(ActorDead, match=gone.name):
                    await use()
                assert time.monotonic() - began < DEADLINE


#: What is to be seen of a request whose caller has gone before it was read.
BEGUN = {"started", "cancelled", "ended"}


async def test_b30_what_nobody_waits_for_any_more_is_not_done_later(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    engine = EngineSpec(SLOW, f"{CANCEL}:Slow", args={"trace": trace.path})
    settings = Settings.load(frozen_after=60.0, **OFTEN)  # nobody is warned off
    spec = NodeSpec(engines=[engine], routers=[RouterSpec(queue=10)], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        pid = client.ref(SLOW).address.pid
        kill(pid, signal.SIGSTOP)
        try:
            calls = [client.call(SLOW, {"tag": n}, timeout=5 * TICK) for n in range(10)]
            for each in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(each, DeadlineExceeded), each
        finally:
            kill(pid, signal.SIGCONT)
        await client.call(SLOW, {"wait": 0.0, "tag": "good"}, timeout=DEADLINE)
        # One whose Kill is read a moment after its Open has begun, and is ended at its first wait.
        await wait_until(lambda: trace.tags("cancelled") == trace.tags("started") - {"good"})
        assert {event.what for event in trace.events() if event.tag != "good"} <= BEGUN
        kill(pid)
        await wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        calls = [client.call(SLOW, {"tag": n}, timeout=2 * TICK) for n in range(10)]
        for each in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(each, DeadlineExceeded | NoWorkers | WorkerLost | PeerLost), each

        async def back() -> bool:
            with contextlib.suppress(CallHomeError):
                await client.call(SLOW, {"wait": 0.0, "tag": "again"}, timeout=DEADLINE)
                return True
            return False

        await wait_until(back, LONG)
        await asyncio.sleep(TICK)
        done = {event.tag for event in trace.events() if event.what not in BEGUN}
        assert done <= {"good", "again"}


async def restarts(count: int) -> list[float]:
    """SIGKILL a router ``count`` times under 50 calls a second; seconds until the next answer."""
    settings = Settings.load(**OFTEN)
    spec = NodeSpec(engines=[ENGINE], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        engine = client.ref("echo").address
        answered: list[float] = []
        failed: list[BaseException] = []

        async def once(number: int) -> None:
            try:
                assert await client.call(ECHO, number, timeout=LONG) == number
                answered.append(time.monotonic())
            except CallHomeError as error:
                failed.append(error)

        async def steady() -> None:
            async with asyncio.TaskGroup() as group:
                number = 0
                while not over.is_set():
                    group.create_task(once(number))
                    number += 1
                    await asyncio.sleep(0.02)

        over = asyncio.Event()
        load = asyncio.create_task(steady())
        took = []
        for _ in range(count):
            await wait_until(lambda: _known(client, "router"), LONG)
            kill(client.ref("router").address.pid)
            begun = time.monotonic()
            await wait_until(
                lambda b=begun: answered and answered[-1] > b + TICK, LONG, "it answers"
            )
            took.append(next(each for each in answered if each > begun) - begun)
        over.set()
        await load
        assert client.ref("echo").address == engine  # no worker was started again
        return took


def _known(client: Client, name: str) -> bool:
    with contextlib.suppress(ActorDead):
        return client.ref(name).address.pid > 0
    return False


async def test_b39_a_hub_that_comes_back_again_and_again_under_load() -> None:
    assert max(await restarts(3)) < DEADLINE


async def test_b49_of_two_engines_one_is_killed_under_ten_streams(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    engine = EngineSpec(
        SLOW, f"{CANCEL}:Slow", args={"trace": trace.path}, replicas=2, restart="never"
    )
    settings = Settings.load(retry_limit=0)
    async with (
        Cluster(NodeSpec(engines=[engine], settings=settings)) as cluster,
        cluster.client() as client,
    ):
        names = {client.ref(f"{SLOW}-{n}").address for n in range(2)}
        victim, survivor = names
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(
                    client.stream(SLOW, {"items": 3}, instance=victim.incarnation)
                )
                for _ in range(10)
            ]
            for each in streams:
                assert await anext(each) == 0
            kill(victim.pid)

            async def rest(stream: Any) -> BaseException | None:
                try:
                    async for _ in stream:
                        pass
                except CallHomeError as error:
                    return error
                return None

            for error in await asyncio.wait_for(asyncio.gather(*map(rest, streams)), DEADLINE):
                assert isinstance(error, PeerLost), error
                for word in (victim.name, str(victim.pid), "SIGKILL"):
                    assert word in str(error)

            async def one_is_left() -> bool:
                workers = await client.workers(SLOW)
                free = [each.instance for each in workers if each.state == "free"]
                return free == [survivor.incarnation]

            await wait_until(one_is_left, what="the router knows of the death, too")
            assert await client.call(SLOW, {"wait": 0.0}, timeout=DEADLINE) == "late"
        kill(survivor.pid)

        async def nobody() -> bool:
            return not [each for each in await client.workers(SLOW) if each.state == "free"]

        await wait_until(nobody, what="it is not ready any more")
        with pytest.raises(CallHomeError):
            await client.call(SLOW, {"wait": 0.0}, timeout=DEADLINE)


async def test_b02_files_of_a_killed_producer_go_while_its_node_lives() -> None:
    before = shared()
    settings = Settings.load(arena_step=4 * MIB, arena_limit=16 * MIB, frame_road="file")
    spec = NodeSpec(engines=[WAITS, HOLDS], settings=settings)
    async with Cluster(spec) as cluster, cluster.client(settings=settings) as client:
        pids = {child.name: child.pid for child in cluster.nodes[0].children}
        async with client.stream("m.holds.go", {"n": 10, "size": MIB}, timeout=60.0) as held:
            assert await anext(held) == 10
            mine = shared() - before
            assert mine
            async with client.stream("m.waits.go", {"n": 20, "size": 64 << 10}) as items:
                number = 0
                async for frame in items:
                    check(frame.array, number)
                    del frame
                    number += 1
                    if number == 5:
                        both = shared() - before
                        assert both - mine
                        kill(pids["holds"])
            assert number == 20
            with pytest.raises(PeerLost, match="SIGKILL"):
                await anext(held)
        await wait_until(lambda: not shared() & mine, what="its files are gone")
    await wait_until(lambda: shared() <= before, what="no file is left")


@pytest.mark.parametrize("who", ["ingress", "node"])
async def test_b38_a_frozen_ingress_is_told_and_a_frozen_node_holds_up_nobody(who: str) -> None:
    """Of the node that serves, seen from the other one."""
    spec = on_road(NodeSpec(engines=[ENGINE]), "nodes")
    async with Cluster(spec) as cluster, FarClient(cluster.name, Settings.load()) as client:
        assert await client.call(ECHO, 1, timeout=DEADLINE) == 1
        pid = cluster.nodes[1].address.pid
        if who == "ingress":
            (pid,) = [each.pid for each in cluster.nodes[1].children if each.name == "ingress"]
        kill(pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                began = time.monotonic()
                if who == "node":
                    assert await client.call(ECHO, 2, timeout=DEADLINE) == 2
                else:
                    with pytest.raises(CallHomeError):
                        await client.call(ECHO, 2, timeout=20 * TICK)
                assert time.monotonic() - began < LONG
        finally:
            kill(pid, signal.SIGCONT)

        async def serves() -> bool:
            with contextlib.suppress(CallHomeError):
                return bool(await client.call(ECHO, 3, timeout=PATIENCE) == 3)
            return False

        await wait_until(serves, LONG, "it serves again by itself")
