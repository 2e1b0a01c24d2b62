from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from transport.errors import (
    AttachFailed,
    EncodeError,
    FrameReleased,
    LocalProtocolError,
    MemoryExhausted,
    RemoteProtocolError,
    StaleHandle,
)
from transport.shm.memory import Memory
from transport.wire.handle import Handle, handle_from_wire

MIB = 1 << 20
OWNER, READER = 5, 6


class Pair:
    """An owner and a reader in one process, joined by their calls."""

    def __init__(self) -> None:
        self.wakes: list[str] = []
        self.owner = Memory(OWNER, wake=lambda: self.wakes.append("owner"), step=MIB, limit=4 * MIB)
        self.reader = Memory(READER, wake=lambda: self.wakes.append("reader"), step=MIB)

    def lend(self, handle: Handle, stream: int = 1) -> Handle:
        """Announce and lend; the handle as the reader gets it."""
        for told in self.owner.needs(READER, [handle]):
            self.reader.attach(told)
            self.owner.mark(READER, told.segment, True)
        self.owner.lend(handle, READER, stream)
        return handle_from_wire(list(handle))

    def settle(self) -> int:
        """Carry releases home; how many slots are still in use."""
        for owner, releases in self.reader.drain_releases().items():
            assert owner == OWNER
            self.owner.release(READER, releases)
        return self.owner.statistics().slots


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.owner.close()
    made.reader.close()


def array_of(size: int = 1000) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=">i4")


def test_an_array_arrives_read_only(pair: Pair) -> None:
    seen = pair.reader.view_array(pair.lend(pair.owner.export_array(array_of())))
    assert np.array_equal(seen, array_of())
    assert seen.dtype.str == ">i4"
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        seen.setflags(write=True)


def test_a_lease_ends_with_the_last_view(pair: Pair) -> None:
    seen = pair.reader.view_array(pair.lend(pair.owner.export_array(array_of(1024))))
    views = [seen[10:], seen.reshape(32, 32).T, seen.view("u1"), seen.data]
    del seen
    gc.collect()
    while views:
        assert pair.settle() == 1
        assert pair.wakes == []
        views.pop()
    assert pair.wakes == ["reader"]
    assert pair.settle() == 0


def test_the_loop_is_woken_once_until_it_drains(pair: Pair) -> None:
    handles = [pair.lend(pair.owner.export_array(array_of())) for _ in range(5)]
    views = [pair.reader.view_array(handle) for handle in handles[:3]]
    views.clear()
    pair.reader.drop(handles[3])
    assert pair.wakes == ["reader"]
    assert pair.settle() == 1
    pair.reader.drop(handles[4])
    assert pair.wakes == ["reader", "reader"]
    assert pair.settle() == 0


def test_bytes_arrive_as_view_or_copy(pair: Pair) -> None:
    data = os.urandom(100_000)
    view = pair.reader.view_bytes(pair.lend(pair.owner.export_bytes(data)))
    assert view.readonly
    assert view == data
    part = view[5:10]
    del view
    assert pair.settle() == 1
    assert part == data[5:10]
    del part
    assert pair.settle() == 0
    copy = pair.reader.read_bytes(pair.lend(pair.owner.export_bytes(bytearray(data))))
    assert copy == data
    assert pair.settle() == 0


def test_buffers_of_any_layout_are_flattened(pair: Pair) -> None:
    table = np.arange(12, dtype="<u2").reshape(3, 4)
    for source in (table.data, table.T.data, memoryview(bytes(range(20)))[::3]):
        got = pair.reader.read_bytes(pair.lend(pair.owner.export_bytes(source)))
        assert got == source.tobytes()


def test_a_frame_arrives_as_a_frame(pair: Pair) -> None:
    frame = pair.owner.frames.new((2, 3), "<f4")
    frame.array[...] = 7
    handle = frame.hand_on()
    assert handle is not None
    seen = pair.reader.open_frame(pair.lend(handle))
    assert seen.handle is None
    with seen:
        assert seen.array.tolist() == [[7, 7, 7], [7, 7, 7]]
        assert not seen.array.flags.writeable
        assert pair.settle() == 1
    assert pair.settle() == 0
    with pytest.raises(FrameReleased):
        seen.array.sum()


