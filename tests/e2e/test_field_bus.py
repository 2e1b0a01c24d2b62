"""Field reports of ZeroMQ, over whole clusters: nothing is lost in silence, nothing grows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from actors import ActorSpec, Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings, connect
from actors.cluster.launcher import find_node
from actors.errors import (
    ActorDead,
    CallHomeError,
    ConnectionLost,
    Draining,
    NameTaken,
    OutboxFull,
    Overloaded,
)
from actors.kernel.ref import Ref
from actors.messages import Inspect
from tests.e2e.bus_engines import Busy, Note, Noted
from tests.e2e.reconnects import ECHO, ENGINE, HUBS, reconnect, rss
from tests.e2e.standing import Standing, standing
from tests.e2e.watching import kill, stop
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.bus.address import inbox_path

HERE = "tests.e2e.bus_engines:"
MIB = 1 << 20
NOTES = ActorSpec("notes", HERE + "Notes", restart="always")
OFTEN: dict[str, Any] = {"max_restarts": 1000, "restart_period": 1.0}


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(engines=[ENGINE], actors=[NOTES])) as found:
        yield found


def cluster_of(**settings: Any) -> Cluster:
    return Cluster(
        NodeSpec(engines=[ENGINE], actors=[NOTES], settings=Settings.load(**OFTEN, **settings))
    )


async def one(ref: Ref, message: Any) -> Any:
    """The first item of a stream of an actor."""
    async with ref.stream(message, timeout=LONG) as answers:
        return await anext(answers)


async def noted(client: Client) -> list[Any]:
    found: list[Any] = await one(client.ref("notes"), Noted())
    return found


async def until_back(client: Client, name: str, before: int) -> None:
    def back() -> bool:
        with contextlib.suppress(ActorDead):
            return client.ref(name).address.pid != before
        return False

    await wait_until(back, LONG, f"{name} is back")


async def answered(client: Client, within: float) -> None:
    """Until a call is answered; every failure on the way is typed."""
    begun = time.monotonic()
    while True:
        with contextlib.suppress(ConnectionLost, CallHomeError):
            assert await client.call(ECHO, 1, timeout=within) == 1
            return
        assert time.monotonic() - begun < within
        await asyncio.sleep(0.005)


# ------------------------------------------------------------- B26, B29, B30, B39: who is not there


async def test_b26_b29_b30_b39_restarts_of_everybody() -> None:
    async with cluster_of() as cluster, cluster.client() as client:
        notes = client.ref("notes")
        forged = notes.address._replace(incarnation=secrets.randbits(60))
        with pytest.raises(ActorDead, match="has no inbox"):
            client.runtime.send(forged, Inspect())  # and no wait: it is no coroutine
        for name in ["echo", "router"] * 2:  # w1 comes back as w1; the hub comes back
            pid = client.ref(name).address.pid
            kill(pid)
            await answered(client, LONG)
            await until_back(client, name, pid)
        await notes.ask(Note(1), timeout=DEADLINE)
        gone = notes.address
        kill(gone.pid)
        await wait_until(lambda: client.runtime.peers.death(gone) is not None)
        sent = 0
        for number in range(20):  # until it is back
            try:
                await notes.tell(Note(number))
                sent += 1
            except ActorDead:
                await asyncio.sleep(0)
        with pytest.raises(ActorDead, match=r"has no inbox|is dead"):
            client.runtime.send(gone, Inspect())
        await until_back(client, "notes", gone.pid)

        async def all_noted() -> bool:
            return (await noted(client))[0] == sent  # type: ignore[no-any-return]

        await wait_until(all_noted, what="what was taken is done")
        await asyncio.sleep(TICK)
        assert await all_noted()  # and what was refused is not, not later either


async def test_b29_a_name_that_somebody_has_is_refused(node: Standing) -> None:
    for kind in ("router", "node"):
        with pytest.raises(NameTaken, match=rf"client '{kind}': the node's {kind}"):
            await connect(node.name, name=kind).__aenter__()
    async with connect(node.name, name="w1") as first:
        with pytest.raises(NameTaken, match=rf"client 'w1' .*pid {os.getpid()}"):
            await connect(node.name, name="w1").__aenter__()
        assert await first.call(ECHO, 1, timeout=DEADLINE) == 1
        for _ in range(2):  # it is free again
            async with connect(node.name, name="w2") as other:
                assert await other.call(ECHO, 2, timeout=DEADLINE) == 2


async def test_an_actor_whose_inbox_was_taken_comes_back_and_callers_hear_of_it() -> None:
    async with cluster_of() as cluster, cluster.client() as client:
        notes = client.ref("notes")
        await notes.ask(Note(1), timeout=DEADLINE)
        address = notes.address
        waiting = asyncio.create_task(notes.ask(Busy(), timeout=LONG))
        os.unlink(inbox_path(cluster.nodes[0].folder, address, "d"))
        with pytest.raises(CallHomeError) as failed:
            await waiting
        assert isinstance(failed.value, ConnectionLost | Draining), repr(failed.value)
        assert "can be reached no longer" in str(failed.value)
        await until_back(client, "notes", address.pid)
        assert await notes.ask(Note(1), timeout=DEADLINE) == 1


# --------------------------------------------------------------------- B27, B45: who does not read


@pytest.mark.parametrize("bound", [1000, 65_536])
async def test_b27_a_stopped_worker_costs_no_message_in_silence(bound: int) -> None:
    settings = {"mailbox": 1000, "outbox_messages": bound}
    async with cluster_of(**settings) as cluster, cluster.client() as client:
        notes = client.ref("notes")
        await notes.tell(Note(-1))
        pid, body = notes.address.pid, bytes(1024)
        accepted, refused = 1, 0
        before = rss(os.getpid())
        stop(pid)
        try:
            for number in range(20_000):
                try:
                    await notes.tell(Note(number, body))
                    accepted += 1
                except OutboxFull:
                    refused += 1
                if number % 100 == 0:
                    await asyncio.sleep(0)
            grown = rss(os.getpid()) - before
        finally:
            kill(pid, signal.SIGCONT)
        assert accepted + refused == 20_001
        assert (accepted <= bound + 1) if bound == 1000 else refused == 0
        assert grown < 50 * MIB, grown / MIB

        async def delivered() -> bool:
            with contextlib.suppress(OutboxFull):  # until it has read some
                return await noted(client) == [accepted, True]
            return False

        await wait_until(delivered, LONG, f"{accepted} are delivered, in order")
        await asyncio.sleep(TICK)
        assert await noted(client) == [accepted, True]


async def test_b45_a_mailbox_of_ten_takes_ten() -> None:
    async with cluster_of(mailbox=10, outbox_messages=10) as cluster, cluster.client() as client:
        notes = client.ref("notes")
        busy = asyncio.create_task(notes.ask(Busy(), timeout=LONG))
        asks = [asyncio.create_task(notes.ask(Note(n), timeout=LONG)) for n in range(9)]
        await asyncio.sleep(TICK)
        more = [asyncio.create_task(notes.ask(Note(99), timeout=20 * TICK)) for _ in range(5)]
        found = await asyncio.gather(*more, return_exceptions=True)
        assert all(isinstance(each, Overloaded | OutboxFull | CallHomeError) for each in found)
        accepted = 0
        for number in range(1000):
            try:
                await notes.tell(Note(100 + number))
                accepted += 1
            except OutboxFull:
                break
            await asyncio.sleep(0.002)
        assert accepted <= 30
        kill(notes.address.pid)
        await asyncio.gather(busy, *asks, return_exceptions=True)


# ---------------------------------------------------------------------------- B32, B33: the folder


async def test_b32_a_long_run_folder_is_refused_with_its_limit(tmp_path: Path) -> None:
    run = f"{tmp_path}/{'x' * (119 - len(str(tmp_path)))}"
    assert len(run) >= 120
    with pytest.raises(CallHomeError, match=r"107.*CALLHOME_RUN") as failed:
        async with (
            asyncio.timeout(LONG),
            Cluster(NodeSpec(engines=[ENGINE], settings=Settings.load(run=run))),
        ):
            pass
    assert run in str(failed.value)


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.PUSH])
async def test_b33_noise_takes_no_actor_down(node: Standing, kind: int) -> None:
    noise = [b"", b"\xc1", os.urandom(MIB), *(os.urandom(99) for _ in range(10))]
    folder = find_node(node.name).folder
    async with node.client() as client:
        context: zmq.Context[Any] = zmq.Context()
        try:
            for name in ("echo", "router", "notes", "node"):
                address = client.ref(name).address
                sockets = [context.socket(kind) for _ in "dc"]
                for each, lane in zip(sockets, "dc", strict=True):
                    path = inbox_path(folder, address, lane)
                    each.connect(f"ipc://{path}")
                for bad in noise:
                    for each in sockets:
                        with contextlib.suppress(zmq.Again):  # a DEALER is not even let in
                            each.send(bad, zmq.NOBLOCK)
                    assert await client.call(ECHO, 1, timeout=DEADLINE) == 1
                    assert await client.ref("notes").ask(Note(1), timeout=DEADLINE)
                for each in sockets:
                    each.close(0)
                assert client.ref(name).address == address
        finally:
            context.destroy(0)


# --------------------------------------------------------------------------- B41, B44, B47: the end


async def test_b41_last_words_arrive() -> None:
    engine = EngineSpec("t.last.words", HERE + "last_words", replicas=4, restart="always")
    settings = Settings.load(**OFTEN, drain_limit=LONG)
    async with (
        Cluster(
            NodeSpec(engines=[engine], routers=[RouterSpec("round_robin")], settings=settings)
        ) as cluster,
        cluster.client() as client,
    ):

        async def slow(instance: int) -> None:
            stream = client.stream("t.last.words", 500, timeout=LONG, instance=instance)
            found = []
            async with stream:
                async for number in stream:
                    found.append(number)
                    if number % 50 == 0:
                        await asyncio.sleep(0.02)
            assert found == list(range(500))

        for _ in range(2):
            await wait_until(lambda: len(engines(client)) == 4, LONG, "four engines")
            before = engines(client)
            await asyncio.gather(*map(slow, before))
            await wait_until(lambda b=before: not engines(client) & b, LONG, "they stop")


def engines(client: Client) -> set[int]:
    return {each.instance for each in client.records() if each.kind == "engine"}


@contextlib.asynccontextmanager
async def quiet() -> AsyncIterator[tuple[Cluster, Client]]:
    """A router, an ingress and four engines, with nothing to do."""
    four = EngineSpec(ECHO, HERE + "echo", replicas=4)
    spec = NodeSpec(engines=[four], listen="127.0.0.1:0")
    async with Cluster(spec) as cluster, cluster.client() as client:
        yield cluster, client


def used(pid: int) -> float:
    """CPU seconds of a process, all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def woken(pid: int) -> int:
    """How often threads of a process have begun to wait: for that it is all one how fast they are
    in between, and what others do to this machine.
    """
    tasks = Path(f"/proc/{pid}/task").iterdir()
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sum(int(each.split()[1]) for each in lines if each.startswith("voluntary"))


