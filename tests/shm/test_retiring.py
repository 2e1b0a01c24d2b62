"""Segments that nobody uses go back to the system, at the owner and at the readers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.shm.test_memory import Pair
from tests.waiting import wait_until_sync
from transport.errors import MemoryExhausted, StaleHandle
from transport.shm.memory import Memory
from transport.shm.offers import Offers

MIB = 1 << 20
OWNER, READER = 5, 6


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.owner.close()
    made.reader.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kept(memory: Memory) -> tuple[int, int]:
    """Segments and their bytes."""
    found = memory.statistics()
    return found.segments, found.reserved


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:callhome")


def sweep(memory: Memory, idle: float) -> list[int]:
    """Two looks: a segment counts as idle from the first one on."""
    memory.sweep(idle)
    memory.sweep(idle)
    return [number for numbers in memory.retired().values() for number in numbers]


def test_idle_segments_go_back_up_to_the_last(pair: Pair) -> None:
    before = (descriptors(), mapped())
    handles = [pair.lend(pair.owner.export_bytes(bytes([n]) * MIB)) for n in range(3)]
    assert pair.reader.reading.mapped == 3
    assert sweep(pair.owner, 0.0) == []
    for handle in handles[1:]:
        pair.reader.drop(handle)
    pair.settle()
    assert sweep(pair.owner, 600.0) == []
    assert sweep(pair.owner, 0.0) == [2, 3]
    assert kept(pair.owner) == (1, MIB)
    pair.reader.reading.retire(OWNER, [2, 3])
    assert pair.reader.read_bytes(handles[0])[0] == 0
    pair.settle()
    assert sweep(pair.owner, 0.0) == [1]
    pair.reader.reading.retire(OWNER, [1, 1, 99])
    assert (pair.owner.statistics().segments, pair.reader.reading.mapped) == (0, 0)
    assert (descriptors(), mapped()) == before
    again = pair.lend(pair.owner.export_bytes(b"x" * MIB))
    assert again.segment == 4, "a number is never used again"
    pair.reader.drop(again)


def test_views_keep_the_memory_and_late_handles_are_stale(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_array(np.arange(1000)))
    seen = pair.reader.view_array(handle)
    own = pair.owner.frames.new(3, "u1")
    view = own.array
    view[:] = 7
    pair.owner.take_back(READER)  # as if the reader were dead; its view lives
    sent = own.hand_on()
    assert sent is not None
    pair.owner.unexport(sent)
    assert sweep(pair.owner, 0.0) == [1]
    pair.reader.reading.retire(OWNER, [1])
    assert seen[999] == 999
    assert view.tolist() == [7, 7, 7]
    for look in (pair.reader.view_array, pair.reader.read_bytes, pair.reader.open_frame):
        with pytest.raises(StaleHandle, match="was given back to the system"):
            look(handle)
    for use in (pair.owner.renew, pair.owner.copy_out, pair.owner.view_array):
        with pytest.raises(StaleHandle):
            use(handle)
    pair.settle()
    del seen, view


def test_who_got_a_segment_with_an_open_is_told(pair: Pair) -> None:
    handle = pair.owner.export_bytes(b"x" * 5000)
    pair.owner.needs(0, [handle])
    pair.owner.forget(0)  # so travels an announcement whose reader is not known yet
    pair.owner.lend(handle, 7, 1)
    pair.owner.opened(7, [handle, handle._replace(segment=0, size=0)])
    pair.owner.take_back(7)
    pair.owner.sweep(0.0)
    assert pair.owner.retired() == {7: [1]}
    assert pair.owner.retired() == {}


def test_a_reader_that_nobody_told_lets_go_too(pair: Pair) -> None:
    pair.reader.drop(pair.lend(pair.owner.export_bytes(b"x" * 5000)))
    pair.settle()
    assert pair.reader.sweep(0.0)
    sweep(pair.owner, 0.0)
    assert not pair.reader.sweep(0.0)


def test_a_segment_in_use_now_and_then_stays(pair: Pair) -> None:
    for _ in range(3):
        pair.owner.sweep(0.0001)
        pair.owner.frames.new(5000, "u1").release()
        pair.owner.drain_releases()
        pair.owner.sweep(60.0)
    assert pair.owner.statistics().segments == 1


def test_after_a_burst_the_oldest_segments_serve_alone(pair: Pair) -> None:
    burst = [pair.owner.frames.new(MIB // 4, "u1") for _ in range(16)]
    assert pair.owner.statistics().segments == 4
    while burst:
        del burst[0]  # the slots of the last segment come back last, and lie on top
    pair.owner.drain_releases()
    pair.owner.sweep(0.05)
    for _ in range(4):
        few = [pair.owner.frames.new(MIB // 4, "u1") for _ in range(2)]
        assert {frame.handle.segment for frame in few if frame.handle} == {1}
        few.clear()
        pair.owner.drain_releases()
    held = pair.owner.frames.new(MIB // 4, "u1")
    wait_until_sync(lambda: pair.owner.sweep(0.05) and pair.owner.statistics().segments == 1)
    del held


def test_idle_segments_make_room_for_a_larger_frame(pair: Pair) -> None:
    small = [pair.owner.frames.new(MIB, "u1") for _ in range(4)]
    with pytest.raises(MemoryExhausted):
        pair.owner.frames.new(2 * MIB, "u1")
    del small[1:3]
    pair.owner.drain_releases()
    large = pair.owner.frames.new(2 * MIB, "u1")
    assert large.handle is not None
    assert large.handle.segment == 5
    assert kept(pair.owner) == (3, 4 * MIB)
    with pytest.raises(MemoryExhausted):
        pair.owner.frames.new(3 * MIB, "u1")
    assert pair.owner.statistics().segments == 3, "none is given up in vain"


def test_numbers_that_a_peer_makes_up_are_not_kept(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_bytes(b"x" * 5000))
    for number in range(2, 1000):
        pair.owner.mark(READER, number, True)
    assert pair.owner.readers._links[READER].attached == {handle.segment}
    pair.reader.drop(handle)


def test_frames_are_made_while_segments_go() -> None:
    memory = Memory(OWNER, wake=lambda: None, step=MIB, limit=8 * MIB)
    wrong: list[int] = []
    retired: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            frame = memory.frames.new(MIB // 2, "u1")
            frame.array[:1000] = mark
            if int(frame.array[:1000].max()) != mark:
                wrong.append(mark)
            del frame
            memory.drain_releases()

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.needs(READER)
        memory.sweep(0.0)
        retired += [number for numbers in memory.retired().values() for number in numbers]
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(retired) == len(set(retired))
    memory.sweep(0.0)
    assert kept(memory) == (0, 0)
    memory.close()


@pytest.mark.parametrize("by", ["idle", "room"])
def test_b07_segments_that_are_files_go_from_dev_shm_when_they_go_back(by: str) -> None:
    offers = Offers(road="file", label="retiring")
    memory = Memory(OWNER, wake=lambda: None, step=2 * MIB, limit=4 * MIB, offers=offers)
    try:
        view = memory.frames.new(MIB, "u1").array
        view[:] = 7
        folder = _folder()
        del view
        for _ in range(3):
            memory.frames.new(2 * MIB if by == "idle" else 4 * MIB, "u1").release()
            if by == "idle":
                sweep(memory, 0.0)
            else:
                memory.frames.new(MIB, "u1").release()
        assert len(os.listdir(folder)) == 1 + memory.statistics().segments
        view = memory.frames.new(MIB, "u1").array
        view[:] = 9
        memory.close()
        assert view.min() == 9
        assert not os.path.exists(folder)
    finally:
        memory.close()


def _folder() -> str:
    """Where the files of this test are."""
    start = f"callhome-{os.geteuid()}-retiring-"
    (name,) = [name for name in os.listdir("/dev/shm") if name.startswith(start)]
    return f"/dev/shm/{name}"