def test_handles_to_nothing_need_no_segment(pair: Pair) -> None:
    empty = pair.owner.export_array(np.zeros((0, 3), "<f4"))
    assert pair.owner.needs(READER, [empty]) == []
    assert pair.owner.attached(READER, [empty])
    pair.owner.lend(empty, READER, 1)
    seen = pair.reader.view_array(handle_from_wire(list(empty)))
    assert (seen.shape, seen.dtype.str, seen.flags.writeable) == ((0, 3), "<f4", False)
    nothing = pair.owner.export_bytes(b"")
    assert pair.reader.read_bytes(nothing) == b""
    assert bytes(pair.reader.view_bytes(nothing)) == b""
    pair.reader.drop(nothing)
    pair.owner.unexport(nothing)
    assert pair.owner.statistics().segments == 0


def test_a_process_reads_its_own_memory(pair: Pair) -> None:
    handle = pair.owner.export_array(array_of())
    assert pair.owner.needs(OWNER, [handle]) == []
    assert pair.owner.attached(OWNER, [handle])
    pair.owner.lend(handle, OWNER, 1)
    seen = pair.owner.view_array(handle)
    assert not seen.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        seen.setflags(write=True)
    assert pair.owner.statistics().slots == 1
    del seen
    assert pair.wakes == ["owner"]
    assert pair.owner.drain_releases() == {}
    assert pair.owner.statistics().slots == 0
    with pytest.raises(StaleHandle):
        pair.owner.view_array(handle)


def test_an_array_that_cannot_be_copied_leaks_nothing(pair: Pair) -> None:
    with pytest.raises(EncodeError):
        pair.owner.export_array(np.array([object()]))
    with pytest.raises(MemoryExhausted):
        pair.owner.export_array(np.zeros(5 * MIB, "u1"))
    assert pair.owner.statistics().slots == 0


def test_an_export_that_is_not_sent_is_taken_back(pair: Pair) -> None:
    handle = pair.owner.export_bytes(b"x" * 5000)
    pair.owner.unexport(handle)
    pair.owner.unexport(handle)
    assert pair.owner.statistics().slots == 0
    with pytest.raises(StaleHandle):
        pair.owner.lend(handle, READER, 1)


def test_a_kept_frame_survives_a_refusal_and_goes_again(pair: Pair) -> None:
    first = pair.owner.export_array(array_of())
    pair.owner.lend(first, 77, 1, keep=True)
    pair.owner.take_back(77)
    second = pair.owner.renew(first)
    pair.owner.release(77, [(first.segment, first.offset, first.generation)])
    assert np.array_equal(pair.reader.view_array(pair.lend(second)), array_of())
    pair.owner.unexport(second)
    assert pair.settle() == 0


@pytest.mark.parametrize("seen", ["view_array", "view_bytes", "read_bytes", "open_frame"])
def test_foreign_handles_are_checked(pair: Pair, seen: str) -> None:
    good = pair.lend(pair.owner.export_array(array_of()))
    look = getattr(pair.reader, seen)
    bad = [
        good._replace(segment=2),
        good._replace(owner=9),
        good._replace(offset=0),
        good._replace(size=2 * MIB),
        good._replace(offset=good.offset + MIB),
    ]
    for handle in bad:
        with pytest.raises(RemoteProtocolError):
            look(handle)
    for handle in (good._replace(generation=99), good._replace(offset=good.offset + 4096)):
        with pytest.raises(StaleHandle):
            look(handle)
    assert pair.owner.statistics().slots == 1


@pytest.mark.parametrize(
    "change", [{"shape": (999,)}, {"dtype": "<f8"}, {"dtype": "O"}, {"dtype": "("}], ids=str
)
def test_a_handle_whose_shape_does_not_fit_is_refused_and_returned(
    pair: Pair, change: dict[str, Any]
) -> None:
    handle = pair.lend(pair.owner.export_array(array_of()))
    with pytest.raises(RemoteProtocolError):
        pair.reader.view_array(handle._replace(**change))
    assert pair.settle() == 0


def test_a_freed_slot_is_stale_for_whoever_comes_late(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_array(array_of()))
    pair.owner.take_back(READER)
    with pytest.raises(StaleHandle, match="its owner has freed it"):
        pair.reader.view_array(handle)
    pair.settle()
    assert pair.owner.statistics().ignored == 1


