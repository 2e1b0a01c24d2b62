"""Faults that people met with shared memory elsewhere, as they would show between real processes of
a node; and what the node tells of its memory.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import Client, Cluster, EngineSpec, Frame, NodeSpec, Settings
from actors.errors import EngineError, MemoryExhausted, PeerLost
from tests.e2e import frames
from tests.e2e.frame_engines import (
    BOOMS,
    DOUBLING,
    ECHO,
    HERE,
    HOLDS,
    SPOILS,
    THREAD,
    WAITS,
    check,
    write,
)
from tests.e2e.frames import memory_of, wait_free
from tests.e2e.standing import Standing, standing, wait_idle, wait_returned
from tests.leaks import shared
from tests.waiting import DEADLINE, LONG, require_root, wait_until

KIB, MIB = 1 << 10, 1 << 20
IDLE = 0.4
CHECKS = EngineSpec(endpoint="m.checks.go", engine=HERE + "checks", name="checks", replicas=3)
#: Small enough that what is under test is met at once: 4 slots of 1 MiB.
SMALL: dict[str, Any] = {"arena_step": MIB, "arena_limit": 4 * MIB}


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    """Engines whose arenas are small and soon given back."""
    settings = Settings.load(**SMALL, arena_idle=IDLE)
    engines = [WAITS, THREAD, ECHO, SPOILS, BOOMS]
    with standing(NodeSpec(engines=engines, settings=settings)) as found:
        yield found


# ---------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("name", ["waits", "thread"])
async def test_b05_a_slot_is_never_reused_while_a_reader_holds_it(
    node: Standing, name: str
) -> None:
    async with node.client() as client:
        request = {"n": 24, "size": MIB}
        async with client.stream(f"m.{name}.go", request, timeout=2 * LONG) as items:
            kept = [(await anext(items)).array for _ in range(4)]

            async def waits() -> bool:
                return bool((await memory_of(client, name))["waiting"])

            await wait_until(waits, what="the producer waits")
            assert items.received == 4
            for number, array in enumerate(kept):
                check(array, number)
            del array
            kept.clear()
            number = 4
            async for frame in items:
                check(frame.array, number)
                del frame
                number += 1
        assert number == 24
        await wait_free(client, name)


@pytest.mark.parametrize("name", ["waits", "thread"])
async def test_the_kill_of_a_stream_ends_its_wait_for_room(node: Standing, name: str) -> None:
    async with node.client() as client:
        async with client.stream(f"m.{name}.go", {"n": 99, "size": MIB}, timeout=2 * LONG) as items:
            kept = [await anext(items) for _ in range(4)]

            async def waiting(count: int = 1) -> bool:
                return len((await memory_of(client, name))["waiting"]) == count

            await wait_until(waiting, what="the producer waits")
        await wait_until(lambda: waiting(0), what="nobody waits any more")
        await wait_idle(client)
        held = (await memory_of(client, name))["leases"]
        assert [(each["actor"], each["size"]) for each in held] == [
            (client.runtime.address.name, MIB)
        ] * 4
        kept.clear()
        await wait_free(client, name)


async def test_waiting_for_room_blocks_nobody_else_and_ends_in_time(node: Standing) -> None:
    async with node.client(**SMALL) as client:
        held = [client.frames.new(MIB, "u1") for _ in range(4)]
        task = asyncio.create_task(client.frames.wait_new(MIB, "u1", timeout=LONG))
        assert await client.call("m.echo.go", {"small": 1}, timeout=DEADLINE) == {"small": 1}
        assert [each["size"] for each in client.memory()["waiting"]] == [MIB]
        task.cancel()
        await asyncio.wait([task])
        assert client.memory()["waiting"] == []
        with pytest.raises(MemoryExhausted, match="this process itself"):
            await client.frames.wait_new(MIB, "u1", timeout=0.2)
        array = np.arange(MIB // 2, dtype="u1")  # finds no room: in line
        assert np.array_equal(await client.call("m.echo.go", array, timeout=DEADLINE), array)
        held.clear()
        await wait_returned(client)


# -------------------------------------------------------------------- segments, and who has them


async def test_idle_segments_go_at_both_ends(node: Standing) -> None:
    async with node.client(**SMALL, arena_idle=IDLE) as client:
        for _ in range(2):  # the second time with segments of new numbers
            frame = write(client.frames.new(MIB, "u1"), 5)
            back = await client.call("m.echo.go", frame, timeout=DEADLINE)
            check(back.array, 5)
            assert client.memory()["segments"]
            del frame, back

            async def gone() -> bool:
                client.runtime.links.send_releases()
                mine, theirs = client.memory(), await memory_of(client, "echo")
                return not any(each[key] for each in (mine, theirs) for key in KEYS)

            await wait_until(gone, what="no segment is left, and none is mapped")
        assert client.runtime.memory.reading.mapped == 0


KEYS = ("segments", "leases", "borrowed")


# ------------------------------------------------------------------------------------ field reports


async def test_b02_a_killed_producer_leaves_nothing_and_disturbs_nobody() -> None:
    before = shared()
    settings = Settings.load(arena_step=4 * MIB, arena_limit=16 * MIB)
    spec = NodeSpec(engines=[WAITS, HOLDS], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        pids = {child.name: child.pid for child in cluster.nodes[0].children}
        async with client.stream("m.holds.go", {"n": 10, "size": MIB}, timeout=2 * LONG) as held:
            assert await anext(held) == 10
            request = {"n": 200, "size": 64 * KIB}
            async with client.stream("m.waits.go", request, timeout=2 * LONG) as items:
                number = 0
                async for frame in items:
                    check(frame.array, number)
                    del frame
                    number += 1
                    if number == 50:
                        os.kill(pids["holds"], signal.SIGKILL)
            assert number == 200
            with pytest.raises(PeerLost, match="SIGKILL"):
                await anext(held)
        # The folder of another run of these tests is nobody's for a moment.
        await wait_until(lambda: shared() <= before, what="no file is left")
        await wait_until(lambda: not _maps_of("holds", client), what="its memory is unmapped")


def _maps_of(name: str, client: Client) -> list[dict[str, Any]]:
    return [each for each in client.memory()["borrowed"] if each["actor"] == name]


async def test_b08_a_dead_and_a_stopped_reader_hold_up_nobody() -> None:
    settings = Settings.load(arena_step=MIB, arena_limit=8 * MIB, window_bytes=512 * KIB)
    spec = NodeSpec(engines=[CHECKS], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        pids = {child.name: child.pid for child in cluster.nodes[0].children}
        workers = {each.worker: each.instance for each in await client.workers("m.checks.go")}
        dead, stopped, third = sorted(workers)
        answered: dict[str, int] = dict.fromkeys(workers, 0)

        async def feed(name: str) -> None:
            async with client.open("m.checks.go", instance=workers[name], timeout=2 * LONG) as chat:
                number = 0
                while number < 40 or not ready.is_set():  # else one may be done before the others
                    frame = await client.frames.wait_new(128 * KIB, "u1", timeout=LONG)
                    await chat.send(write(frame, number))
                    assert await chat.recv() == number
                    number += 1
                    answered[name] = number
                    await asyncio.sleep(0.01)

        ready = asyncio.Event()
        tasks = {name: asyncio.create_task(feed(name)) for name in workers}
        await wait_until(lambda: min(answered.values()) >= 5, LONG)
        os.kill(pids[stopped], signal.SIGSTOP)
        os.kill(pids[dead], signal.SIGKILL)
        with pytest.raises(PeerLost, match="SIGKILL"):
            await tasks[dead]

        def free_of_the_dead() -> bool:
            return not any(each["pid"] == pids[dead] for each in client.memory()["leases"])

        await wait_until(free_of_the_dead, LONG, "the dead one has no lease")
        at = answered[third]
        await wait_until(lambda: answered[third] >= at + 50, LONG, "the third goes on")
        assert not tasks[stopped].done()
        os.kill(pids[stopped], signal.SIGCONT)
        ready.set()
        await tasks[stopped]  # the exact sequence, to its end
        await tasks[third]
        await wait_returned(client)


async def test_b11_segments_that_grow_again_and_again_are_all_read() -> None:
    settings = Settings.load(arena_step=MIB, arena_limit=64 * MIB)
    spec = NodeSpec(engines=[DOUBLING], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        async with client.stream("m.doubling.go", {"n": 19}, timeout=2 * LONG) as items:
            await asyncio.sleep(0.5)  # what the report asks for: nobody reads for so long
            found = [item async for item in items]
        assert [each.nbytes for each in found] == [64 << n for n in range(19)] + [64]
        for number, each in enumerate(found[:-1]):
            assert (each == number).all()
        assert (found[-1] == 99).all()
        assert len((await memory_of(client, "doubling"))["segments"]) > 3
        del found, each
        await wait_free(client, "doubling")


async def test_b13_what_is_empty_needs_no_segment(node: Standing) -> None:
    async with node.client() as client:
        sent = {"table": np.zeros((0, 3), "f4"), "bytes": b"", "number": np.array(5.0)}
        back = await client.call("m.echo.go", sent, timeout=DEADLINE)
        for name in ("table", "number"):
            assert (back[name].shape, back[name].dtype) == (sent[name].shape, sent[name].dtype)  # type: ignore[attr-defined]
            assert np.array_equal(back[name], sent[name])  # type: ignore[arg-type]
        assert back["bytes"] == b""
        empty = await client.call("m.echo.go", client.frames.new((0, 3), "f4"), timeout=DEADLINE)
        assert (empty.shape, empty.dtype.str) == ((0, 3), "<f4")
        assert client.memory()["segments"] == []


async def test_b17_no_reader_can_write_and_no_other_sees_it_try(node: Standing) -> None:
    async with node.client() as client:
        shared = await client.call("m.echo.go", np.full(100_000, 3, "u1"), timeout=DEADLINE)
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 1
        first = await client.call("m.spoils.go", shared, timeout=DEADLINE)
        assert "read-only" in first["said"]
        assert (first["copy"], first["seen"]) == (9, 3)
        second = await client.call("m.echo.go", shared, timeout=DEADLINE)
        assert (second == 3).all()
        del shared, second
        await wait_free(client, "echo")


async def test_b22_the_error_of_a_handler_is_what_the_caller_gets(node: Standing) -> None:
    async with node.client() as client:
        frame = write(client.frames.new(100_000, "u1"), 1)
        with pytest.raises(EngineError, match="boom") as failed:
            await client.call("m.booms.go", frame, timeout=DEADLINE)
        assert failed.value.remote_type == "ValueError"
        del frame, failed
        await wait_returned(client)
        await wait_free(client, "booms")


async def test_b23_a_reader_that_was_paused_reads_what_was_sent(node: Standing) -> None:
    async with node.client() as client:
        os.kill(node.pids["echo"], signal.SIGSTOP)
        try:
            frame = write(client.frames.new(MIB, "u1"), 23)
            task = asyncio.create_task(client.call("m.echo.go", frame, timeout=2 * LONG))
            await asyncio.sleep(2.0)  # twice as long as anybody waits for an answer
            assert not task.done()
        finally:
            os.kill(node.pids["echo"], signal.SIGCONT)
        # Of the two outcomes that the report allows ours is always the frame, whole.
        back = await task
        check(back.array, 23)
        del back, task
        await wait_returned(client)


# ---------------------------------------------------------------------------- programs, in short


async def test_resident_memory_is_flat_over_many_frames(node: Standing) -> None:
    async with node.client() as client:
        seen = await frames.keep_none(client, node.pids["waits"], 3_000, 64 * KIB)
    for end in zip(*seen, strict=True):
        assert max(end) - end[0] < 4 * MIB, seen


@pytest.mark.parametrize("name", ["waits", "thread"])
async def test_a_slow_reader_of_an_arena_of_8_slots_gets_every_frame_in_order(
    node: Standing, name: str
) -> None:
    async with node.client() as client:
        await frames.read_slowly(client, name, 100, SMALL["arena_limit"] // 8, 0.001)


async def test_b25_no_small_frame_is_ever_torn(node: Standing) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(node.pids["waits"], {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})
    try:
        async with node.client() as client:
            await frames.read_all(client, 8_000, 256)
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(node.pids["waits"], cores)


def test_a_large_frame_passes_through_a_small_dev_shm() -> None:
    require_root("a mount namespace with its own /dev/shm")
    frames.small_shm([(True, "auto", 64 * MIB), (True, "file", 4 * MIB)])


async def test_a_reader_has_one_descriptor_a_segment_and_an_owner_a_few(node: Standing) -> None:
    """However many frames: descriptors go with segments, and with those they come back."""
    async with node.client(arena_step=MIB, arena_limit=64 * MIB, arena_idle=IDLE) as client:
        before = len(os.listdir("/proc/self/fd"))
        held = [write(client.frames.new(MIB, "u1"), number) for number in range(20)]
        assert len(client.memory()["segments"]) == 20
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * 20 + 5
        held.clear()
        await wait_until(lambda: not client.memory()["segments"])
        await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * 20


async def test_frames_of_a_client_that_was_killed_come_back(node: Standing) -> None:
    """A borrower dies: what it borrowed is free, what it lent is unmapped."""
    script = (
        "import asyncio, os, signal\n"
        "from actors import connect\n"
        "async def main():\n"
        f"    async with connect({node.name!r}) as client:\n"
        "        frame = client.frames.new(100_000, 'u1')\n"
        "        back = await client.call('m.echo.go', frame, timeout=20.0)\n"
        "        async with client.stream('m.waits.go', {'n': 9, 'size': 1 << 20}) as items:\n"
        "            kept = [await anext(items) for _ in range(3)]\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    async with node.client() as client:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        assert await process.wait() == -signal.SIGKILL
        await wait_free(client, "waits", "echo")

        async def unmapped() -> bool:
            return not (await memory_of(client, "echo"))["borrowed"]

        await wait_until(unmapped, what="its segments are unmapped")
        assert type(await anext_of(client)) is Frame


async def anext_of(client: Client) -> Any:
    """One frame of an engine whose arena was full of a dead client's."""
    async with client.stream("m.waits.go", {"n": 1, "size": MIB}, timeout=20.0) as items:
        return await anext(items)
