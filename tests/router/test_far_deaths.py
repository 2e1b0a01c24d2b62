"""Processes of two nodes that are killed or freeze with 50 streams open between them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, ResponseStream, Settings
from actors.errors import CallHomeError, ConnectionLost, PeerLost, WorkerLost
from tests.e2e.standing import FarClient, FarCluster
from tests.e2e.watching import Trace, inspect, kill
from tests.waiting import DEADLINE, LONG, wait_until

SLOW, OTHER = "t.slow.go", "t.brisk.go"
ENGINES = "tests.e2e.cancel_engines"
COUNT = 50
#: What is said of a node that was silent for so long that it was given up: of a death callers hear
#: at once, and not because of that.
SILENT = "not a byte for"
#: Limits of B124, in place of five seconds and more.
IMPATIENT = Settings.load(ack_timeout=2.0, dial_in_timeout=2.0, prologue_timeout=2.0)


@asynccontextmanager
async def nodes(
    trace: Trace, settings: Settings | None = None
) -> AsyncIterator[tuple[Cluster, Client]]:
    """Two engines on node ``b``, a client on node ``a``."""
    spec = NodeSpec(
        engines=[
            EngineSpec(SLOW, f"{ENGINES}:Slow", args={"trace": trace.path}),
            EngineSpec(OTHER, f"{ENGINES}:Brisk"),
        ],
        settings=settings or Settings.load(),
    )
    async with FarCluster(spec) as cluster, cluster.client() as client:
        yield cluster, client


async def open_all(client: Client, trace: Trace) -> list[ResponseStream]:
    """All streams, each with two items taken."""
    streams = [client.stream(SLOW, {"items": 2, "tag": number}) for number in range(COUNT)]
    for stream in streams:
        await stream.__aenter__()
    assert [await anext(stream) for stream in streams] == [0] * COUNT
    assert [await anext(stream) for stream in streams] == [1] * COUNT
    await trace.until("sent", COUNT)
    return streams


async def ends(streams: list[ResponseStream]) -> list[CallHomeError]:
    """The error behind each stream's items."""

    async def end(stream: ResponseStream) -> CallHomeError:
        with pytest.raises(CallHomeError) as caught:
            await anext(stream)
        return caught.value

    async with asyncio.timeout(LONG):
        return await asyncio.gather(*map(end, streams))


async def no_permits(client: Client) -> None:
    async def none() -> bool:
        return (await inspect(client, "router")).get("in_flight") == 0

    await wait_until(none, what="all permits are back")


async def answers(client: Client, endpoint: str) -> None:
    """Wait until an endpoint on the other node serves (again)."""

    async def served() -> bool:
        try:
            request = {"wait": 0.0} if endpoint == SLOW else {"items": 1}
            await client.call(endpoint, request, timeout=DEADLINE)
        except CallHomeError:
            return False
        return True

    await wait_until(served, LONG, f"{endpoint} answers")


def pid(client: Client, name: str) -> int:
    """The process of an actor of node ``b``."""
    return client.ref(name).address.pid


@pytest.mark.parametrize("who", ["ingress", SLOW])
async def test_a_killed_process_of_the_other_node(tmp_path: Path, who: str) -> None:
    trace = Trace(tmp_path)
    async with nodes(trace) as (_, client):
        streams = await open_all(client, trace)
        victim = pid(client, who)
        kill(victim)
        for error in await ends(streams):
            assert isinstance(error, ConnectionLost)
            assert SILENT not in str(error)
            if who == SLOW:
                assert str(victim) in str(error)
            else:
                assert "after 2 items" in str(error)
        await no_permits(client)
        if who == "ingress":  # the engine is told that nobody waits for its streams
            await trace.until("cancelled", COUNT)
        await answers(client, OTHER)
        await answers(client, SLOW)
        await no_permits(client)


async def just_accepted(client: Client, number: signal.Signals) -> None:
    """The ingress goes 0 to 20 ms behind requests."""
    ingress = pid(client, "ingress")
    request = {"wait": 60.0}
    calls = []
    for _ in range(20):
        calls.append(asyncio.ensure_future(client.call(SLOW, request, timeout=None)))
        await asyncio.sleep(0.001)
    kill(ingress, number)
    calls += [asyncio.ensure_future(client.call(SLOW, request)) for _ in range(5)]
    try:
        async with asyncio.timeout(LONG):  # each has a limit of its own, or ends with its node
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, CallHomeError) for each in results), results
        await no_permits(client)

        async def left() -> bool:
            ways = (await inspect(client, "router"))["ways"]
            streams: int = sum(each["streams"] for each in ways)
            return streams <= 1  # it may follow the records again

        await wait_until(left, what="no stream is left")
    finally:
        with contextlib.suppress(ProcessLookupError):
            kill(ingress, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_b124_the_other_node_goes_just_after_it_accepted(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with nodes(Trace(tmp_path), IMPATIENT) as (_, client):
        await just_accepted(client, number)


async def test_a_worker_that_dies_before_it_takes_its_streams(tmp_path: Path) -> None:
    async with nodes(Trace(tmp_path)) as (_, client):
        victim = pid(client, OTHER)
        kill(victim, signal.SIGSTOP)
        calls = [asyncio.ensure_future(client.call(OTHER, {"items": 1})) for _ in range(10)]

        async def arrived() -> bool:
            return int((await inspect(client, "ingress")).get("in_flight", 0)) >= len(calls)

        await wait_until(arrived, what="the other node has all of them")
        kill(victim)
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, WorkerLost)  # so that another one would be asked
            assert error.details["instance"]
            assert f"(pid {victim}) died before" in str(error)
        await no_permits(client)
        await answers(client, OTHER)


async def test_a_killed_router(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with nodes(trace) as (_, client):
        assert isinstance(client, FarClient)
        streams = await open_all(client, trace)
        kill(pid(client, "router"))
        for error in await ends(streams):
            assert isinstance(error, PeerLost)
        await trace.until("cancelled", COUNT)
        await answers(client, SLOW)
        await no_permits(client)


async def cut_cable(client: Client, trace: Trace) -> None:
    """The ingress stops with streams open."""
    streams = await open_all(client, trace)
    ingress = pid(client, "ingress")
    kill(ingress, signal.SIGSTOP)
    try:
        for error in await ends(streams):
            assert isinstance(error, ConnectionLost)
            assert SILENT in str(error)
            assert "4 are allowed" in str(error)
        await no_permits(client)
    finally:
        kill(ingress, signal.SIGCONT)
    await trace.until("cancelled", COUNT)
    await answers(client, SLOW)


async def test_b124_a_node_that_answers_no_more_as_with_a_cut_cable(tmp_path: Path) -> None:
    """Just after it accepted, and in the middle of streams: two pairs of nodes, since the silence
    of a connection has to be waited for.
    """
    trace = Trace(tmp_path)
    async with (
        nodes(Trace(tmp_path, "accepted"), IMPATIENT) as (_, one),
        nodes(trace) as (_, other),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(just_accepted(one, signal.SIGSTOP))
        group.create_task(cut_cable(other, trace))