def test_own_handles_from_peers_are_checked(pair: Pair) -> None:
    handle = pair.owner.export_array(array_of())
    with pytest.raises(RemoteProtocolError, match="slot"):
        pair.owner.view_array(handle._replace(size=MIB, shape=(MIB // 4,)))


def test_each_peer_is_told_of_a_segment_once(pair: Pair) -> None:
    handle = pair.owner.export_bytes(b"x" * MIB)
    other = pair.owner.export_bytes(b"y" * MIB)
    told = pair.owner.needs(READER, [handle, handle])
    assert [one.segment for one in told] == [handle.segment]
    assert [one.segment for one in pair.owner.needs(READER)] == [other.segment]
    assert pair.owner.needs(READER) == []
    assert len(pair.owner.needs(7)) == 2
    pair.owner.forget(READER)
    assert len(pair.owner.needs(READER, [handle, other])) == 2


def test_a_link_is_unusable_after_one_refusal(pair: Pair) -> None:
    handle = pair.owner.export_bytes(b"x" * 5000)
    pair.owner.needs(READER, [handle])
    assert pair.owner.usable(READER)
    assert not pair.owner.attached(READER, [handle])
    pair.owner.mark(READER, handle.segment, True)
    assert pair.owner.attached(READER, [handle])
    pair.owner.mark(READER, 2, False)
    assert not pair.owner.usable(READER)
    pair.owner.mark(8, 1, False)
    assert pair.owner.usable(8)
    assert not pair.owner.attached(8, [handle])


def test_attaching_twice_maps_once(pair: Pair) -> None:
    handle = pair.owner.export_bytes(b"x" * 5000)
    (told,) = pair.owner.needs(READER, [handle])
    pair.reader.attach(told)
    before = len(os.listdir("/proc/self/fd"))
    pair.reader.attach(told)
    pair.owner.attach(told)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(AttachFailed):
        pair.reader.attach(told._replace(segment=2, token=b"?" * 16))


def test_detaching_leaves_the_views(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_array(array_of()))
    seen = pair.reader.view_array(handle)
    pair.reader.detach(OWNER)
    pair.owner.close()
    assert np.array_equal(seen, array_of())
    with pytest.raises(RemoteProtocolError, match="not announced"):
        pair.reader.view_array(handle)


@pytest.mark.parametrize("last", ["view_array", "view_bytes", "read_bytes", "open_frame", "drop"])
def test_what_arrived_can_be_opened_after_its_owner_died(pair: Pair, last: str) -> None:
    handles = [pair.lend(pair.owner.export_array(array_of())) for _ in range(3)]
    pair.reader.expect([*handles, pair.owner.export_bytes(b"")])
    seen = [pair.reader.view_array(handles[0])]
    pair.reader.drop(handles[0]._replace(generation=99))
    pair.owner.close()
    pair.reader.detach(OWNER)
    seen.append(pair.reader.view_array(handles[1]))
    shown = getattr(pair.reader, last)(handles[2])
    with pytest.raises(RemoteProtocolError, match="not announced"):
        pair.reader.view_array(handles[2])
    assert all(np.array_equal(array, array_of()) for array in seen)
    assert len(pair.reader.drain_releases().get(OWNER, [])) in (2, 3)
    del shown


def test_a_handle_that_could_not_be_opened_is_not_expected_any_more(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_array(array_of()))
    pair.reader.expect([handle])
    with pytest.raises(RemoteProtocolError):
        pair.reader.view_array(handle._replace(dtype="<f8"))
    pair.reader.detach(OWNER)
    with pytest.raises(RemoteProtocolError, match="not announced"):
        pair.reader.view_array(handle)


def test_closing_leaves_the_views_and_the_frames(pair: Pair) -> None:
    seen = pair.reader.view_array(pair.lend(pair.owner.export_array(array_of())))
    frame = pair.owner.frames.new(3, "u1")
    own = frame.array
    pair.reader.close()
    pair.owner.close()
    pair.reader.close()
    own[...] = 5
    assert own.tolist() == [5, 5, 5]
    assert np.array_equal(seen, array_of())
    frame.release()
    del own, seen
    pair.reader.drain_releases()
    pair.owner.drain_releases()


def test_a_borrower_gets_a_handle_once(pair: Pair) -> None:
    handle = pair.lend(pair.owner.export_bytes(b"x" * 5000))
    with pytest.raises(LocalProtocolError):
        pair.owner.lend(handle, READER, 2)
    assert pair.owner.take_back_stream(READER, 2) == 0
    assert pair.owner.take_back_stream(READER, 1) == 1
