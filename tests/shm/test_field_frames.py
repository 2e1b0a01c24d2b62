"""Faults that people met with shared memory elsewhere, each as it would show here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shm.peer import Peer, announcement, lend_to
from transport.errors import EncodeError, MemoryExhausted
from transport.shm.memory import Memory
from transport.wire.handle import handle_from_wire

MIB = 1 << 20
OWNER, READER = 5, 6

_KEEPS_ONLY_THE_ARRAY = """
import gc, json, sys
from tests.shm.peer import announcement
from transport.shm.memory import Memory
from transport.wire.handle import handle_from_wire
made = json.loads(sys.stdin.readline())
memory = Memory(6, wake=lambda: None)
memory.attach(announcement(made["announcements"][0]))
array = memory.view_array(handle_from_wire(made["handle"]))
if sys.argv[1] == "close":
    memory.close()
del memory, made
gc.collect()
sys.stdout.write("have it\\n")
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.write(f"{int(array.sum())}\\n")
"""


@pytest.mark.parametrize("ending", ["close", "forget"])
def test_b04_an_array_outlives_everything_else(ending: str) -> None:
    with Peer(OWNER) as owner:
        reader = subprocess.Popen(
            [sys.executable, "-c", _KEEPS_ONLY_THE_ARRAY, ending],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        owner.send("export", READER, [MIB], "u1", 1)
        assert owner.process.stdout is not None
        reader.stdin.write(owner.process.stdout.readline())
        reader.stdin.flush()
        assert reader.stdout.readline() == b"have it\n"
        assert owner.finish() == (0, b"")
        out, errors = reader.communicate(b"\n", timeout=60)
        assert (out, errors, reader.returncode) == (f"{MIB}\n".encode(), b"", 0)


def test_b05_a_slot_is_never_reused_while_a_reader_looks() -> None:
    owner = Memory(OWNER, wake=lambda: None, step=MIB, limit=4 * MIB)
    with Peer(READER) as reader:
        kept: list[int] = []

        def send(value: int) -> int:
            frame = owner.frames.new(MIB, "u1")
            frame.array[...] = value
            handle = frame.hand_on()
            assert handle is not None
            lend_to(reader, owner, handle, READER)
            seen = reader.ask("view", handle)
            assert "error" not in seen
            return int(seen["id"])

        kept = [send(value) for value in range(4)]
        for _ in range(20):
            with pytest.raises(MemoryExhausted):
                send(99)
        assert [reader.ask("look", at)["sum"] // MIB for at in kept] == [0, 1, 2, 3]
        for value in range(4, 24):
            ((_, releases),) = reader.ask("forget", kept.pop(0))["releases"]
            owner.release(READER, [tuple(release) for release in releases])
            kept.append(send(value))
            looks = [reader.ask("look", at)["sum"] // MIB for at in kept]
            assert looks == list(range(value - 3, value + 1))
    owner.close()


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3), "f4"), np.array(5.0), np.zeros((3, 0, 2), ">i8")], ids=repr
)
def test_b13_empty_and_zero_dimensional_arrays_arrive(array: np.ndarray[Any, Any]) -> None:
    owner = Memory(OWNER, wake=lambda: None, step=MIB)
    reader = Memory(READER, wake=lambda: None)
    handle = owner.export_array(array)
    for told in owner.needs(READER, [handle]):
        reader.attach(told)
    owner.lend(handle, READER, 1)
    seen = reader.view_array(handle_from_wire(list(handle)))
    assert (seen.shape, seen.dtype.str) == (array.shape, array.dtype.str)
    assert np.array_equal(seen, array)
    assert owner.statistics().segments == (1 if array.nbytes else 0)
    assert reader.read_bytes(owner.export_bytes(b"")) == b""
    del seen
    owner.close()
    reader.close()


def test_b13_an_attach_never_meets_a_half_made_segment() -> None:
    peers = [Peer(owner, step=MIB // 2) for owner in range(10, 14)]
    try:
        made = [peer.ask("export", 99, [1000], "<i4", owner) for owner, peer in enumerate(peers)]
        told = [one["announcements"][0] for one in made]
        for number, peer in enumerate(peers):
            other = (number + 1) % 4
            peer.send("attach_often", told[other], made[other]["handle"], 5000)
        for number, peer in enumerate(peers):
            assert peer.answer() == {"total": 5000 * ((number + 1) % 4)}
    finally:
        for peer in peers:
            peer.__exit__(None, None, None)


def test_b13_a_segment_can_be_attached_as_soon_as_it_is_announced() -> None:
    with Peer(OWNER, step=4096, limit=4096 * 1000) as owner:
        reader = Memory(READER, wake=lambda: None)
        views = []
        for value in range(200):
            made = owner.ask("export", READER, [4096], "u1", value)
            reader.attach(announcement(made["announcements"][0]))
            views.append(reader.view_array(handle_from_wire(made["handle"])))
        assert [int(view[-1]) for view in views] == list(range(200))
        views.clear()
        reader.close()


ROUND_TRIPS = {
    "every other column": np.arange(24, dtype="<i4").reshape(4, 6)[:, ::2],
    "backwards": np.arange(24, dtype="<i4")[::-1],
    "Fortran order": np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "big-endian": np.arange(5, dtype=">i4"),
    "fields": np.array([(1, 2.5, b"x")], [("a", ">i2"), ("b", "<f8"), ("c", "S3")]),
    "datetime64": np.array(["2026-01-02T03:04:05.678901234"], "M8[ns]"),
    "bool": np.array([True, False]),
    "float16": np.array([1.5, np.inf], "f2"),
    "complex128": np.array([1 + 2j]),
    "no dimensions": np.array(7, "<u2"),
    "text": np.array(["ä", "longer"]),
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
}


@pytest.mark.parametrize("array", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
@pytest.mark.parametrize("road", ["export", "frame"])
def test_b14_dtype_byte_order_and_strides_are_kept(array: np.ndarray[Any, Any], road: str) -> None:
    owner = Memory(OWNER, wake=lambda: None, step=MIB // 2)
    reader = Memory(READER, wake=lambda: None)
    handle = owner.export_array(array) if road == "export" else owner.frames.copy(array).hand_on()
    assert handle is not None
    for told in owner.needs(READER, [handle]):
        reader.attach(told)
    owner.lend(handle, READER, 1)
    seen = reader.view_array(handle_from_wire(list(handle)))
    assert np.array_equal(seen, array)
    assert (seen.shape, seen.dtype) == (array.shape, array.dtype)
    assert seen.dtype.str == array.dtype.str
    assert seen.flags.c_contiguous
    del seen
    owner.close()
    reader.close()


def test_b14_pointers_are_never_sent() -> None:
    owner = Memory(OWNER, wake=lambda: None)
    for array in (np.array([object()]), np.array([(1, "x")], [("a", "i4"), ("b", "O")])):
        with pytest.raises(EncodeError, match="references to Python objects"):
            owner.export_array(array)
        with pytest.raises(EncodeError):
            owner.frames.copy(array)
    assert owner.statistics().segments == 0


def test_b22_the_end_of_a_block_never_hides_the_error_inside() -> None:
    owner = Memory(OWNER, wake=lambda: None, step=MIB // 2)
    views: list[object] = []

    def handler() -> None:
        with owner.frames.new(MIB // 4, "u1") as frame:
            views.append(frame.array[10:])
            frame.release()
            raise ValueError("boom")

    def keeps_a_view() -> None:
        with owner.frames.new(3, "u1") as frame:
            views.append(frame.array)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        handler()
    with pytest.raises(ValueError, match="boom"):
        keeps_a_view()
    assert owner.statistics().slots == 2
    views.clear()
    assert owner.statistics().slots == 0
    owner.close()


def test_no_descriptor_stays_open_after_many_peers() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        owner = Memory(OWNER + number, wake=lambda: None, step=MIB // 2)
        owner.frames.new(3, "u1").release()
        owner.close()
    assert len(os.listdir("/proc/self/fd")) == before
