from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from transport.errors import (
    EncodeError,
    FrameReleased,
    LocalProtocolError,
    MemoryExhausted,
    RemoteProtocolError,
)
from transport.shm.frames import Frame, private_frame
from transport.shm.kinds import dtype_of, dtype_text
from transport.shm.memory import Memory

MIB = 1 << 20

DTYPES = [
    "u1",
    "<i4",
    ">i4",
    ">f8",
    "f2",
    "c16",
    "?",
    "<M8[ns]",
    ">m8[us]",
    "<U7",
    "S5",
    "V12",
    [("a", ">i2"), ("b", "<f4", (2, 3)), ("c", [("x", "u1"), ("y", "S3")])],
    {"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [3, 16], "itemsize": 32},
    np.dtype([("a", "u1"), ("b", "<f8")], align=True),
    [(("a title", "a"), "<i4")],
]


class Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def memory(wakes: Wakes) -> Iterator[Memory]:
    made = Memory(5, wake=wakes, step=MIB, limit=2 * MIB)
    yield made
    made.close()


def slots(memory: Memory) -> int:
    return memory.statistics().slots


def test_a_frame_is_written_in_place(memory: Memory) -> None:
    frame = memory.frames.new((2, 3), "<f4")
    frame.array[...] = 7
    assert (frame.shape, frame.dtype, frame.nbytes) == ((2, 3), np.dtype("<f4"), 24)
    assert frame.array.flags.c_contiguous
    assert frame.array.flags.aligned
    assert repr(frame) == "<Frame float32 (2, 3)>"
    assert slots(memory) == 1


@pytest.mark.parametrize("shape", [7, np.int64(7), (), (7,), [2, 3], (1, 2, 3)])
def test_any_shape_can_be_made(memory: Memory, shape: Any) -> None:
    frame = memory.frames.new(shape, "<i8")
    assert frame.array.shape == np.empty(shape).shape
    assert frame.handle is not None
    assert frame.handle.shape == frame.shape


@pytest.mark.parametrize("shape", [-1, (2, -3), "ab", None, (1,) * 33, 2.5])
def test_what_is_no_shape_is_refused(memory: Memory, shape: Any) -> None:
    with pytest.raises(LocalProtocolError, match="shape"):
        memory.frames.new(shape, "u1")
    assert slots(memory) == 0


@pytest.mark.parametrize("dtype", ["foo", "u1;", {"a": 1}, 7, ("u1", -1), "x" * 100_000])
def test_what_is_no_dtype_is_refused(memory: Memory, dtype: Any) -> None:
    with pytest.raises(LocalProtocolError, match="dtype is one of numpy's") as caught:
        memory.frames.new(3, dtype)
    assert len(str(caught.value)) < 200
    assert slots(memory) == 0


def test_copying_keeps_values_shape_and_dtype(memory: Memory) -> None:
    source = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::-1].T
    frame = memory.frames.copy(source)
    assert np.array_equal(frame.array, source)
    assert frame.dtype.str == ">i4"
    assert frame.array.flags.c_contiguous


def test_a_frame_is_handed_on_once(memory: Memory) -> None:
    frame = memory.frames.new(3, "u1")
    handle = frame.handle
    assert frame.hand_on() == handle
    assert not frame.array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        frame.array[0] = 1
    for use in (frame.hand_on, frame.release, lambda: frame.handle):
        with pytest.raises(FrameReleased, match="handed on already"):
            use()
    assert repr(frame) == "<Frame uint8 (3,) handed on>"


def test_a_frame_handed_on_lives_as_long_as_its_handle(memory: Memory) -> None:
    frame = memory.frames.new(3, "u1")
    handle = frame.hand_on()
    assert handle is not None
    del frame
    gc.collect()
    assert slots(memory) == 1
    memory.unexport(handle)
    assert slots(memory) == 0


def test_a_frame_dropped_unsent_gives_its_memory_back(memory: Memory, wakes: Wakes) -> None:
    frame = memory.frames.new(3, "u1")
    del frame
    assert slots(memory) == 0
    assert wakes.count == 1


