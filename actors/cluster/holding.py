"""The run folder of a node as the node itself has it: by the lock that it holds.

Used by the node's actor. Others may take the files away, or the whole folder: a cleaner of old
files, an operator. What can be put back is; without its folder nobody reaches the node, and another
may have claimed the name meanwhile. Then the node must end, and leave alone what is the other's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from typing import Final

from actors.cluster.folder import INFO, LOCK, NodeInfo, remove_folder, write_info
from actors.errors import CallHomeError, ConnectionLost

log = logging.getLogger("callhome.node")

#: Seconds between two looks. Two looks in a row must find the same fault.
_LOOK: Final = 1.0


class Holding:
    """``lock`` is the descriptor of the folder's claim. Made in the node's process, where it stays;
    ``start`` on its loop.
    """

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self.lock = lock
        #: Why ``node.json`` does not say what it should; "" while it does.
        self.stale = ""
        self._timer: asyncio.TimerHandle | None = None
        self._fault = ""

    def start(self, write: Callable[[], None], lost: Callable[[CallHomeError], None]) -> None:
        """Look at the folder from now on; ``write`` is called where ``node.json`` is missing or out
        of date, ``lost``, once, when the folder is this node's no longer.
        """
        loop = asyncio.get_running_loop()

        def look() -> None:
            fault = self.fault()
            if fault and fault == self._fault:
                self._timer = None
                text = f"this node can be found no longer: {fault}; nothing but callhome may touch "
                lost(ConnectionLost(f"{text}the files there"))
                return
            self._fault = fault
            if not fault and (self.stale or not os.path.exists(self._path(INFO))):
                write()
            self._timer = loop.call_later(_LOOK, look)

        self._timer = loop.call_later(_LOOK, look)

    def stop(self) -> None:
        """Look no more; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def fault(self) -> str:
        """Why the folder is not this node's any more, "" while it is. A lock whose file alone has
        been removed is made anew.
        """
        try:
            found = os.stat(self._path(LOCK), follow_symlinks=False)
        except FileNotFoundError:
            return self._mend()
        except OSError as error:
            return f"its run folder {self.folder} cannot be looked at: {error}"
        held = os.fstat(self.lock)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return ""
        return f"its run folder {self.folder} was taken over by another node of its name"

    def _mend(self) -> str:
        """Put another lock there, locked before anybody sees it."""
        path, made = self._path(LOCK), self._path(f"{LOCK}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(made, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(fd, str(os.getpid()).encode())
                os.link(made, path)
                os.unlink(made)
                os.dup2(fd, self.lock, inheritable=False)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return f"its run folder {self.folder} was removed"
        except OSError as error:  # a full disk, or somebody has claimed it: the next look tells
            log.warning("the lock of run folder %s is missing: %s", self.folder, error)
            return ""
        log.warning("the lock of run folder %s was removed, and made anew", self.folder)
        return ""

    def write(self, info: NodeInfo) -> None:
        """Tell others of this node. On a full disk what stood there stays, and ``stale`` says why,
        until there is room: that must not end what runs.
        """
        if self.fault():
            return
        try:
            write_info(info)
        except OSError as error:
            if not self.stale and os.path.exists(self._path(INFO)):  # else the start has failed
                log.warning("%s is out of date: %s", self._path(INFO), error)
            self.stale = f"{self._path(INFO)} cannot be written: {error}"
        else:
            self.stale = ""

    def remove(self) -> None:
        """The node ends: its folder goes, if it is still its own."""
        with contextlib.suppress(OSError):
            if not os.path.exists(self.folder):
                os.rmdir(os.path.dirname(self.folder))  # its cluster's, if that was the last node
                return
            found, held = os.stat(self._path(LOCK)), os.fstat(self.lock)
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                remove_folder(self.folder)
