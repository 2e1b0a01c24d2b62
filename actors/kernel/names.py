"""One living client of a name: who takes a name that somebody has is refused.

The name is an address in the kernel's own table of Unix sockets: bound by one process at a time,
free again the moment that ends, however it does, and never a file. Used by a client that was given
a name; actors get theirs from the node's spec, which has each once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from typing import Final

from actors.errors import NameTaken
from transport.bus import forked

_CREDENTIALS: Final = struct.Struct("3i")
#: Nobody takes those who ask: so many can, and further ones hear no pid.
_ASKERS: Final = 4096


class NameClaim:
    """A name below a run folder, held until ``release``. Raises NameTaken, with the holder's pid.

    Where another user sits on it, or the kernel refuses for a reason of its own, nothing is held:
    a name is there for the sake of those who read it.
    """

    def __init__(self, run: str, name: str) -> None:
        text = f"{os.path.realpath(run)}/{name}"
        address = b"\0callhome/" + hashlib.sha256(text.encode()).hexdigest()[:40].encode()
        self._socket: socket.socket | None = None
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            claim.bind(address)
            claim.listen(_ASKERS)  # so that others can ask who we are
        except OSError:
            claim.close()
            holder = _holder(address)
            if not holder:
                return
            raise NameTaken(
                f"client {name!r} of this node is taken by a living one ({holder}); give this one "
                "another name, or none"
            ) from None
        self._socket = claim
        forked.keep(self)

    def release(self) -> None:
        """Give the name back; harmless twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def forked(self) -> None:
        """A forked child has no part in it: the name is free when its parent ends."""
        self.release()


def _holder(address: bytes) -> str:
    """Who holds it, if he may be of our user; "" else."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ask:
        ask.setblocking(False)
        try:
            ask.connect(address)
        except BlockingIOError:
            return "its pid is not known"
        size = _CREDENTIALS.size
        found = ask.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = _CREDENTIALS.unpack(found)
        return f"pid {pid}" if uid == os.geteuid() else ""
    return ""