def test_the_array_keeps_the_memory_of_a_frame_that_is_gone(memory: Memory) -> None:
    array = memory.frames.new((4, 4), "u1").array
    part = array[1:].T
    del array
    assert slots(memory) == 1
    part[...] = 3
    del part
    assert slots(memory) == 0


def test_release_is_for_once_and_waits_for_views(memory: Memory) -> None:
    frame = memory.frames.new(3, "u1")
    view = frame.array[1:]
    frame.release()
    assert slots(memory) == 1
    del view
    assert slots(memory) == 0
    for use in (frame.release, frame.hand_on, lambda: frame.array, lambda: frame.shape):
        with pytest.raises(FrameReleased):
            use()
    assert repr(frame) == "<Frame released>"


def test_the_end_of_a_block_releases_and_never_raises(memory: Memory) -> None:
    with memory.frames.new(3, "u1") as frame:
        assert slots(memory) == 1
    assert slots(memory) == 0
    with memory.frames.new(3, "u1") as frame:
        frame.release()
    with memory.frames.new(3, "u1") as frame:
        handle = frame.hand_on()
    assert handle is not None
    assert slots(memory) == 1
    memory.unexport(handle)
    with frame, frame:
        pass
    assert slots(memory) == 0


def test_empty_frames_take_no_memory(memory: Memory) -> None:
    frame = memory.frames.new((0, 3), "f4")
    assert frame.handle is None
    assert frame.array.shape == (0, 3)
    assert memory.statistics().segments == 0
    assert frame.hand_on() is None
    with pytest.raises(FrameReleased):
        frame.hand_on()


def test_a_private_frame_is_read_only_and_handed_on_once() -> None:
    frame = private_frame(np.ones(3))
    assert frame.handle is None
    with pytest.raises(ValueError, match="read-only"):
        frame.array[0] = 2
    assert frame.hand_on() is None
    with pytest.raises(FrameReleased):
        frame.hand_on()


def test_a_full_arena_says_so_until_a_frame_goes(memory: Memory) -> None:
    held = [memory.frames.new(MIB, "u1") for _ in range(2)]
    with pytest.raises(MemoryExhausted):
        memory.frames.new(MIB, "u1")
    with pytest.raises(MemoryExhausted):
        memory.export_bytes(b"x" * MIB)
    held.pop()
    assert memory.frames.new(MIB, "u1").array.size == MIB


def test_frames_dropped_in_other_threads_come_back(memory: Memory, wakes: Wakes) -> None:
    frames: list[Frame | None] = [memory.frames.new(3, "u1") for _ in range(50)]

    def drop() -> None:
        for index in range(50):
            frames[index] = None

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert wakes.count == 1
    assert slots(memory) == 0


def test_a_loop_that_is_closed_is_no_problem_for_views(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    memory = Memory(5, wake=closed, step=MIB)
    assert memory.frames.new(3, "u1").array.T.size == 3
    memory.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_come_back_from_their_text(dtype: Any) -> None:
    kind = np.dtype(dtype)
    assert dtype_of(dtype_text(kind)) == kind
    assert dtype_of(dtype_text(kind)).itemsize == kind.itemsize


def test_metadata_of_a_dtype_is_left_out() -> None:
    kind = np.dtype([("a", "<i4")], metadata={"made by": "somebody"})
    assert dtype_of(dtype_text(kind)) == kind


@pytest.mark.parametrize("dtype", ["O", [("a", "u1"), ("b", "O")], "U0", "V0"], ids=str)
def test_dtypes_that_cannot_be_shared_are_refused(memory: Memory, dtype: Any) -> None:
    with pytest.raises(EncodeError, match="dtype"):
        memory.frames.new(3, np.dtype(dtype))
    assert memory.statistics().segments == 0


@pytest.mark.parametrize(
    "text",
    ["O", "|O8", "nonsense", "[('a', 'O')]", "[(", "(" * 1000, "[1]", "[('a',)]", "U0", "[]"],
)
def test_foreign_dtype_texts_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="dtype"):
        dtype_of(text)


def test_importing_shared_memory_does_not_import_numpy() -> None:
    code = "import sys, transport.shm.memory; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
