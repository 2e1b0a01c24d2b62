"""One mapped segment of shared memory: sealed by its owner, read-only for everybody else.

A segment is a memfd, so it has no name that could be left behind: it is gone when the last process
that maps it has ended, however that was. Its layout::

    page 0             magic, token, size of the segment, start of the data
    page 1 to start    one 64-bit generation for each 4 KiB of data; 0 where no slot in use begins
    start to size      the data, handed out in slots

The owner reserves memory before it writes, so that a full machine is an error and not a signal.
Readers open ``/proc/<pid>/fd/<n>``; descriptor numbers and pids are reused, hence the token.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
import struct
import threading
import time

from transport.errors import AttachFailed
from transport.shm.slab import GRAIN
from transport.wire.handle import TOKEN_SIZE, Announcement

_HEADER = struct.Struct(f"<8s{TOKEN_SIZE}sQQ")
_MAGIC = b"CHOMEM\x00\x01"
_WARM_AT_ONCE = 1 << 20
_WARM_STEP = 1 << 18
#: Seconds between two steps, about as long as one takes.
_WARM_PAUSE = 0.0002

# Not named by the standard library of 3.11.
_F_SEAL_FUTURE_WRITE = 0x10
_MADV_POPULATE_WRITE = 23

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ADVICE = (
    "run both processes as one user in one PID and user namespace; "
    "until then frames go as inline bytes"
)


class Segment:
    """A mapped segment, the owner's own or a peer's.

    Made by ``create_segment`` and ``attach_segment``.

    ``map`` is the mapping and ``start`` the first byte of data in it; ``generations`` is the table
    of page 1.
    """

    def __init__(self, mapping: mmap.mmap, start: int, *, fd: int = -1) -> None:
        self.map = mapping
        self.size = len(mapping)
        self.start = start
        self.fd = fd
        self.token = _HEADER.unpack_from(mapping)[1]
        #: Everything below this byte is reserved.
        self.reserved = start
        self.generations = memoryview(mapping)[GRAIN:start].cast("Q")
        self._warmer: threading.Thread | None = None
        self._closing = False

    def generation_at(self, offset: int) -> int:
        """Generation of the slot that begins at ``offset``.

        0 for one that is free, or where none can begin.
        """
        index, rest = divmod(offset - self.start, GRAIN)
        if rest or not 0 <= index < len(self.generations):
            return 0
        return self.generations[index]

    def stamp(self, offset: int, generation: int) -> None:
        """Write the generation of a slot; only its owner may."""
        self.generations[(offset - self.start) // GRAIN] = generation

    def reserve(self, offset: int, size: int) -> None:
        """Take memory from the system for these bytes; raises OSError when there is none."""
        if offset + size > self.reserved:
            os.posix_fallocate(self.fd, offset, size)

    def warm(self) -> None:
        """Reserve and touch all pages, so that first writes do not fault; for the owner only.

        In a thread, unless the segment is so small that starting one would take as long.
        """
        if self.size <= _WARM_AT_ONCE:
            self._warm()
        elif self._warmer is None and not self._closing:
            self._warmer = threading.Thread(target=self._warm, name="callhome-warm", daemon=True)
            self._warmer.start()

    def announcement(self, owner: int, number: int) -> Announcement:
        """What another process needs to map this segment; for the owner only."""
        facts = os.fstat(self.fd)
        pid = os.getpid()
        return Announcement(
            owner,
            number,
            pid,
            start_time(pid),
            self.fd,
            facts.st_dev,
            facts.st_ino,
            self.size,
            self.token,
        )

    def close(self) -> None:
        """Unmap, or leave that to the last view if there are any.

        Never raises because of views. Idempotent.
        """
        self._closing = True
        if self._warmer is not None:
            self._warmer.join()
            self._warmer = None
        self.generations.release()
        with contextlib.suppress(BufferError):
            self.map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _warm(self) -> None:
        for offset in range(0, self.size, _WARM_STEP):
            size = min(_WARM_STEP, self.size - offset)
            if self._closing:
                return
            try:
                os.posix_fallocate(self.fd, offset, size)
                self.reserved = max(self.reserved, offset + size)
                _touch(self.map, offset, size)
            except OSError:
                return  # no memory: the slot that needs it will find out and say so
            if self._warmer is not None:
                # Touching holds the interpreter lock; without pauses the loop waited for it up to
                # 3.4 ms at a time, with them 0.6 ms.
                time.sleep(_WARM_PAUSE)


def _touch(mapping: mmap.mmap, offset: int, size: int) -> None:
    try:
        mapping.madvise(_MADV_POPULATE_WRITE, offset, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A kernel before 5.14. Reading is enough: it maps a page of a shared writable mapping for
        # writing too, and unlike writing it cannot undo what the loop writes at the same time.
        for page in range(offset, offset + size, GRAIN):
            mapping[page]


def create_segment(capacity: int) -> Segment:
    """Make, seal and map a segment for ``capacity`` bytes of data.

    Raises OSError when the system refuses.

    Only the pages of its header are reserved.
    """
    table = -(-capacity // GRAIN) * 8
    start = GRAIN + -(-table // GRAIN) * GRAIN
    size = start + -(-capacity // GRAIN) * GRAIN
    fd = os.memfd_create("callhome-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, start)
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        _HEADER.pack_into(mapping, 0, _MAGIC, secrets.token_bytes(TOKEN_SIZE), size, start)
        with contextlib.suppress(OSError):  # since Linux 5.1: nobody else can map it for writing
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return Segment(mapping, start, fd=fd)


def attach_segment(announced: Announcement) -> Segment:
    """Map a peer's segment read-only; raises AttachFailed with the cause and the next step.

    The mapping stays valid when the peer dies.
    """
    path = f"/proc/{announced.pid}/fd/{announced.fd}"
    try:
        # Looked at before it is opened: a reused descriptor may be a device or a pipe, which
        # opening would disturb.
        _check_file(announced, os.stat(path))
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _check_file(announced, os.fstat(fd))
            _check_seals(announced, fd)
            mapping = mmap.mmap(fd, announced.size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise _failed(
            announced, "the process or its descriptor is gone", "ask its successor"
        ) from error
    except PermissionError as error:
        raise _failed(announced, "this process may not open it", _ADVICE) from error
    except OSError as error:
        raise _failed(
            announced, str(error), "free memory or raise the limit on open files"
        ) from error
    magic, token, size, start = _HEADER.unpack_from(mapping)
    if magic != _MAGIC or token != announced.token or size != announced.size:
        raise _failed(announced, "the header page is another segment's", _ADVICE)
    table = (size - start) // GRAIN * 8
    if start % GRAIN or not GRAIN + table <= start < size:
        raise _failed(announced, "the header page is damaged", _ADVICE)
    return Segment(mapping, start)


def _check_file(announced: Announcement, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) != (
        announced.device,
        announced.inode,
    ):
        raise _failed(announced, "its descriptor now names another file", _ADVICE)
    if facts.st_size != announced.size or announced.size < 2 * GRAIN:
        raise _failed(
            announced, f"it has {facts.st_size} bytes, {announced.size} were announced", _ADVICE
        )


def _check_seals(announced: Announcement, fd: int) -> None:
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise _failed(announced, "it is not sealed, so reading it could end this process", _ADVICE)


def _failed(announced: Announcement, cause: str, advice: str) -> AttachFailed:
    return AttachFailed(
        f"cannot map shared-memory segment {announced.segment} of process {announced.pid}: "
        f"{cause}; {advice}"
    )


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    # A zombie has ended; where pid 1 does not reap it may stay one for good.
    return 0 if fields[0] in ("Z", "X") else int(fields[19])
