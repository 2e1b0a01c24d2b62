"""One mapped segment of shared memory: sealed by its owner, read-only for everybody else.

A segment is a memfd, so it has no name that could be left behind: it is gone when the last process
that maps it has ended, however that was. Where nothing else can be reached it is a file (see
``transport.shm.files``). Its layout::

    page 0             magic, token, size of the segment, start of the data; at byte 64, whether
                       its owner has given it back
    page 1 to start    one 64-bit generation for each 4 KiB of data; 0 where no slot in use begins
    start to size      the data, handed out in slots

The owner reserves memory before it writes, so that a full machine is an error and not a signal.
How readers come by a descriptor says ``transport.shm.roads``; numbers and pids are reused, hence
the token.
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
from collections.abc import Callable
from typing import Any

from transport.errors import AttachFailed
from transport.shm.mapping import map_readonly
from transport.shm.slab import GRAIN
from transport.wire.handle import TOKEN_SIZE, Announcement

_HEADER = struct.Struct(f"<8s{TOKEN_SIZE}sQQ")
#: Byte of the header page at which a word is set when the owner gives the segment back.
_RETIRED = 64
_WORD = struct.Struct("<Q")
_MAGIC = b"CHOMEM\x00\x01"
_WARM_AT_ONCE = 1 << 20
_WARM_STEP = 1 << 18
#: Seconds between two steps, about as long as one takes.
_WARM_PAUSE = 0.0002

# Not named by the standard library of 3.11.
_F_SEAL_FUTURE_WRITE = 0x10
_MADV_POPULATE_WRITE = 23

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: What to do where a segment is out of reach.
ADVICE = (
    "run both processes as one user in one PID and user namespace; "
    "until then frames go as inline bytes"
)


class Segment:
    """A mapped segment, the owner's own or a peer's.

    Made by ``create_segment`` and ``map_segment``.

    ``map`` is the mapping and ``start`` the first byte of data in it; ``generations`` is the table
    of page 1. ``path``: that of a file, the owner's; ``road``: how a peer's was reached.
    """

    def __init__(
        self,
        mapping: mmap.mmap | memoryview,
        start: int,
        *,
        fd: int = -1,
        path: str = "",
        road: str = "",
    ) -> None:
        #: The owner's mmap, or a reader's memoryview: either takes slices, numpy and struct.
        self.map: Any = mapping
        self.size = len(mapping)
        self.start = start
        self.fd = fd
        self.path = path
        self.road = road
        #: What its owner has said of it, where it is a peer's.
        self.announced: Announcement | None = None
        #: Called once as it closes, before its descriptor does: whoever gives it out stops.
        self.closing: Callable[[], object] | None = None
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

    def retire(self) -> None:
        """Mark the segment as given back, for readers that nobody can tell; for the owner only."""
        _WORD.pack_into(self.map, _RETIRED, 1)

    @property
    def retired(self) -> bool:
        """Whether its owner has given it back."""
        return bool(_WORD.unpack_from(self.map, _RETIRED)[0])

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
            warmer = threading.Thread(target=self._warm, name="callhome-warm", daemon=True)
            self._warmer = warmer
            try:
                warmer.start()
            except RuntimeError:  # there can be no more threads: first writes are slower then
                self._warmer = None

    def announcement(self, owner: int, number: int, name: str = "", space: int = 0) -> Announcement:
        """What another process needs to map this segment; for the owner only, which is called
        ``name`` and has its pid in PID namespace ``space``.
        """
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
            name,
            space,
            self.path,
        )

    def close(self) -> None:
        """Unmap, or leave that to the last view if there are any.

        Never raises because of views. Idempotent.
        """
        self._closing = True
        if self._warmer is not None:
            self._warmer.join()
            self._warmer = None
        closing, self.closing = self.closing, None
        if closing is not None:
            closing()
        self.generations.release()
        with contextlib.suppress(BufferError):
            if isinstance(self.map, memoryview):
                self.map.release()
            else:
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


def create_segment(capacity: int, path: str = "") -> Segment:
    """Make and map a segment for ``capacity`` bytes of data: a sealed memfd, or the file ``path``,
    which must not be there yet.

    Raises OSError when the system refuses.

    Only the pages of its header are reserved.
    """
    table = -(-capacity // GRAIN) * 8
    start = GRAIN + -(-table // GRAIN) * GRAIN
    size = start + -(-capacity // GRAIN) * GRAIN
    if path:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    else:
        fd = os.memfd_create("callhome-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, start)
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        _HEADER.pack_into(mapping, 0, _MAGIC, secrets.token_bytes(TOKEN_SIZE), size, start)
        if not path:
            with contextlib.suppress(OSError):  # since Linux 5.1: nobody else can map it writable
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        if path:
            os.unlink(path)
        raise
    return Segment(mapping, start, fd=fd, path=path)


def map_segment(announced: Announcement, fd: int, road: str) -> Segment:
    """Map a peer's segment read-only from a descriptor, which stays the caller's.

    The mapping stays valid when the peer dies. Raises OSError, and AttachFailed when it is not what
    was announced.
    """
    check_file(announced, os.fstat(fd))
    if not announced.path:  # a file cannot be sealed; whose it is has been looked at
        _check_seals(announced, fd)
    mapping = map_readonly(fd, announced.size)
    magic, token, size, start = _HEADER.unpack_from(mapping)
    if magic != _MAGIC or token != announced.token or size != announced.size:
        raise failed(announced, "the header page is another segment's")
    table = (size - start) // GRAIN * 8
    if start % GRAIN or not GRAIN + table <= start < size:
        raise failed(announced, "the header page is damaged")
    segment = Segment(mapping, start, road=road)
    segment.announced = announced
    return segment


def check_file(announced: Announcement, facts: os.stat_result) -> None:
    """Raise AttachFailed unless this is the file that was announced: for a look before it is
    opened, since a reused descriptor may be a device or a pipe, which opening would disturb.
    """
    if not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) != (
        announced.device,
        announced.inode,
    ):
        raise failed(announced, "its descriptor now names another file")
    if facts.st_size != announced.size or announced.size < 2 * GRAIN:
        raise failed(announced, f"it has {facts.st_size} bytes, {announced.size} were announced")


def _check_seals(announced: Announcement, fd: int) -> None:
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise failed(announced, "it is not sealed, so reading it could end this process")


def failed(announced: Announcement, cause: str, advice: str = ADVICE) -> AttachFailed:
    """The error that says which segment cannot be mapped, why, and what to do."""
    return AttachFailed(
        f"cannot map shared-memory segment {announced.segment} of process {announced.pid}: "
        f"{cause}; {advice}"
    )


def proc_folder(pid: int) -> str:
    """Where /proc shows the process that is called ``pid`` in our own PID namespace.

    Under a bare ``unshare --pid`` /proc is that of another namespace, with other numbers. Raises
    OSError when there is no such process.
    """
    own = os.getpid()
    if pid == own:
        return "/proc/self"
    if os.readlink("/proc/self") == str(own):
        return f"/proc/{pid}"
    fd = os.pidfd_open(pid)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            numbers = [line.split()[1] for line in file if line.startswith("Pid:")]
    finally:
        os.close(fd)
    if not numbers or int(numbers[0]) <= 0:
        raise FileNotFoundError(errno.ENOENT, f"/proc shows no process {pid}")
    return f"/proc/{numbers[0]}"


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        with open(f"{proc_folder(pid)}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (OSError, OverflowError):
        return 0
    # A zombie has ended; where pid 1 does not reap it may stay one for good.
    return 0 if fields[0] in ("Z", "X") else int(fields[19])
