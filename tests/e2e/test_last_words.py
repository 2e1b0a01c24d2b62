"""Who ends while another is too busy to read: nothing that was told is lost, nobody waits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from actors import ActorSpec, Client, Cluster, Context, EngineSpec, NodeSpec, RouterSpec
from actors.errors import PeerLost
from tests.e2e.bus_engines import Note, Noted, Sleep
from tests.e2e.standing import Standing, standing
from tests.e2e.watching import inspect
from tests.waiting import DEADLINE, LONG, wait_until, wait_until_sync

HERE = "tests.e2e.bus_engines:"
MIB = 1 << 20


async def large(request: str, ctx: Context) -> AsyncIterator[str]:
    """Three items of 4 MiB, once there is a file of that name."""
    while not os.path.exists(request):  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.005)
    for _ in range(3):
        yield "x" * (4 * MIB)


LARGE = EngineSpec("t.large.go", large, capacity=8, restart="never", name="large")


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(actors=[ActorSpec("sink", HERE + "Sink")])) as found:
        yield found


async def counted(client: Client) -> int:
    async with client.ref("sink").stream(Noted(), timeout=DEADLINE) as answers:
        return int((await anext(answers))[0])


@pytest.mark.parametrize(("count", "size"), [(10, 8 * MIB), (2000, 10)])
async def test_b76_what_was_told_without_an_error_is_handled_though_the_client_has_left(
    node: Standing, count: int, size: int
) -> None:
    async with node.client() as client:
        before = await counted(client)
        await client.ref("sink").tell(Sleep(1.0))
        for number in range(count):
            await client.ref("sink").tell(Note(number, bytes(size)))
    async with node.client() as client:

        async def came() -> bool:
            return await counted(client) == before + count

        await wait_until(came, LONG, f"{count} notes")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_b76_streams_of_an_engine_that_ends_while_their_reader_is_busy_all_end(
    number: signal.Signals, tmp_path: Path
) -> None:
    """More than may be under way to one peer: what is held back in the engine is sent as it stops,
    and lost when it is killed, and then those who wait for it are told.
    """
    async with (
        Cluster(NodeSpec(routers=[RouterSpec()], engines=[LARGE])) as cluster,
        cluster.client() as client,
    ):
        go = tmp_path / "go"
        (pid,) = (each.address.pid for each in client.records() if each.kind == "engine")

        async def whole() -> bool:
            try:
                async with client.stream(LARGE.endpoint, str(go)) as items:
                    return len([item async for item in items]) == 3
            except PeerLost:
                return False

        streams = [asyncio.create_task(whole()) for _ in range(8)]

        async def begun() -> bool:
            return bool((await inspect(client, "large")).get("in_flight") == 8)

        await wait_until(begun, what="the engine has them all")
        go.touch()
        time.sleep(0.7)  # noqa: ASYNC251 - nothing is read meanwhile
        os.kill(pid, number)
        wait_until_sync(lambda: not runs(pid), LONG, "the engine's end")
        async with asyncio.timeout(LONG):
            ended = await asyncio.gather(*streams)
        assert all(ended) or number == signal.SIGKILL


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
