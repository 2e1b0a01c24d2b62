"""Frames of others that are handed on: which are recognised, how long they are held, for whom."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from transport.errors import StaleHandle
from transport.payload import decode_payload, encode_payload, inline_kept
from transport.shm.memory import Memory
from transport.shm.passing import Passing, received
from transport.shm.slab import Slab
from transport.wire.handle import Handle

MIB = 1 << 20
A, B, C, D = 101, 102, 103, 104
SIZE = 300 << 10


@pytest.fixture
def owner() -> Iterator[Memory]:
    made = Memory(A, wake=lambda: None, step=4 * MIB, limit=16 * MIB)
    yield made
    made.close()


@pytest.fixture
def relay() -> Iterator[Memory]:
    made = Memory(B, wake=lambda: None, step=4 * MIB, limit=16 * MIB)
    yield made
    made.close()


def give(owner: Memory, to: Memory, value: Any) -> Any:
    """``value`` as ``to`` receives it from ``owner``."""
    encoded = encode_payload(value, memory=owner, native=True)
    for announcement in owner.needs(to.owner, encoded.handles):
        to.attach(announcement)
    for handle in encoded.handles:
        owner.lend(handle, to.owner, 1)
    return decode_payload(encoded.data, [list(each) for each in encoded.handles], memory=to)


def settle(reader: Memory, owner: Memory) -> None:
    for gone, leases in reader.drain_releases().items():
        assert gone == owner.owner
        owner.release(reader.owner, leases)


def test_whole_views_are_recognised_and_parts_are_not(owner: Memory, relay: Memory) -> None:
    array = give(owner, relay, np.arange(SIZE // 4, dtype="<i4").reshape(-1, 64))
    whole = {
        "itself": array,
        "flat": array.reshape(-1),
        "another dtype": array.view("<u2"),
        "a view of a view": array[:].reshape(64, -1)[...],
    }
    for name, each in whole.items():
        found = received(each)
        assert found is not None, name
        handle, base = found
        assert (handle.owner, handle.size, handle.shape) == (A, SIZE, each.shape), name
        assert np.array_equal(
            np.frombuffer(base, each.dtype, each.size, handle.offset).reshape(each.shape), each
        )
        del found, base
    parts = {
        "a slice": array[1:],
        "its beginning": array[:-1],
        "backwards": array[::-1],
        "turned": array.T,
        "a copy": array.copy(),
        "of ours": relay.frames.new(SIZE, "u1").array,
        "none": np.zeros(3),
    }
    for name, each in parts.items():
        assert received(each) is None, name
    text = give(owner, relay, memoryview(bytes(SIZE)))
    assert received(text) is not None
    assert received(text[1:]) is None
    assert received(memoryview(b"abc")) is None
    tied = array.base.base  # what nobody should touch: the mapping under the array
    assert received(np.frombuffer(tied, "u1", SIZE, 8192)) is None


def test_what_was_dug_out_of_a_mapping_is_copied(owner: Memory, relay: Memory) -> None:
    first = give(owner, relay, np.full(SIZE, 1, "u1"))
    other = np.frombuffer(first.base.base, "u1", SIZE, 0)
    encoded = encode_payload(other, memory=relay, native=True)
    assert [each.owner for each in encoded.handles] == [B]


@pytest.mark.parametrize("kind", ["frame", "array", "bytes"])
def test_b05_an_owner_cannot_reuse_what_was_handed_on(
    owner: Memory, relay: Memory, kind: str
) -> None:
    filled = np.full(SIZE, 7, "u1")
    sent: Any = filled
    if kind == "frame":
        sent = owner.frames.copy(filled)
    elif kind == "bytes":
        sent = bytearray(filled.tobytes())
    got = give(owner, relay, {"v": sent})
    encoded = encode_payload(got, memory=relay, native=True)
    (handle,) = encoded.handles
    assert handle.owner == A
    assert relay.statistics().segments == 0
    relay.lend(handle, C, 5)
    del got
    gc.collect()
    settle(relay, owner)
    assert owner.statistics().slots == 1, "the relay's view is gone, but not the reader's lease"
    assert relay.copy_out(handle) == filled.tobytes()
    assert relay.passing.release(C, (A, handle.segment, handle.offset, handle.generation))
    settle(relay, owner)
    assert owner.statistics().slots == 0
    assert len(relay.passing) == 0


def test_a_frame_that_was_handed_on_counts_as_such_and_stays_readable(
    owner: Memory, relay: Memory
) -> None:
    from transport.errors import FrameReleased

    frame = give(owner, relay, owner.frames.copy(np.full(SIZE, 3, "u1")))
    encoded = encode_payload(frame, memory=relay, native=True)
    assert encoded.handles[0].owner == A
    assert int(frame.array[5]) == 3
    with pytest.raises(FrameReleased, match="handed on"):
        encode_payload(frame, memory=relay, native=True)
    relay.unexport(encoded.handles[0])
    assert len(relay.passing) == 0


def test_small_frames_and_those_of_the_dead_are_copied(owner: Memory, relay: Memory) -> None:
    small = give(owner, relay, np.zeros(40_000, "u1"))
    assert encode_payload(small, memory=relay, native=True).handles[0].owner == B
    large = give(owner, relay, np.full(SIZE, 9, "u1"))
    relay.detach(A)
    encoded = encode_payload(large, memory=relay, native=True)
    assert encoded.handles[0].owner == B
    assert relay.copy_out(encoded.handles[0]) == bytes([9]) * SIZE


def test_an_error_in_the_value_holds_nothing(owner: Memory, relay: Memory) -> None:
    from transport.errors import EncodeError

    array = give(owner, relay, np.zeros(SIZE, "u1"))
    with pytest.raises(EncodeError):
        encode_payload([array, object()], memory=relay, native=True)
    assert len(relay.passing) == 0
    assert encode_payload([array], memory=relay, native=False).handles == []
    assert len(relay.passing) == 0


def test_a_held_frame_outlives_its_owner(owner: Memory, relay: Memory) -> None:
    array = give(owner, relay, np.full(SIZE, 4, "u1"))
    encoded = encode_payload(array, memory=relay, native=True)
    relay.detach(A)
    del array
    assert relay.copy_out(encoded.handles[0]) == bytes([4]) * SIZE
    assert relay.needs(C, encoded.handles) == []
    assert not relay.usable(C, encoded.handles)
    relay.unexport(encoded.handles[0])


def test_a_request_that_is_sent_again_takes_the_bytes_along(owner: Memory, relay: Memory) -> None:
    array = give(owner, relay, np.full(SIZE, 4, "u1"))
    encoded = encode_payload([array, array], memory=relay, native=True, root="request")
    assert [each.owner for each in encoded.handles] == [A, A]
    relay.lend(encoded.handles[0], C, 1, keep=True)
    del array
    again = inline_kept(encoded, relay)
    assert [each[2] for each in again.handles] == [bytes([4]) * SIZE] * 2
    assert [each.borrower for each in relay.passing.leases()] == [C]
    relay.take_back(C)
    settle(relay, owner)
    assert owner.statistics().slots == 0


def handle_at(offset: int) -> Handle:
    return Handle(A, 1, offset, 4096, 9, "|u1", (4096,))


def test_proxy_leases_are_counted_and_end_once_each() -> None:
    clock = iter(range(100))
    passing = Passing(lambda: float(next(clock)))
    first, second = handle_at(8192), handle_at(16384)
    base = memoryview(bytes(1 << 16))
    key = (A, 1, 8192, 9)
    for _ in range(3):
        passing.hold(first, base)
    passing.lend(first, C, 1)
    passing.lend(first, C, 2)
    passing.lend(first, D, 3, keep=True)
    assert sorted((each.borrower, each.stream) for each in passing.leases()) == [
        (-1, 0),
        (C, 1),
        (C, 2),
        (D, 3),
    ]
    assert passing.release(C, key)
    assert passing.take_back_stream(C, 7) == 0
    assert passing.take_back_stream(C, 2) == 1
    assert not passing.release(C, key)
    assert not passing.release(77, key)
    assert not passing.release(C, (A, 9, 9, 9))
    passing.unexport(first)
    assert len(passing) == 1
    assert passing.take_back(D) == 1
    assert len(passing) == 0
    passing.unexport(first)
    with pytest.raises(StaleHandle):
        passing.lend(second, C, 1)
    with pytest.raises(StaleHandle):
        passing.copy_out(second)


def test_each_peer_is_told_once_of_each_segment_and_not_of_its_own() -> None:
    passing = Passing(lambda: 0.0)
    handles = [handle_at(8192), handle_at(16384)]
    assert passing.untold(C, handles) == [(A, 1)]
    assert passing.untold(C, handles) == []
    assert passing.untold(A, handles) == []
    assert passing.attached(A, handles[0])
    assert not passing.attached(C, handles[0])
    passing.mark(C, A, 1, ok=True)
    assert passing.attached(C, handles[0])
    passing.mark(C, A, 2, ok=False)
    assert not passing.usable(C, A)
    assert passing.usable(D, A)
    passing.forget(A)
    assert passing.usable(C, A)
    assert passing.untold(C, handles) == [(A, 1)]


def test_a_lease_is_adopted_only_from_who_holds_it_and_as_often_as_asked() -> None:
    slab = Slab()
    slab.add_segment(1, 8192, 8192 + 16 * 4096)
    slot = slab.allocate(4096)
    assert slot is not None
    frame = (slot.segment, slot.offset, slot.generation)
    with pytest.raises(StaleHandle, match="holds it no more"):
        slab.adopt(slot, B, C, 4)
    slab.adopt(slot, B, D, 4, asked=True)  # of a request that nobody has accepted yet
    slab.lend(slot, B, 1, keep=False)
    slab.adopt(slot, B, C, 4)
    slab.adopt(slot, B, C, 5)
    slab.release(*frame, B)
    slab.adopt(slot, B, C, 6)  # it has one itself, so that the frame is there
    with pytest.raises(StaleHandle):
        slab.adopt(slot, B, 55, 4)
    assert slab.take_back_stream(C, 4) == [], "that is a stream of somebody else"
    slab.release(*frame, D)
    for _ in range(2):
        assert slab.release(*frame, C) is None
    assert slab.release(*frame, C) is slot
    assert slab.release(*frame, C) is None
    assert slab.counts().slots == 0
    slot = slab.allocate(4096)
    assert slot is not None
    slab.lend(slot, B, 1, keep=False)
    slab.adopt(slot, B, C, 4)
    slab.adopt(slot, B, C, 4)
    slab.take_back(B)
    assert slab.take_back(C) == [slot]
    assert not slab._more
