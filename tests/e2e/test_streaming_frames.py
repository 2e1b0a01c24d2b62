"""Frames, arrays and buffers between a client and real engines: types, roads, leases."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import Client, Cluster, Frame, NodeSpec, ResponseStream, Settings
from actors.errors import (
    EngineError,
    FrameReleased,
    MemoryExhausted,
    NoWorkers,
    PeerLost,
    Unsupported,
)
from tests.e2e.engines import ARRAYS, ECHO, HIDDEN, PART, set_dumpable, set_powers
from tests.e2e.standing import ROADS, Standing, inspect, standing, wait_idle, wait_returned
from tests.leaks import shared
from tests.waiting import LONG, wait_until

GO = "t.part.go"
KIB, MIB = 1 << 10, 1 << 20
both = pytest.mark.parametrize("codec", ["msgpack", "json"])
around_the_threshold = pytest.mark.parametrize("size", [0, 1, 32 * KIB - 1, 32 * KIB, 300 * KIB])


@pytest.fixture(scope="module", params=ROADS)
def node(request: pytest.FixtureRequest) -> Iterator[Standing]:
    with standing(NodeSpec(engines=[PART, ECHO, ARRAYS, HIDDEN]), request.param) as found:
        yield found


async def echo(client: Client, value: Any, codec: str = "msgpack", to: str = GO) -> Any:
    return await client.call(to, {"do": "echo", "value": value}, timeout=LONG, codec=codec)


async def lends_nothing(client: Client, endpoint: str = GO) -> None:
    """Wait until neither the client nor the engine has a slot in use."""
    await wait_returned(client)

    async def free() -> bool:
        return not (await client.call(endpoint, {"do": "memory"}, timeout=LONG))["slots"]

    await wait_until(free, what="leases of the engine's frames are back")


# ------------------------------------------------------------------------------------------ types


@both
@around_the_threshold
async def test_a_type_depends_on_neither_size_nor_road(
    node: Standing, codec: str, size: int
) -> None:
    data = bytes(index % 251 for index in range(size))
    array = np.frombuffer(data, "u1").copy()
    sent = {
        "bytes": data,
        "in": [{"deep": (data, bytearray(data))}, memoryview(data)],
        "array": array,
        "more": [array[: size // 4 * 4].view(">i4"), {"f": array.reshape(1, -1).T}],
    }
    async with node.client() as client:
        found = await echo(client, sent, codec)
        assert type(found["bytes"]) is bytes
        assert found["bytes"] == data
        deep, view = found["in"]
        assert [type(each) for each in deep["deep"]] == [bytes, memoryview]
        assert deep["deep"] == (data, data)
        assert type(view) is memoryview
        assert view.readonly
        assert view == data
        integers, column = found["more"][0], found["more"][1]["f"]
        for one, other in (
            (found["array"], array),
            (integers, array[: size // 4 * 4].view(">i4")),
            (column, array.reshape(1, -1).T),
        ):
            assert type(one) is np.ndarray
            assert not one.flags.writeable
            assert (one.dtype.str, one.shape) == (other.dtype.str, other.shape)
            assert np.array_equal(one, other)
        del found, deep, view, integers, column, one
        await lends_nothing(client)


# ----------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("size", [16, 100_000])
async def test_the_same_frame_yielded_twice_is_an_error(node: Standing, size: int) -> None:
    async with node.client() as client:
        request = {"do": "frame_twice", "size": size}
        async with client.stream(GO, request, timeout=LONG) as items:
            first = await anext(items)
            assert (first.array == 1).all()
            with pytest.raises(FrameReleased, match="handed on already"):
                await anext(items)
        del first
        await lends_nothing(client)


@pytest.mark.parametrize("size", [16, 100_000])
async def test_a_fresh_frame_for_each_item_is_100_different_ones(node: Standing, size: int) -> None:
    async with node.client() as client:
        async with client.stream(GO, {"do": "frames", "n": 100, "size": size}, timeout=LONG) as s:
            frames = [frame async for frame in s]
        for number, frame in enumerate(frames):
            assert type(frame) is Frame
            assert frame.shape == (2, size)
            assert not frame.array.flags.writeable
            assert (frame.array == number).all()
        del frames, frame
        await lends_nothing(client)


async def test_a_frame_is_a_request_once(node: Standing) -> None:
    async with node.client() as client:
        frame = client.frames.new((1000, 1000), "u1")
        frame.array[:] = 3
        assert await client.call(GO, frame, timeout=LONG) == 3_000_000
        assert not frame.array.flags.writeable
        with pytest.raises(FrameReleased):
            await client.call(GO, frame, timeout=LONG)
        del frame
        await lends_nothing(client)


async def test_frames_go_both_ways_in_a_bidirectional_stream(node: Standing) -> None:
    async with node.client() as client, client.open("t.echo.go", timeout=LONG) as chat:
        for number in range(20):
            frame = client.frames.new((100, 1000), "u1")
            frame.array[:] = number
            await chat.send(frame)
            with await chat.recv() as back:
                assert (back.array == number + 1).all()
            await chat.send({"array": np.full(50_000, number, "u1"), "small": number})
            other = await chat.recv()
            assert (other["array"] == number).all()
            assert other["small"] == number
        with pytest.raises(FrameReleased):
            await chat.send(frame)
        await chat.end()
        assert await chat.recv() == {"count": 40}
        with pytest.raises(EOFError):
            await chat.recv()
        del frame, back, other
        await wait_returned(client)


async def test_a_refused_frame_comes_back(node: Standing) -> None:
    async with node.client() as client:
        with pytest.raises(Unsupported, match="stream of requests"):
            await client.call("t.echo.go", client.frames.new(100_000, "u1"), timeout=LONG)
        await wait_returned(client)
        with pytest.raises(NoWorkers):
            await client.call("t.nobody.go", client.frames.new(100_000, "u1"), timeout=LONG)
        await wait_returned(client)


async def test_a_handler_that_raises_keeps_no_frame(node: Standing) -> None:
    async with node.client() as client:
        request: dict[str, Any] = {"do": "raise", "frame": client.frames.new(100_000, "u1")}
        with pytest.raises(EngineError, match="boom") as failed:
            await client.call(GO, request, timeout=LONG)
        assert failed.value.remote_type == "ValueError"
        request = {"n": 3, "size": 40_000, "raise_at": 2}
        request["frame"] = client.frames.new(100_000, "u1")
        async with client.stream("t.arrays.go", request, timeout=LONG) as items:
            assert (await anext(items)).size == (await anext(items)).array.size
            with pytest.raises(EngineError, match="boom 99999"):
                await anext(items)
        request.clear()
        await wait_returned(client)


# ----------------------------------------------------------------------------------------- leases


async def test_leases_of_a_killed_stream_come_back(node: Standing) -> None:
    async with node.client() as client:
        request = {"do": "frames", "n": 100_000, "size": 50_000}
        async with client.stream(GO, request, timeout=LONG) as items:
            kept = [await anext(items) for _ in range(3)]
            await wait_until(lambda: items.received > 50, what="items that nobody will take")
        assert [int(frame.array[0, 0]) for frame in kept] == [0, 1, 2]
        await wait_idle(client)
        held = await client.call(GO, {"do": "memory"}, timeout=LONG)
        if node.road == "node":  # on another node they are leases of that node's router
            assert held["slots"] >= 3
        kept.clear()
        await lends_nothing(client)


async def test_leases_of_a_generator_in_a_thread_come_back(node: Standing) -> None:
    async with node.client() as client:
        request = {"n": 1000, "size": 40_000}
        async with client.stream("t.arrays.go", request, timeout=LONG) as items:
            for number in range(5):
                item = await anext(items)
                array = item.array if number % 2 else item
                assert (array == number).all()
            await wait_until(lambda: items.received > 50, what="items that nobody will take")
            del item, array
        await wait_idle(client)
        for _ in range(3):  # what a thread had ready must not stay in the arena either
            async with client.stream("t.arrays.go", request | {"n": 300}, timeout=LONG) as items:
                await anext(items)
        await wait_idle(client)
        await no_slots_of(client, "arrays")


async def no_slots_of(client: Client, engine: str) -> None:
    """Wait until the arena of a worker is empty, as its memory counters say."""

    async def free() -> bool:
        counters = (await inspect(client.ref(engine)))["counters"]
        return not counters["memory.slots"]

    await wait_until(free, what=f"the arena of {engine} is empty")


async def test_frames_that_arrived_are_readable_after_their_owner_died() -> None:
    async with Cluster(NodeSpec(engines=[PART])) as cluster, cluster.client() as client:
        (child,) = [each for each in cluster.nodes[0].children if each.name == "part"]
        kept: list[Any] = []
        request = {"do": "frames", "n": 1_000, "size": 50_000}
        async with client.stream(GO, request, timeout=LONG) as items:
            await wait_until(lambda: items.received >= 100)
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(PeerLost, match="SIGKILL"):
                await take_all(items, kept)
        assert len(kept) == items.received >= 100
        for number, frame in enumerate(kept):
            assert (frame.array == number % 256).all()


async def take_all(items: ResponseStream, into: list[Any]) -> None:
    async for item in items:
        into.append(item)


# ------------------------------------------------------------------------------------ other roads


async def test_a_full_arena_sends_bytes_in_line() -> None:
    settings = Settings.load(arena_step=MIB, arena_limit=2 * MIB)
    spec = NodeSpec(engines=[PART], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        request = {"do": "hold", "n": 3, "size": 512 * KIB}
        async with client.stream(GO, request, timeout=LONG) as items:
            async for item in items:
                assert item.shape == (512 * KIB,)
                assert (item == 7).all()
        held = [client.frames.new(512 * KIB, "u1") for _ in range(3)]
        with pytest.raises(MemoryExhausted):
            client.frames.new(MIB, "u1")
        array = np.full(700 * KIB, 9, "u1")
        assert np.array_equal(await echo(client, array), array)
        del item
        held.clear()
        await lends_nothing(client)


@pytest.fixture
def hidden_memory() -> Iterator[None]:
    """This process's memory cannot be mapped by others, nor can it map theirs."""
    powers = set_powers()
    set_dumpable(False)
    try:
        try:
            os.stat("/proc/1/fd/0")
        except OSError:
            yield
        else:
            pytest.skip("this system lets a process without powers look into others")
    finally:
        set_dumpable(True)
        set_powers(powers)


