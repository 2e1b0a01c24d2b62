from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from transport.errors import LocalProtocolError, MemoryExhausted, StaleHandle
from transport.shm.arena import Arena
from transport.wire.handle import Handle

MIB = 1 << 20
OWNER = 5


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(OWNER, step=MIB, limit=4 * MIB)
    yield made
    made.close()


def handle(arena: Arena, size: int = 1000) -> Handle:
    slot = arena.allocate(size)
    return Handle(OWNER, slot.segment, slot.offset, size, slot.generation, "", (size,))


def test_nothing_is_taken_before_the_first_frame(arena: Arena) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert arena.statistics().reserved == 0
    assert arena.numbers() == []
    assert len(os.listdir("/proc/self/fd")) == before
    handle(arena)
    assert (arena.statistics().segments, arena.statistics().reserved) == (1, MIB)


def test_memory_comes_in_steps_up_to_the_limit(arena: Arena) -> None:
    held = [handle(arena, MIB) for _ in range(4)]
    assert arena.statistics().reserved == 4 * MIB
    with pytest.raises(MemoryExhausted, match=f"limit of {4 * MIB} bytes are held by frames"):
        handle(arena, 1)
    arena.unexport(held[1])
    assert handle(arena, MIB).offset == held[1].offset


def test_a_frame_larger_than_a_step_gets_a_segment_of_its_size(arena: Arena) -> None:
    handle(arena, 3 * MIB)
    handle(arena, MIB)
    found = arena.statistics()
    assert (found.segments, found.reserved) == (2, 4 * MIB)


def test_a_frame_larger_than_the_limit_is_refused(arena: Arena) -> None:
    with pytest.raises(MemoryExhausted, match="raise the limit"):
        handle(arena, 5 * MIB)
    assert arena.statistics().segments == 0


def test_the_last_segment_is_as_large_as_the_limit_allows() -> None:
    arena = Arena(OWNER, step=MIB, limit=MIB + MIB // 2)
    handle(arena, MIB)
    handle(arena, MIB // 2)
    assert arena.statistics().reserved == MIB + MIB // 2
    arena.close()


def test_a_warm_slot_is_used_again(arena: Arena) -> None:
    first = handle(arena, 100_000)
    arena.lend(first, 7, 1)
    arena.release(7, first.segment, first.offset, first.generation)
    again = handle(arena, 100_000)
    assert (again.segment, again.offset) == (first.segment, first.offset)
    assert again.generation > first.generation


def test_generations_in_the_memory_follow_the_slots(arena: Arena) -> None:
    one = handle(arena)
    segment = arena.segment(one.segment)
    assert segment.generation_at(one.offset) == one.generation
    arena.lend(one, 7, 1, keep=True)
    arena.take_back(7)
    again = arena.renew(one)
    assert segment.generation_at(one.offset) == again.generation > one.generation
    arena.unexport(again)
    assert segment.generation_at(one.offset) == 0


def test_dead_borrowers_and_refused_streams_give_their_leases_back(arena: Arena) -> None:
    one, two, three = handle(arena), handle(arena), handle(arena)
    arena.lend(one, 7, 1)
    arena.lend(two, 7, 2)
    arena.lend(three, 8, 1)
    assert arena.take_back_stream(7, 1) == 1
    assert arena.take_back(7) == 1
    assert arena.take_back(7) == 0
    found = arena.statistics()
    assert (found.slots, found.lent, found.borrowers) == (1, 1, 1)


def test_stale_handles_are_refused_and_late_releases_counted(arena: Arena) -> None:
    one = handle(arena)
    arena.lend(one, 7, 1)
    with pytest.raises(LocalProtocolError):
        arena.lend(one, 7, 1)
    for _ in range(3):
        arena.release(7, one.segment, one.offset, one.generation)
    assert arena.statistics().ignored == 2
    for use in (lambda: arena.lend(one, 7, 1), lambda: arena.check(one), lambda: arena.renew(one)):
        with pytest.raises(StaleHandle):
            use()
    arena.unexport(one)
    with pytest.raises(StaleHandle):
        arena.announcement(9)


def test_handles_to_nothing_need_no_memory(arena: Arena) -> None:
    empty = Handle(OWNER, 0, 0, 0, 0, "<f4", (0, 3))
    arena.lend(empty, 7, 1)
    arena.check(empty)
    arena.unexport(empty)
    assert arena.renew(empty) == empty
    assert arena.statistics().segments == 0


def test_a_machine_that_refuses_is_a_typed_error(arena: Arena) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(MemoryExhausted, match="Too many open files"):
            arena.allocate(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert arena.allocate(1).offset > 0


def test_a_file_size_limit_is_a_typed_error(arena: Arena) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, hard))
    try:
        with pytest.raises(MemoryExhausted, match="File too large"):
            arena.allocate(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_machine_is_a_typed_error_and_not_a_signal(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = os.posix_fallocate

    def full_from_half_a_mebibyte(fd: int, offset: int, size: int) -> None:
        if offset + size > MIB // 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full_from_half_a_mebibyte)
    one = handle(arena, MIB // 4)
    for _ in range(3):
        with pytest.raises(MemoryExhausted, match="the system has no memory"):
            handle(arena, MIB // 2)
    assert arena.statistics().slots == 1
    arena.unexport(one)
    monkeypatch.undo()
    assert handle(arena, MIB // 2).size == MIB // 2


def test_threads_never_share_a_slot(arena: Arena) -> None:
    wrong: list[str] = []

    def work(mark: int) -> None:
        for _ in range(300):
            one = handle(arena, 8192)
            data = arena.segment(one.segment).map
            data[one.offset : one.offset + 8192] = bytes([mark]) * 8192
            if data[one.offset : one.offset + 8192] != bytes([mark]) * 8192:
                wrong.append(f"{mark} at {one.offset}")
            arena.unexport(one)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert arena.statistics().slots == 0


def test_a_closed_arena_takes_late_news_and_gives_nothing(arena: Arena) -> None:
    one = handle(arena)
    two = handle(arena)
    arena.lend(one, 7, 1, keep=True)
    arena.close()
    arena.close()
    arena.release(7, one.segment, one.offset, one.generation)
    assert arena.renew(one).generation > one.generation
    arena.unexport(two)
    assert arena.take_back(7) == 0
    with pytest.raises(MemoryExhausted, match="closed"):
        arena.allocate(1)
    with pytest.raises(StaleHandle):
        arena.announcement(1)