async def test_b44_an_idle_cluster_is_idle_and_no_wake_up_is_missed() -> None:
    async with quiet() as (cluster, client):
        assert sorted(await asyncio.gather(*(client.call(ECHO, n) for n in range(500)))) == list(
            range(500)
        )
        node = cluster.nodes[0]
        pids = [node.address.pid, *(child.pid for child in node.children)]
        await asyncio.sleep(5 * TICK)
        shares, wakes = [], []
        for _ in range(4):  # others share the machine: one quiet stretch is enough
            before, slept, begun = sum(map(used, pids)), [*map(woken, pids)], time.monotonic()
            await asyncio.sleep(25 * TICK)
            took = time.monotonic() - begun
            shares.append((sum(map(used, pids)) - before) / took)
            wakes.append(max(woken(pid) - old for pid, old in zip(pids, slept, strict=True)) / took)
            # 2 % are asked for; it is more where others make the caches cold.
            if shares[-1] < 0.06 and wakes[-1] < 20:
                return
        pytest.fail(
            f"{len(pids)} processes use {shares} of a core, one wakes {wakes} times a second"
        )


async def test_b47_clients_that_come_and_go_leave_nothing() -> None:
    async with Cluster(NodeSpec(engines=[ENGINE])) as cluster:
        before, after = await reconnect(cluster, 120)
    for name in HUBS:
        assert after[name].rss - before[name].rss < 8 * MIB, (name, before, after)
