"""Our router before a worker of Dynamo's wheel."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Annotated, Client, NodeSpec, Settings
from actors.errors import (
    CallBackFailed,
    ConnectionLost,
    EncodeError,
    EngineError,
    NoWorkers,
    TooLarge,
    WorkerUnavailable,
)
from tests.e2e.standing import Standing, inspect, standing
from tests.interop.wheel import VALUES, Meeting, Program, meeting, needs_wheel, program
from tests.waiting import LONG, wait_until

pytestmark = [needs_wheel, pytest.mark.timeout(300)]

GENERATE, CONVERSE = "interop.theirs.generate", "interop.theirs.converse"
MIB = 1 << 20
CODECS = ["msgpack", "json"]


@pytest.fixture(scope="module", params=[("msgpack", "file"), ("json", "etcd")], ids="-".join)
def theirs(request: pytest.FixtureRequest) -> Iterator[tuple[Standing, Program]]:
    """A node of ours and a worker of theirs; the worker's codec varies, and where they meet."""
    codec, backend = request.param
    place = meeting(request, backend)
    # Under load a worker in Python takes longer than five seconds to dial in 512 times.
    spec = NodeSpec(**place.spec(), settings=Settings.load(dial_in_timeout=LONG))
    with program("worker", place, codec) as worker, standing(spec) as node:
        yield node, worker


@asynccontextmanager
async def calling(node: Standing) -> AsyncIterator[Client]:
    """A client; afterwards the router may hold no permit."""
    async with node.client() as client:
        await met(client)
        yield client
        await wait_until(lambda: free(client), what="the router holds no permit")


async def met(client: Client, endpoint: str = GENERATE) -> None:
    """Wait until the router knows the worker."""

    async def known() -> bool:
        try:
            await client.call(endpoint, {"do": "echo", "value": 1}, timeout=LONG)
        except (NoWorkers, WorkerUnavailable):
            return False
        return True

    await wait_until(known, LONG, "the router has found the worker")


async def free(client: Client) -> bool:
    return not (await inspect(client.ref("router")))["in_flight"]


async def read_into(got: list[int], client: Client, request: Any) -> None:
    async with client.stream(GENERATE, request, timeout=LONG) as items:
        async for item in items:
            got.append(item["number"])


async def collect(client: Client, request: Any, timeout: float = LONG, **options: Any) -> list[Any]:
    async with client.stream(GENERATE, request, timeout=timeout, **options) as items:
        return [item async for item in items]


