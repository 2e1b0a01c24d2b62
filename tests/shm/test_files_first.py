"""Frames go into files as soon as a reader needs them, and into other memory where there is none
for files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.shm.test_memory import Pair
from tests.waiting import require_root
from transport.shm.memory import Memory
from transport.shm.offers import Offers
from transport.shm.slab import GRAIN, Slab
from transport.wire.handle import Handle

MIB = 1 << 20
OWNER, READER, OTHER = 5, 6, 7


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(OWNER, wake=lambda: None, step=2 * MIB, limit=4 * MIB, offers=Offers())
    yield made
    made.close()


def made(memory: Memory, size: int = MIB // 2) -> Handle:
    return memory.export_bytes(b"x" * size)


def kind(memory: Memory, handle: Handle) -> str:
    return next(each.kind for each in memory.account().segments if each.number == handle.segment)


def wants_files(memory: Memory, handle: Handle) -> None:
    """A reader answers that it can use neither of the other roads."""
    memory.needs(READER, [handle])
    memory.mark(READER, handle.segment, False, "file")


def test_the_next_frame_is_in_a_file_and_the_old_memory_goes(memory: Memory) -> None:
    first = made(memory)
    assert kind(memory, first) == "memfd"
    assert not memory.offers.files
    wants_files(memory, first)
    assert not memory.usable(READER, [first])
    later = [made(memory) for _ in range(3)]
    assert {kind(memory, each) for each in later} == {"file"}
    assert memory.usable(READER, later)
    for each in [first, *later]:
        memory.unexport(each)
    again = made(memory)
    assert kind(memory, again) == "file"
    memory.sweep(0.0)
    memory.sweep(0.0)
    assert [each.kind for each in memory.account().segments] == ["file"]
    memory.unexport(again)


def test_where_no_file_fits_the_limit_the_old_memory_is_used(memory: Memory) -> None:
    whole = made(memory, 2 * MIB), made(memory, 2 * MIB)
    wants_files(memory, whole[0])
    memory.unexport(whole[0])
    parts = [made(memory) for _ in range(3)]  # the idle segment makes room for a file
    assert {kind(memory, each) for each in parts} == {"file"}
    memory.unexport(whole[1])
    others = [made(memory, MIB), made(memory, MIB)]
    assert all(kind(memory, each) == "file" for each in others)
    for each in parts + others:
        memory.unexport(each)
    assert memory.statistics().slots == 0


def test_memory_that_is_in_use_at_the_limit_is_used_again(memory: Memory) -> None:
    held = [made(memory, MIB) for _ in range(4)]
    wants_files(memory, held[0])
    memory.unexport(held[1])
    memory.unexport(held[3])  # half of each segment is free, and neither may go
    assert {kind(memory, made(memory)) for _ in range(4)} == {"memfd"}


def test_a_third_ones_segments_are_no_reason_for_files(memory: Memory) -> None:
    memory.mark(READER, 1, False, "file", owner=OTHER)
    assert not memory.offers.files


def test_only_what_is_favoured_is_handed_out() -> None:
    slab = Slab()
    slab.add_segment(1, 0, 4 * GRAIN)
    held = slab.allocate(GRAIN)
    stacked = slab.allocate(GRAIN)
    assert held is not None
    assert stacked is not None
    slab.drop_hold(stacked)
    assert not slab.favour(set())
    assert slab.leaves_out()
    assert slab.allocate(GRAIN) is None
    slab.add_segment(2, 0, GRAIN)
    found = slab.allocate(GRAIN)
    assert found is not None
    assert found.segment == 2
    slab.drop_hold(held)
    assert slab.allocate(GRAIN) is None
    assert slab.favour(None)
    whole = slab.allocate(4 * GRAIN)
    assert whole is not None
    assert whole.segment == 1, "its ranges are whole again"


_SMALL = f"""
import subprocess
subprocess.check_call(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"])
from transport.errors import MemoryExhausted
from transport.shm.memory import Memory
from transport.shm.offers import Offers
MIB = 1 << 20
memory = Memory({OWNER}, wake=lambda: None, step=64 * MIB, limit=192 * MIB, offers=Offers())
memory.offers.want_files()
kinds = []
for size in (64 << 10, 4 * MIB, 64 * MIB):
    frame = memory.frames.new(size, "u1")
    frame.array[:] = 7
    kinds.append(next(each.kind for each in memory.account().segments if each.used >= size))
    frame.release()
open("/dev/shm/full", "wb").write(b"x" * (400 << 10))
frames = [memory.frames.new(64 << 10, "u1") for _ in range(100)]  # beyond what is left for files
for frame in frames:
    frame.array[:] = 9
memory.close()
memory = Memory(6, wake=lambda: None, step=MIB, limit=8 * MIB, offers=Offers(road="file"))
try:
    memory.frames.new(MIB, "u1")
except MemoryExhausted as error:
    assert "/dev/shm is full: make it larger, or set frame_road to 'auto'" in str(error), error
    kinds.append("told")
print(*kinds)
"""


def test_b07_a_small_dev_shm_ends_no_frames_when_files_are_wanted() -> None:
    require_root("a /dev/shm of 1 MiB")
    found = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", _SMALL],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        timeout=60,
    )
    assert found.stdout.split() == ["file", "memfd", "memfd", "told"], found.stderr


def test_a_peer_that_has_refused_is_asked_again_now_and_then() -> None:
    pair, now = Pair(), [0.0]
    memory, reader = pair.owner, pair.owner.readers
    reader._clock = lambda: now[0]
    handle = memory.export_array(np.arange(1000))
    assert len(memory.needs(READER, [handle])) == 1
    memory.mark(READER, handle.segment, False)
    asked = []
    for second in range(1200):
        now[0] = float(second)
        assert not memory.usable(READER, [handle])
        if memory.again(READER, [handle]):
            asked.append(second)
            assert len(memory.needs(READER, [handle])) == 1
    assert asked == [5, 15, 35, 75, 155, 315, 615, 915]
    memory.mark(READER, handle.segment, True, "proc")
    assert memory.usable(READER, [handle])
    assert memory.attached(READER, [handle])
    memory.unexport(handle)
    pair.owner.close()
    pair.reader.close()
