"""How an owner makes its segments, and by which roads others may come by them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from functools import partial

from transport.shm.door import Door
from transport.shm.files import Folder
from transport.shm.segment import Segment, create_segment
from transport.shm.slab import GRAIN
from transport.wire.handle import SHARED, Announcement

#: Seconds for which files are not tried again where there was no memory for one.
_PAUSE = 10.0


class Offers:
    """The owner's half of ``transport.shm.roads``; made by a runtime for its memory.

    ``name`` and ``space`` are the owner's, as in its ``Address``; ``door`` is the path of its
    socket for descriptors ("": none), ``label`` the start of a folder for files; ``road`` is the
    setting ``frame_road``. Safe to use from several threads.
    """

    def __init__(
        self, *, name: str = "", space: int = 0, door: str = "", label: str = "", road: str = "auto"
    ) -> None:
        self._name = name
        self._space = space
        self._path = door if road in ("auto", "socket") else ""
        self._label = label
        self._road = road
        self._lock = threading.Lock()
        self._door: Door | None = None
        self._folder: Folder | None = None
        #: Whether somebody needs files, and until when (monotonic) none are tried.
        self._wanted = road == "file"
        self._pause_until = 0.0
        #: Why the door could not be opened; others have only /proc then.
        self.trouble = ""

    @property
    def inline(self) -> bool:
        """No road leads here: everybody gets bytes."""
        return self._road == "inline"

    def want_files(self) -> bool:
        """Somebody can use neither of the other roads: segments made from now on are files.

        False where the setting forbids it.
        """
        self._wanted = self._wanted or self._road == "auto"
        return self._wanted

    @property
    def files(self) -> bool:
        """Whether segments are files now."""
        return self._wanted and (self._road == "file" or time.monotonic() >= self._pause_until)

    def put_off(self) -> bool:
        """There was no memory for a file: make none for a while. False where they are
        prescribed.
        """
        if self._road == "file":
            return False
        self._pause_until = time.monotonic() + _PAUSE
        return True

    def file(self, capacity: int, least: int) -> Segment | None:
        """A segment that is a file, if files are wanted and can be had; as ``create`` otherwise.
        None: not now.
        """
        with self._lock:
            return self._in_file(capacity, least) if self.files else None

    def create(self, capacity: int, least: int = 0) -> Segment:
        """Make a segment for ``capacity`` bytes of data, or for ``least`` at least where a file is
        preferred and there is not room for a larger one. Raises OSError when the system refuses.
        """
        with self._lock:
            if self.files:
                segment = self._in_file(capacity, least or capacity)
                if segment is not None:
                    return segment
            segment = create_segment(capacity)
            self._open()
            door = self._door
            if door is not None:
                token = segment.token
                door.offer(token, segment.fd)
                segment.closing = lambda: door.withdraw(token)
            return segment

    def _in_file(self, capacity: int, least: int) -> Segment | None:
        """One that is a file; None where none can be and none is prescribed."""
        try:
            if self._road != "file":
                capacity = _fitting(capacity, least)
            if self._folder is None:
                self._folder = Folder(self._label)
            path = self._folder.next()
            segment = create_segment(capacity, path)
        except OSError:
            if not self.put_off():
                raise
            return None
        segment.closing = partial(_remove, path)
        return segment

    def _open(self) -> None:
        if self._path and self._door is None:
            try:
                self._door = Door(self._path)
            except OSError as error:
                self.trouble = f"{self._path}: {error}"
                self._path = ""

    def announcement(self, segment: Segment, owner: int, number: int) -> Announcement:
        """What another process needs to map a segment of ours."""
        return segment.announcement(owner, number, self._name, self._space)

    def close(self) -> None:
        """Close the door and remove what files there are. Idempotent, never raises."""
        with self._lock, contextlib.ExitStack() as stack:
            for each in (self._door, self._folder):
                if each is not None:
                    stack.callback(each.close)
            self._path, self._door, self._folder = "", None, None


def _fitting(capacity: int, least: int) -> int:
    """Up to half of what is free in the file system of files, but ``least``: others need some, too.
    Raises OSError when there is not so much: a memfd is not bounded by that.
    """
    found = os.statvfs(SHARED)
    free = found.f_bavail * found.f_frsize
    if least + least // GRAIN * 8 + 3 * GRAIN > free:
        raise OSError(errno.ENOSPC, f"{free} bytes are free in {SHARED}")
    return max(least, min(capacity, free // 2 // GRAIN * GRAIN))


def _remove(path: str) -> None:
    """Who has a segment mapped keeps it; its name would keep the memory for ever."""
    with contextlib.suppress(OSError):
        os.unlink(path)
