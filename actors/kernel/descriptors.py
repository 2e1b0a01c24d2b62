"""Descriptors: 0 to 2, which a program may have been started without, and how many there may be.

What is opened first is given the numbers that are missing of 0 to 2: pipes, sockets, the event
loop. A child must neither take those for its stdout, nor lose a descriptor that was meant for it.
Every peer of an actor costs some, and whoever has none left loses that peer.
"""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from typing import Final

#: Descriptors of an actor by itself, and for each process that it has to do with both ways: a
#: socket for data and one for control, each with its connection, two connections that come in, a
#: pidfd, a segment that is being attached.
OWN: Final = 64
EACH: Final = 8
#: Clients that a node is expected to have beside its actors.
CLIENTS: Final = 32


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


def needed(actors: int, clients: int = CLIENTS) -> int:
    """Descriptors that one of ``actors`` may come to need, if it deals with all others."""
    return OWN + EACH * (actors + clients)


def fellows(soft: int) -> int:
    """Actors and clients together that ``soft`` descriptors a process are enough for."""
    return max((soft - OWN) // EACH, 0)


def scarce(actors: int) -> str:
    """What is wrong with the limit of open files for a node of so many actors, with the next step;
    "" when it is enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = needed(actors)
    if soft >= need:
        return ""
    step = f"ulimit -n {max(need, 4096)}"
    if need > hard:
        step = f"raise the hard limit (limits.conf, LimitNOFILE=, --ulimit nofile=), then {step}"
    return (
        f"open files: {soft} allowed (hard limit {hard}), and each of {actors} actors may need "
        f"{need}, with {CLIENTS} clients; {step}, or peers will be lost"
    )