async def test_values_come_back(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        for value in VALUES:
            assert await client.call(GENERATE, {"do": "echo", "value": value}) == value


async def test_items_come_in_order_and_once(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        items = await collect(client, {"do": "count", "n": 1000})
    assert items == [{"number": number} for number in range(1000)]


async def test_a_stream_of_nothing_is_a_clean_end(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        assert await collect(client, {"do": "count", "n": 0}) == []


async def test_annotated_items(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        items = await collect(client, {"do": "count", "n": 2}, annotated=True)
    assert items == [Annotated(data={"number": 0}), Annotated(data={"number": 1})]


async def test_metadata_and_request_id_reach_the_handler(theirs: tuple[Standing, Program]) -> None:
    node, worker = theirs
    name = f"request-{worker.codec}"
    async with calling(node) as client:
        call = {"do": "echo", "value": 1}
        await client.call(GENERATE, call, request_id=name, metadata={"who": "callhome"})
    assert (await worker.hear(event="start", id=name))["metadata"] == {"who": "callhome"}


async def test_bytes_travel_as_their_codec_can(theirs: tuple[Standing, Program]) -> None:
    node, worker = theirs
    async with calling(node) as client:
        if worker.codec == "msgpack":
            assert await client.call(GENERATE, {"do": "echo", "value": b"\0\xff"}) == b"\0\xff"
            assert await collect(client, {"do": "bytes", "n": 3}) == [b"\0\0\0"]
        else:
            with pytest.raises(EncodeError, match=r'request\["value"\]'):
                await client.call(GENERATE, {"do": "echo", "value": b"\0\xff"})
            assert await collect(client, {"do": "bytes", "n": 3}) == [[0, 0, 0]]


async def test_what_such_a_worker_cannot_take_is_refused_before_it_is_sent(
    theirs: tuple[Standing, Program],
) -> None:
    async with calling(theirs[0]) as client:
        for value in (np.zeros(3), np.zeros(MIB, np.uint8), {1, 2}):
            with pytest.raises(EncodeError):
                await client.call(GENERATE, {"do": "echo", "value": value}, timeout=LONG)


@pytest.mark.parametrize("error", ["ValueError", "RuntimeError", "ConnectionError", "TimeoutError"])
@pytest.mark.parametrize("before", [0, 3])
async def test_an_error_of_the_handler_comes_after_the_items_before_it(
    theirs: tuple[Standing, Program], error: str, before: int
) -> None:
    async with calling(theirs[0]) as client:
        got: list[int] = []
        with pytest.raises(EngineError, match="boom") as failed:
            await read_into(got, client, {"do": "fail", "n": before, "error": error})
    assert got == list(range(before))
    assert failed.value.remote_type == error


async def test_an_item_that_it_cannot_write_is_an_error(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        with pytest.raises(EngineError, match="serializing"):
            await collect(client, {"do": "unserialisable"})


async def test_an_endpoint_that_is_not_there(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        with pytest.raises(NoWorkers):
            await client.call("interop.theirs.nothing", {}, timeout=LONG)


# ------------------------------------------------------------------------------------ early ends


async def test_a_stop_reaches_the_handler_and_ends_the_stream_cleanly(
    theirs: tuple[Standing, Program],
) -> None:
    node, worker = theirs
    name = f"stop-{worker.codec}"
    async with calling(node) as client:
        request = {"do": "slow", "n": 10_000}
        async with client.stream(GENERATE, request, timeout=LONG, request_id=name) as items:
            got = []
            async for item in items:
                got.append(item["number"])
                if len(got) == 3:
                    items.stop()
    assert 3 <= len(got) < 2000, "long before it would have ended by itself"
    assert got == list(range(len(got)))
    assert (await worker.hear(event="cancelled", id=name))["stopped"]


@pytest.mark.parametrize("how", ["kill", "drop"])
async def test_a_kill_and_a_dropped_stream_reach_the_handler(
    theirs: tuple[Standing, Program], how: str
) -> None:
    node, worker = theirs
    name = f"{how}-{worker.codec}"
    async with calling(node) as client:
        request = {"do": "slow", "n": 10_000}
        async with client.stream(GENERATE, request, timeout=LONG, request_id=name) as items:
            await anext(items)
            if how == "kill":
                items.kill()
        assert (await worker.hear(event="cancelled", id=name))["killed"]


async def test_a_kill_before_the_first_item(theirs: tuple[Standing, Program]) -> None:
    node, worker = theirs
    name = f"early-{worker.codec}"
    async with calling(node) as client:
        request = {"do": "hang", "n": 0}
        async with client.stream(GENERATE, request, timeout=LONG, request_id=name):
            await worker.hear(event="start", id=name)
        assert (await worker.hear(event="cancelled", id=name))["killed"]


@pytest.mark.parametrize("codec", CODECS)
async def test_a_worker_that_is_killed_in_mid_stream(tmp_path: Path, codec: str) -> None:
    place = Meeting(str(tmp_path))
    with program("worker", place, codec) as worker, standing(NodeSpec(**place.spec())) as node:
        async with calling(node) as client:
            streams: list[list[int]] = [[] for _ in range(50)]

            async def read(got: list[int]) -> None:
                with pytest.raises(ConnectionLost, match="after 3 items"):
                    await read_into(got, client, {"do": "hang", "n": 3})

            async with asyncio.TaskGroup() as group:
                for got in streams:
                    group.create_task(read(got))
                await wait_until(lambda: all(len(got) == 3 for got in streams), LONG)
                os.kill(worker.process.pid, signal.SIGKILL)


# --------------------------------------------------------------------------------- sizes, numbers


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
async def test_large_bodies_both_ways(theirs: tuple[Standing, Program], size: int) -> None:
    async with calling(theirs[0]) as client:
        assert await client.call(GENERATE, {"do": "size", "value": "x" * size}) == size
        assert await client.call(GENERATE, {"do": "text", "n": size}) == "x" * size


@pytest.mark.parametrize("size", [32 << 10, MIB, 8 * MIB])
async def test_large_bytes_go_there(theirs: tuple[Standing, Program], size: int) -> None:
    node, worker = theirs
    async with calling(node) as client:
        request = {"do": "size", "value": bytes(size)}
        if worker.codec == "msgpack":
            assert await client.call(GENERATE, request, timeout=LONG) == size
        else:
            with pytest.raises(EncodeError, match=r'request\["value"\]: bytes are no JSON'):
                await client.call(GENERATE, request, timeout=LONG)


async def test_a_body_over_the_limit_is_refused_here_and_hurts_nothing(
    theirs: tuple[Standing, Program],
) -> None:
    async with calling(theirs[0]) as client:
        async with client.stream(GENERATE, {"do": "hang", "n": 1}, timeout=LONG) as other:
            assert await anext(other) == {"number": 0}
            with pytest.raises(TooLarge):
                await client.call(GENERATE, {"do": "size", "value": "x" * (33 * MIB)}, timeout=LONG)
            other.stop()
            assert [item async for item in other] == []
        assert await client.call(GENERATE, {"do": "echo", "value": 2}) == 2


async def test_512_streams_at_once(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client:
        request = {"do": "count", "n": 20}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(collect(client, request, 2 * LONG)) for _ in range(512)]
    want = [{"number": number} for number in range(20)]
    assert all(task.result() == want for task in tasks)


# ---------------------------------------------------------------------------------------- two-way


async def test_a_two_way_stream(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client, client.open(CONVERSE, timeout=LONG) as chat:
        for number in range(300):
            await chat.send({"number": number})
            assert await chat.recv() == {"number": number}
        await chat.end()
        assert [item async for item in chat] == [{"count": 300}]


async def test_many_items_ahead_of_the_answers(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client, client.open(CONVERSE, timeout=LONG) as chat:

        async def send() -> None:
            for number in range(2000):
                await chat.send(number)
            await chat.end()

        sending = asyncio.create_task(send())
        got = [item async for item in chat]
        await sending
    assert got == [*range(2000), {"count": 2000}]


async def test_a_two_way_stream_whose_handler_fails(theirs: tuple[Standing, Program]) -> None:
    async with calling(theirs[0]) as client, client.open(CONVERSE, timeout=LONG) as chat:
        await chat.send("one")
        assert await chat.recv() == "one"
        await chat.send("raise")
        with pytest.raises(EngineError, match="boom"):
            await chat.recv()


@pytest.mark.parametrize("how", ["stop", "kill", "drop"])
async def test_early_ends_of_a_two_way_stream(theirs: tuple[Standing, Program], how: str) -> None:
    node, worker = theirs
    name = f"two-way-{how}-{worker.codec}"
    async with calling(node) as client:
        async with client.open(CONVERSE, timeout=LONG, request_id=name) as chat:
            await chat.send(1)
            assert await chat.recv() == 1
            if how == "stop":
                chat.stop()
                assert [item async for item in chat] == []
            elif how == "kill":
                chat.kill()
        ended = await worker.hear(event="cancelled", id=name)
    assert ended["stopped"]
    assert ended["killed"] == (how != "stop")


async def test_the_wrong_shape_is_told_in_time(theirs: tuple[Standing, Program]) -> None:
    """Such a worker acknowledges it and is silent then; its record does not tell the shape."""
    spec = NodeSpec(**theirs[1].place.spec(), settings=Settings.load(dial_in_timeout=4.0))
    with standing(spec) as node:
        async with calling(node) as client:
            with pytest.raises(
                CallBackFailed, match=r"kind of request: call\(\)/stream\(\) or open"
            ):
                async with client.open(GENERATE, timeout=LONG) as chat:
                    await chat.recv()
            with pytest.raises(
                CallBackFailed, match=r"kind of request: call\(\)/stream\(\) or open"
            ):
                await client.call(CONVERSE, 1, timeout=LONG)
