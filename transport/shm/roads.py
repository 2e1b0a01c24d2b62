"""How a reader gets at the shared memory of others, in this order, the first that works:

``proc``     opens ``/proc/PID/fd/N``: one user, one PID namespace, and the owner is dumpable
``socket``   asks the owner for the descriptor at its door in the run folder
``file``     opens the file that the segment is, for its owner has found the other two closed

Which one it was is kept for each owner, so that its next segments cost one attempt.
"""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable

from transport.errors import AttachFailed
from transport.shm.door import fetch
from transport.shm.segment import ADVICE, Segment, check_file, failed, map_segment, proc_folder
from transport.wire.handle import SHARED, Announcement

PROC, SOCKET, FILE, AUTO = "proc", "socket", "file", "auto"
_KEPT = 4096
_FAILURES = 256
#: Seconds for which a failure is believed.
_LEARNED = 5.0
_LIMITS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def _no_door(announced: Announcement) -> str:
    return ""


class Roads:
    """The reader's half of ``transport.shm.offers``; made by a runtime for its memory.

    ``road`` is the setting ``frame_road``, ``space`` our PID namespace as in our ``Address``;
    ``door`` gives the path of an owner's socket, "" for one that has none. Used on one thread.
    """

    def __init__(
        self,
        *,
        road: str = AUTO,
        space: int = 0,
        door: Callable[[Announcement], str] = _no_door,
    ) -> None:
        self._road = road
        self._space = space
        self._door = door
        self._kept: OrderedDict[int, str] = OrderedDict()
        #: Until when a segment is not tried again, why, and what would help.
        self._failures: OrderedDict[Announcement, tuple[float, str, str]] = OrderedDict()
        #: What would help where the last attempt has failed: "file", or "".
        self.wanted = ""

    def attach(self, announced: Announcement) -> Segment:
        """Map a segment that a peer announced, read-only; its ``road`` says how it was reached.

        Blocks for a quarter of a second at most. Raises AttachFailed with the causes, road by road,
        and the next step.
        """
        self.wanted = FILE if self._road in (AUTO, FILE) and not announced.path else ""
        self._look_back(announced)
        causes: list[str] = []
        for road in self._candidates(announced):
            try:
                segment = self._reach(road, announced)
            except AttachFailed as error:
                causes.append(f"{road}: {error}" if causes else str(error))
                failure = error
            except OSError as error:
                gone = road == SOCKET and isinstance(error, FileNotFoundError) and not error.errno
                if error.errno in _LIMITS or gone:  # a file would be no better, or gone as well
                    self.wanted = ""
                failure = self._worded(road, announced, error)
                causes.append(str(failure))
            else:
                self.wanted = ""
                self._keep(announced.owner, road)
                return segment
        if not causes:
            raise failed(
                announced,
                f"frame_road is {self._road!r} here, and it is not to be had by that",
                "set frame_road to 'auto' on both sides; until then frames go as inline bytes",
            )
        if len(causes) > 1:
            failure = AttachFailed("; then ".join(causes))
        self._failures[announced] = (time.monotonic() + _LEARNED, str(failure), self.wanted)
        if len(self._failures) > _FAILURES:
            self._failures.popitem(last=False)
        raise failure

    def _look_back(self, announced: Announcement) -> None:
        """Raise what a moment ago was found out: each attempt may hold the loop up."""
        found = self._failures.get(announced)
        if found is not None and time.monotonic() < found[0]:
            self.wanted = found[2]
            raise AttachFailed(found[1])

    @property
    def owners(self) -> list[int]:
        """Whose memory was reached, and is not known to be gone."""
        return list(self._kept)

    def taken(self, owner: int) -> str:
        """The road by which this owner's memory was reached last, "" for none."""
        return self._kept.get(owner, "")

    def forget(self, owner: int) -> None:
        """It is gone."""
        self._kept.pop(owner, None)

    def _candidates(self, announced: Announcement) -> list[str]:
        if announced.path:
            roads = [FILE]
        else:
            roads = [PROC] if announced.space == self._space else []
            if self._door(announced):
                roads.append(SOCKET)
            roads.sort(key=lambda road: road != self._kept.get(announced.owner))
        return [road for road in roads if self._road in (AUTO, road)]

    def _keep(self, owner: int, road: str) -> None:
        self._kept[owner] = road
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _reach(self, road: str, announced: Announcement) -> Segment:
        if road == PROC:
            fd = _open_proc(announced)
        elif road == SOCKET:
            fd = fetch(self._door(announced), announced.token)
        else:
            fd = _open_file(announced)
        try:
            return map_segment(announced, fd, road)
        finally:
            os.close(fd)

    def _worded(self, road: str, announced: Announcement, error: OSError) -> AttachFailed:
        if error.errno in _LIMITS:
            advice = "free memory or raise the limit on open files"
            return _caused(failed(announced, str(error), advice), error)
        if road == SOCKET:
            what = "it does not answer" if isinstance(error, TimeoutError) else str(error)
            return _caused(failed(announced, f"{self._door(announced)}: {what}"), error)
        if road == FILE:
            return _caused(failed(announced, f"{announced.path}: {error}"), error)
        if isinstance(error, FileNotFoundError):
            cause = "the process or its descriptor is gone"
            return _caused(failed(announced, cause, "ask its successor"), error)
        cause = "this process may not open it" if isinstance(error, PermissionError) else str(error)
        return _caused(failed(announced, cause, ADVICE), error)


def _caused(failure: AttachFailed, error: OSError) -> AttachFailed:
    failure.__cause__ = error
    return failure


def _open_proc(announced: Announcement) -> int:
    path = f"{proc_folder(announced.pid)}/fd/{announced.fd}"
    check_file(announced, os.stat(path))
    return os.open(path, _FLAGS)


def _open_file(announced: Announcement) -> int:
    """Inside a folder of our own user below /dev/shm, without following a link anywhere."""
    folder, _, name = announced.path.rpartition("/")
    if os.path.dirname(folder) != SHARED:
        raise failed(announced, f"{announced.path} is not inside {SHARED}")
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    inside = os.open(folder, flags)
    try:
        _check_owner(announced, os.fstat(inside), folder)
        facts = os.stat(name, dir_fd=inside, follow_symlinks=False)
        check_file(announced, facts)
        _check_owner(announced, facts, announced.path)
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=inside)
    finally:
        os.close(inside)


def _check_owner(announced: Announcement, facts: os.stat_result, path: str) -> None:
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise failed(
            announced,
            f"{path} belongs to uid {facts.st_uid} (mode {facts.st_mode & 0o777:o}), this process "
            f"runs as uid {os.geteuid()}",
        )


def attach_segment(announced: Announcement) -> Segment:
    """Map a peer's segment by the roads that need no door. Raises AttachFailed."""
    return Roads().attach(announced)
