"""Arrays that live longer than the runtime that received them: how their owners know.

A runtime that closes says goodbye, and what it had borrowed could go back at once, were there not
arrays of it that the program keeps. For those it leaves a file in the run folder, on which it holds
a lock: until the last of them is gone, and the kernel drops the lock with the process in any case.
Whoever lends memory to one that has gone looks whether the lock is there before he takes it back.
Nothing else of a closed runtime is needed for that, neither its loop nor its sockets, and a file
costs one descriptor for each runtime that was closed too early.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque

from transport.shm.frames import Ties

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

#: What outlives its runtime here: nobody else refers to it any more.
_left: set[_Left] = set()


class _Left:
    """The arrays of one runtime that has closed, and the lock that says so."""

    def __init__(self, path: str, fd: int, ties: Ties) -> None:
        self._path = path
        self._fd = fd
        self._pid = os.getpid()
        self._ties = ties

    def gone(self) -> None:
        """The last of them is gone. In any thread, in the middle of anything."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        _left.discard(self)
        if self._pid == os.getpid():  # a forked child has the same lock, and arrays of its own
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.close(fd)


def outlive(ties: Ties, queue: deque[tuple[int, int, int, int]], path: str) -> bool:
    """Called when a runtime closes, before it says goodbye: arrays that it has received, whose
    leases come back on ``queue``, may live on. Whether there are any. Raises OSError when the file
    cannot be made.
    """
    if not any(True for _ in ties.alive(queue)):
        return False
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    left = _Left(path, fd, ties)
    _left.add(left)
    ties.last(queue, left.gone)
    return True


def lives_on(path: str) -> bool:
    """Whether arrays of a runtime that has closed live on; a file that nobody locks is removed.

    Called by who has lent it memory. Where it cannot be found out they count as alive.
    """
    try:
        fd = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may be looking, too
    except OSError:
        return True
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
        return False
    finally:
        os.close(fd)
