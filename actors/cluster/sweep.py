"""Remove what a crashed node left: its processes, sockets and files.

Called by the launcher before it starts a node in a folder that it has just claimed, by
``callhome doctor`` for all folders, and for those of clients outside any node by whoever comes
next: their names are never used again. Most shared memory needs no sweeping: a memfd goes with its
last process. Where it is files, those go whose owner holds their lock no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from actors.cluster.folder import claimer, folders, remove_empty, remove_folder, try_lock
from actors.cluster.roll import read_roll
from actors.kernel.exits import end_sessions
from actors.kernel.peers import start_time
from transport.shm.files import sweep_files

#: How the folder of a client outside any node begins, where a cluster has its name.
OUTSIDE = "outside-"
_KEEP = ("lock",)
#: Seconds to wait for the lock of a node that has ended, and between two looks.
_WAIT: Final = 2.0
_PAUSE: Final = 0.005


def kill_children(folder: str) -> list[int]:
    """SIGKILL those children on a dead node's roll that have outlived it, and what they had
    started, dead ones too; the pids that were there.

    Pid and start time must both match, so a process that merely got an old pid is left alone.
    Those of another PID namespace are, too: they follow a dead node by themselves.
    """
    killed: list[int] = []
    children = read_roll(folder)
    for pid, started in children:
        if start_time(pid) != started:
            continue
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                if start_time(pid) == started:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    killed.append(pid)
            finally:
                os.close(fd)
    # What they had started, of dead ones and of those that were killed just now.
    return killed + end_sessions({pid for pid, _ in children}, folder)


def sweep_claimed(folder: str) -> list[str]:
    """Empty a folder whose lock the caller holds; one line for each thing that was left in it."""
    node = os.path.basename(folder)
    lines = [f"killed process {pid}, left by node {node!r}" for pid in kill_children(folder)]
    for name in sorted(os.listdir(folder)):
        if name not in _KEEP:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
                lines.append(f"removed {os.path.join(folder, name)}")
    return [*lines, *(f"removed {path}" for path in sweep_files())]


def sweep_folder(folder: str) -> list[str]:
    """Remove a folder unless a node lives in it; one line for each thing removed."""
    try:
        fd = try_lock(folder)
    except OSError:
        remove_empty(folder)
        return []
    if fd < 0:
        return []
    # The lock is ours until the folder is gone: whoever claims the name meanwhile tries again.
    try:
        lines = sweep_claimed(folder)
        remove_folder(folder)
        return [*lines, f"removed {folder}"]
    finally:
        os.close(fd)


def sweep_dead(folder: str, owner: str) -> list[str]:
    """As ``sweep_folder``, for a node of which the caller knows that it has ended; blocks for two
    seconds at most. ``owner``: who had claimed the name, as ``claimer`` tells.

    Its lock may be held for a moment yet: by somebody who looks, or by a process that the node was
    just starting as it was killed, for a fork has all descriptors until its exec.
    """
    deadline = time.monotonic() + _WAIT
    while not (lines := sweep_folder(folder)) and owner and claimer(folder) == owner:
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    return lines


def sweep_stale(root: str) -> list[str]:
    """Remove every folder below ``root`` whose node is gone; one line for each thing removed."""
    return [line for folder in folders(root) for line in sweep_folder(folder)]


def sweep_outside(root: str) -> list[str]:
    """Remove the folders of those clients outside any node that were killed; as ``sweep_stale``."""
    found = [each for each in folders(root) if _cluster(each).startswith(OUTSIDE)]
    return [line for folder in found for line in sweep_folder(folder)]


def _cluster(folder: str) -> str:
    return os.path.basename(os.path.dirname(folder))
