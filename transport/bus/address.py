"""Where an actor's inboxes are: an address names one incarnation of one actor."""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

from transport.errors import LocalProtocolError

#: sun_path holds 108 bytes with its terminating zero.
MAX_PATH = 107
_OUTSIDE = re.compile(r"[/\0]")


class Address(NamedTuple):
    """One incarnation of an actor on this node.

    ``pid`` and ``started`` (clock ticks since boot, field 22 of /proc/PID/stat) tell a process
    apart from a later one that got the same pid. Both mean something in one PID namespace only:
    ``space`` is 0 in that of the node, else the number of another one (the inode of
    /proc/self/ns/pid, see ``actors.kernel.space``).
    """

    name: str
    incarnation: int
    pid: int
    started: int
    space: int = 0

    def __str__(self) -> str:
        # What serves on another node has no process here.
        return f"{self.name} (pid {self.pid})" if self.pid else self.name


def inbox_path(run: str, address: Address, lane: str) -> str:
    """File path of a socket of ``address``; lane is ``"d"`` (data), ``"c"`` (control), or ``"m"``
    where it hands out its shared memory.

    Raises LocalProtocolError when the path is longer than a Unix socket allows, and for a name that
    would lead out of the folder.
    """
    if not address.name or address.name.startswith(".") or _OUTSIDE.search(address.name):
        raise LocalProtocolError(
            f"actor {address.name[:100]!r} cannot have a socket; a name has no '/' or NUL and does "
            "not begin with '.'"
        )
    path = f"{run}/{address.name}.{address.incarnation:x}.{lane}"
    size = len(path.encode())
    if size > MAX_PATH:
        raise LocalProtocolError(
            f"socket path of actor {address.name!r} has {size} bytes, {MAX_PATH} are allowed: "
            f"{path!r}; "
            "choose a shorter run folder (CALLHOME_RUN) or shorter cluster, node and actor names"
        )
    return path


def remove_inboxes(run: str, address: Address) -> None:
    """Unlink the socket files of an incarnation that has ended; harmless when they are gone.

    ZeroMQ leaves the files of closed ipc sockets behind, and who was killed can remove nothing.
    """
    # "b": its signs of life (actors.kernel.beats); "full": see transport.bus.crowd
    for lane in ("d", "c", "m", "b", "d.full", "c.full"):
        with contextlib.suppress(FileNotFoundError, LocalProtocolError):
            os.unlink(inbox_path(run, address, lane))
