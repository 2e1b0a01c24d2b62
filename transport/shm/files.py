"""Segments that are files: the last road to shared memory, where no descriptor can be handed over.

Each owner has a folder of its own, ``/dev/shm/callhome-UID-CLUSTER-NODE-RANDOM``, mode 0700, and
holds the lock in it as long as it lives. The kernel drops the lock with the process, so a folder
whose lock can be had belongs to nobody and may be removed by anybody of that user, whatever its
name or age; pids, which repeat between containers, stand nowhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat

from transport.wire.handle import SHARED

_LOCK = "lock"
_ATTEMPTS = 5
_OTHER = re.compile(r"[^A-Za-z0-9._-]")
#: Of the 200 characters that a name may have.
_LONGEST = 100
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Folder:
    """The folder of one owner; made with its first file."""

    def __init__(self, label: str) -> None:
        """``label`` is what an operator reads in the name. Raises OSError."""
        self._fd = -1
        self._serial = 0
        self.path = ""
        for _ in range(_ATTEMPTS):
            if self._make(label):
                return
        raise OSError(f"no folder for frames can be made below {SHARED}")

    def _make(self, label: str) -> bool:
        """Make and lock one; False when a sweep has come in between."""
        path = f"{_prefix(label)}{secrets.token_hex(8)}"
        os.mkdir(path, 0o700)
        try:
            fd = os.open(f"{path}/{_LOCK}", _LOCK_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            return False
        except BaseException:
            os.rmdir(path)
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        if not os.fstat(fd).st_nlink:
            os.close(fd)
            return False
        self.path, self._fd = path, fd
        return True

    def next(self) -> str:
        """Path of the next file; a number is never used again."""
        self._serial += 1
        return f"{self.path}/{self._serial}"

    def close(self) -> None:
        """Remove it with all that is in it. Idempotent, never raises."""
        if self._fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._fd)
            self._fd = -1


def _prefix(label: str) -> str:
    return f"{SHARED}/callhome-{os.geteuid()}-{_OTHER.sub('_', label)[:_LONGEST]}-"


def sweep_files() -> list[str]:
    """Remove the folders of this user whose owner is gone; the paths that were removed.

    Called after the death of an actor, and by whoever sweeps after dead nodes. Never raises.
    """
    return [path for path in _folders() if _swept(path)]


def _folders() -> list[str]:
    mine = f"callhome-{os.geteuid()}-"
    try:
        names = [name for name in os.listdir(SHARED) if name.startswith(mine)]
    except OSError:
        return []
    found = []
    for name in sorted(names):
        path = f"{SHARED}/{name}"
        with contextlib.suppress(OSError):
            facts = os.lstat(path)
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
                found.append(path)
    return found


def _swept(path: str) -> bool:
    try:
        fd = os.open(f"{path}/{_LOCK}", _LOCK_FLAGS)
    except FileNotFoundError:
        # Its maker was killed before it could lock, or is about to: an empty one costs it a try.
        with contextlib.suppress(OSError):
            os.rmdir(path)
            return True
        return False
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.exists(path)
    except OSError:
        return False
    finally:
        os.close(fd)
