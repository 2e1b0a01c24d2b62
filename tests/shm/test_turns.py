"""Waiting for room: in order, woken by whatever gives memory back, without loss."""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import LONG, TICK, wait_until, wait_until_sync
from transport.errors import Cancelled, LocalProtocolError, MemoryExhausted
from transport.shm.frames import Frame
from transport.shm.memory import Memory
from transport.shm.turns import OVER

MIB = 1 << 20
OWNER, READER = 5, 6


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(OWNER, wake=lambda: None, step=MIB, limit=4 * MIB)
    yield made
    made.close()


def waiting(memory: Memory) -> int:
    return memory.statistics().waiting


def lent(memory: Memory, frame: Frame) -> tuple[int, int, int]:
    handle = frame.hand_on()
    assert handle is not None
    memory.lend(handle, READER, 1)
    return handle.segment, handle.offset, handle.generation


async def test_room_is_given_at_once_where_there_is_some(memory: Memory) -> None:
    frame = await memory.frames.wait_new((2, 3), "<f4", timeout=0)
    assert frame.shape == (2, 3)
    assert (await memory.frames.wait_new((0, 3), "<f4")).nbytes == 0
    assert waiting(memory) == 0


async def test_those_who_wait_are_served_in_order(memory: Memory) -> None:
    leases = [lent(memory, memory.frames.new(MIB, "u1")) for _ in range(4)]
    served: list[int] = []

    async def wait(number: int, size: int) -> Frame:
        frame = await memory.frames.wait_new(size, "u1", timeout=LONG)
        served.append(number)
        return frame

    sizes = [2 * MIB, MIB, MIB // 2, MIB // 2]
    tasks = []
    for number, size in enumerate(sizes):
        tasks.append(asyncio.create_task(wait(number, size)))
        await wait_until(lambda: waiting(memory) == len(tasks))
    memory.release(READER, leases[:1])
    await asyncio.sleep(0)
    assert not served, "what is second in line fits, and has to wait all the same"
    for lease in leases[1:]:
        memory.release(READER, [lease])
    frames = await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3]
    assert [frame.nbytes for frame in frames] == sizes
    assert memory.statistics().in_use == 4 * MIB


async def test_a_dropped_view_and_a_dead_borrower_wake_who_waits(memory: Memory) -> None:
    loop = asyncio.get_running_loop()
    memory._ties._wake = lambda: loop.call_soon_threadsafe(memory.drain_releases)
    held = [memory.frames.new(MIB, "u1") for _ in range(3)]
    lent(memory, memory.frames.new(MIB, "u1"))
    for free in (held.pop, lambda: memory.take_back(READER)):
        task = asyncio.create_task(memory.frames.wait_new(MIB, "u1", timeout=LONG))
        await wait_until(lambda: waiting(memory) == 1)
        free()
        held.append(await task)


async def test_a_wait_that_ends_says_who_holds_the_memory(memory: Memory) -> None:
    memory.watch(lambda: None, lambda peer: f"reader-{peer}")
    keep = [memory.frames.new(MIB, "u1") for _ in range(3)]
    lent(memory, memory.frames.new(MIB, "u1"))
    with pytest.raises(MemoryExhausted, match=r"within .* reader-6 \(1 frames, 1048576 bytes") as e:
        await memory.frames.wait_new(MIB, "u1", timeout=TICK)
    assert "this process itself (3 frames" in str(e.value)
    with pytest.raises(MemoryExhausted, match="can ever fit"):
        await memory.frames.wait_new(5 * MIB, "u1")
    for wrong in (-1.0, float("nan")):
        with pytest.raises(LocalProtocolError, match="seconds from 0 on"):
            await memory.frames.wait_new(1, "u1", timeout=wrong)
    assert waiting(memory) == 0
    del keep


async def test_who_gives_up_loses_nothing(memory: Memory) -> None:
    held = [memory.frames.new(MIB, "u1") for _ in range(4)]
    tasks = [asyncio.create_task(memory.frames.wait_new(4 * MIB, "u1", timeout=LONG))]
    tasks += [
        asyncio.create_task(memory.frames.wait_new(MIB, "u1", timeout=LONG)) for _ in range(2)
    ]
    await wait_until(lambda: waiting(memory) == 3)
    tasks[0].cancel()  # the next in line needs no more than this
    await wait_until(lambda: waiting(memory) == 2)
    held.pop()
    memory.drain_releases()
    tasks[1].cancel()  # it was served and has not seen it
    held.append(await tasks[2])
    held.clear()
    del tasks  # and with them the frame that the last one has returned

    def free() -> bool:
        gc.collect()
        memory.drain_releases()
        return not memory.statistics().slots

    await wait_until(free)
    assert memory.statistics().ignored == 0


async def test_new_goes_on_beside_those_who_wait(memory: Memory) -> None:
    held = [memory.frames.new(MIB, "u1") for _ in range(3)]
    task = asyncio.create_task(memory.frames.wait_new(4 * MIB, "u1", timeout=LONG))
    await wait_until(lambda: waiting(memory) == 1)
    memory.frames.new(MIB // 2, "u1").release()
    held.clear()
    memory.drain_releases()
    assert (await task).nbytes == 4 * MIB


async def test_closing_ends_every_wait(memory: Memory) -> None:
    held = memory.frames.new(4 * MIB, "u1")
    tasks = [asyncio.create_task(memory.frames.wait_new(MIB, "u1")) for _ in range(2)]
    await wait_until(lambda: waiting(memory) == 2)
    memory.close()
    for task in tasks:
        with pytest.raises(MemoryExhausted, match="closed"):
            await task
    del held


async def test_who_waits_is_served_when_the_system_has_memory_again(memory: Memory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, hard))
    try:
        with pytest.raises(MemoryExhausted, match=r"the system has refused more: .*File too large"):
            await memory.frames.wait_new(MIB, "u1", timeout=TICK)
        task = asyncio.create_task(memory.frames.wait_new(MIB, "u1", timeout=LONG))
        await wait_until(lambda: waiting(memory) == 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (await task).nbytes == MIB


def test_a_thread_waits_too(memory: Memory) -> None:
    held = [memory.frames.new(MIB, "u1") for _ in range(4)]
    found: list[Frame] = []
    thread = threading.Thread(target=lambda: found.append(memory.frames.new(MIB, "u1", wait=LONG)))
    thread.start()
    wait_until_sync(lambda: waiting(memory) == 1)
    held.pop()
    memory.drain_releases()
    thread.join(LONG)
    assert [frame.nbytes for frame in found] == [MIB]
    with pytest.raises(MemoryExhausted, match="this process itself"):
        memory.frames.new(MIB, "u1", wait=0.05)
    found.clear()


def test_the_end_of_a_stream_ends_the_wait_of_its_thread(memory: Memory) -> None:
    held = memory.frames.new(4 * MIB, "u1")
    over: list[str] = []
    failed: list[BaseException] = []

    def work() -> None:
        OVER.set(lambda: over[0] if over else None)
        try:
            memory.frames.new(MIB, "u1", wait=600.0)
        except Cancelled as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until_sync(lambda: waiting(memory) == 1)
    over.append("the caller has left")
    thread.join(LONG)
    assert "the caller has left" in str(failed[0])
    assert waiting(memory) == 0
    del held


async def test_a_loop_is_never_stopped_by_a_wait(memory: Memory) -> None:
    with pytest.raises(LocalProtocolError, match="wait_new"):
        memory.frames.new(1, "u1", wait=1.0)
    assert waiting(memory) == 0
