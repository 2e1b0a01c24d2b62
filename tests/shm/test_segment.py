from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until_sync
from transport.errors import AttachFailed
from transport.shm.roads import attach_segment
from transport.shm.segment import Segment, create_segment, start_time
from transport.wire.handle import Announcement

MIB = 1 << 20


@pytest.fixture
def own() -> Iterator[Segment]:
    segment = create_segment(MIB // 2)
    yield segment
    segment.close()


def test_a_reader_sees_what_the_owner_writes_and_cannot_write(own: Segment) -> None:
    own.map[own.start] = 7
    seen = attach_segment(own.announcement(5, 1))
    assert seen.map[own.start] == 7
    assert seen.start == own.start
    own.map[own.start] = 8
    assert seen.map[own.start] == 8
    with pytest.raises(TypeError):
        seen.map[own.start] = 9
    seen.close()


def test_generations_are_seen_by_readers(own: Segment) -> None:
    seen = attach_segment(own.announcement(5, 1))
    last = own.size - 4096
    own.stamp(last, 2**63)
    assert seen.generation_at(last) == 2**63
    own.stamp(last, 0)
    assert seen.generation_at(last) == 0
    for offset in (0, own.start - 4096, own.start + 1, own.size, own.size + 4096):
        assert seen.generation_at(offset) == 0
    seen.close()


def test_nobody_can_shrink_it_or_map_it_for_writing(own: Segment) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(own.fd, 4096)
    with pytest.raises(PermissionError):
        fcntl.fcntl(own.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    fd = os.open(f"/proc/self/fd/{own.fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, own.size)
    finally:
        os.close(fd)


def test_reserving_takes_memory_before_it_is_written(own: Segment) -> None:
    before = os.fstat(own.fd).st_blocks
    own.reserve(own.start, MIB // 2)
    assert (os.fstat(own.fd).st_blocks - before) * 512 >= MIB // 2


def test_warming_reserves_all_of_it_in_a_thread() -> None:
    large = create_segment(8 * MIB)
    large.map[large.start] = 7
    large.warm()
    wait_until_sync(lambda: large.reserved == large.size)
    assert os.fstat(large.fd).st_blocks * 512 >= large.size
    assert large.map[large.start] == 7
    large.close()


def test_closing_in_the_middle_of_warming_ends_it() -> None:
    for _ in range(5):
        large = create_segment(32 * MIB)
        large.warm()
        large.close()
        assert large.fd == -1


def test_pages_are_touched_by_reading_where_the_kernel_is_old(
    own: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transport.shm.segment._MADV_POPULATE_WRITE", 0x7FFF)
    own.map[own.start] = 7
    own.warm()
    assert own.reserved == own.size
    assert own.map[own.start] == 7


def test_closing_with_a_view_alive_leaves_the_view(own: Segment) -> None:
    own.map[own.start] = 7
    seen = attach_segment(own.announcement(5, 1))
    data = memoryview(seen.map)
    seen.close()
    own.close()
    assert data[own.start] == 7
    data.release()


def announced(segment: Segment) -> Announcement:
    return segment.announcement(5, 1)


def test_a_process_that_is_gone_is_named(own: Segment) -> None:
    with pytest.raises(
        AttachFailed, match="process 4194305: the process or its descriptor is gone"
    ):
        attach_segment(announced(own)._replace(pid=4194305))


def test_a_closed_descriptor_is_named(own: Segment) -> None:
    with pytest.raises(AttachFailed, match="is gone"):
        attach_segment(announced(own)._replace(fd=1 << 20))


def test_a_reused_descriptor_is_not_even_opened(own: Segment, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(AttachFailed, match="another file"):
            attach_segment(announced(own)._replace(fd=fd))
    finally:
        os.close(fd)


def test_another_segment_is_told_by_inode_token_and_size(own: Segment) -> None:
    other = create_segment(MIB // 2)
    try:
        with pytest.raises(AttachFailed, match="another file"):
            attach_segment(announced(own)._replace(fd=other.fd))
        with pytest.raises(AttachFailed, match="header page is another"):
            attach_segment(announced(own)._replace(token=b"?" * 16))
        with pytest.raises(AttachFailed, match="were announced"):
            attach_segment(announced(own)._replace(size=own.size + 4096))
    finally:
        other.close()


def test_memory_that_is_not_sealed_is_refused() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, MIB)
        facts = os.fstat(fd)
        token = b"t" * 16
        with pytest.raises(AttachFailed, match="not sealed"):
            attach_segment(
                Announcement(
                    5, 1, os.getpid(), 0, fd, facts.st_dev, facts.st_ino, facts.st_size, token
                )
            )
    finally:
        os.close(fd)


def test_a_damaged_header_is_refused(own: Segment) -> None:
    told = announced(own)
    own.map[32:40] = (2 * own.size).to_bytes(8, "little")
    with pytest.raises(AttachFailed, match="damaged"):
        attach_segment(told)


def test_a_refused_open_says_what_to_do(own: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    told = announced(own)

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AttachFailed, match="may not open it; run both processes as one user"):
        attach_segment(told)


def test_start_time_tells_processes_apart() -> None:
    assert start_time(os.getpid()) == start_time(os.getpid()) > 0
    assert start_time(4194305) == 0  # nobody has it
