"""The descriptors 0 to 2, which a program may have been started without.

What it opens first is then given their numbers: its pipes, its sockets, its event loop. A child
must neither take those for its stdout, nor lose a descriptor that was meant for it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess


def fill_descriptors() -> None:
    """Open what is missing of 0 to 2 on /dev/null, before anything else gets the number."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def inherited(fd: int) -> int | None:
    """What ``subprocess`` is to give a child as ``fd``: ours, if it would outlive an exec as the
    descriptors do that a program is started with; else /dev/null.
    """
    try:
        return None if os.get_inheritable(fd) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL


def raised(fd: int) -> int:
    """The same file under a number above 2; ``fd`` itself is closed if it had to be moved."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