@pytest.mark.usefixtures("hidden_memory")
async def test_where_proc_is_closed_the_socket_leads_to_memory(node: Standing) -> None:
    to = "t.hidden.go"
    async with node.client() as client:
        request = {"do": "frames", "n": 20, "size": 50_000}
        async with client.stream(to, request, timeout=LONG) as items:
            frames = [frame async for frame in items]
        for number, frame in enumerate(frames):
            assert (frame.array == number).all()
        roads = client.runtime.memory.reading.roads
        assert {roads.taken(owner) for owner in roads.owners} == {"socket"}
        assert {each["road"] for each in client.memory()["borrowed"]} == {"socket"}
        frame = client.frames.new((1000, 1000), "u1")
        frame.array[:] = 3
        assert await client.call(to, frame, timeout=LONG) == 3_000_000
        if node.road == "node":
            asked = {"do": "road", "owner": client.runtime.address.incarnation}
            assert await client.call(to, asked, timeout=LONG) == "socket"
        del frame, frames
        await lends_nothing(client, to)


async def test_where_memory_cannot_be_mapped_bytes_go_in_line(node: Standing) -> None:
    to = "t.hidden.go"
    async with node.client(frame_road="inline") as client:
        array = np.arange(100_000, dtype="i4")
        for _ in range(2):
            assert np.array_equal(await echo(client, array, to=to), array)
        assert not client.runtime.memory.reading.mapped, "the engine's memory was mapped"
        frame = client.frames.new((1000, 1000), "u1")
        frame.array[:] = 3
        assert await client.call(to, frame, timeout=LONG) == 3_000_000
        request = {"do": "frames", "n": 20, "size": 50_000}
        async with client.stream(to, request, timeout=LONG) as items:
            frames = [frame async for frame in items]
        for number, frame in enumerate(frames):
            assert type(frame) is Frame
            assert (frame.array == number).all()
        del frame, frames
        await lends_nothing(client, to)


async def test_b07_between_nodes_bytes_go_in_line(node: Standing) -> None:
    """No handle leaves its node, and nothing of the send is left in /dev/shm."""
    before = shared()
    array = np.arange(MIB, dtype="i4")
    async with node.client() as client:
        assert np.array_equal(await echo(client, array), array)
        if node.road == "nodes":
            engines = {each.address.incarnation for each in client.records()}
            assert engines.isdisjoint(client.runtime.memory.reading.roads.owners)
        assert shared() <= before
        await lends_nothing(client)
