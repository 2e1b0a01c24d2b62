"""Which processes a node has started, written down before any code of an actor runs in them.

The file ``children`` of the run folder, a line each: PID namespace, pid, start time. The node
writes it from its first child on; whoever sweeps up behind a node that was killed reads it, be it
in the middle of its start. Who has ended stays in it: what it has started may still run.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from actors.kernel.exits import occupied_sessions
from actors.kernel.peers import start_time
from actors.kernel.space import own_space

log = logging.getLogger("callhome.node")

_ROLL: Final = "children"
#: Lines from which on those are left out of whom nothing runs any more.
_MOST: Final = 256


class Roll:
    """The list of one node, in its run folder. Never raises: a full disk must not end a node."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, _ROLL)
        self._lines: list[str] = []
        self._most = _MOST

    def add(self, pid: int) -> None:
        """A child of this process that has just been started."""
        self._lines.append(f"{own_space()} {pid} {start_time(pid)}\n")
        try:
            if len(self._lines) > self._most:
                self._shorten()
            elif len(self._lines) > 1 and not os.path.exists(self._path):
                self._rewrite()
            else:
                _append(self._path, self._lines[-1])
        except OSError as error:
            log.warning("%s does not tell of process %d: %s", self._path, pid, error)

    def keep(self) -> None:
        """Put the list back where somebody has removed it."""
        if self._lines and not os.path.exists(self._path):
            try:
                self._rewrite()
            except OSError as error:
                log.warning("%s cannot be put back: %s", self._path, error)

    def _shorten(self) -> None:
        occupied = occupied_sessions()
        self._lines = [each for each in self._lines if int(each.split()[1]) in occupied]
        self._most = max(_MOST, 2 * len(self._lines))
        self._rewrite()

    def _rewrite(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path + ".new")
        _append(self._path + ".new", "".join(self._lines))
        os.replace(self._path + ".new", self._path)


def _append(path: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read_roll(folder: str) -> list[tuple[int, int]]:
    """Pid and start time of each process on the list of a node of our PID namespace."""
    try:
        lines = Path(folder, _ROLL).read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) != 3 or not all(each.isdecimal() for each in fields):
            continue  # the disk was full
        space, pid, started = map(int, fields)
        if space in (0, own_space()):
            found.append((pid, started))
    return found
