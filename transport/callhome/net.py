"""What all TCP connections of one event loop share: a read buffer, the tick's flush, counters, and
one slow timer that notices peers which have gone without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from struct import Struct
from typing import TYPE_CHECKING, Final

from transport.callhome.names import Names
from transport.errors import CallHomeError, ConnectionLost, text_of

if TYPE_CHECKING:
    from transport.callhome.link import Link

log = logging.getLogger("callhome.net")

#: Bytes of the buffer that all links of a loop read into.
READ: Final = 256 * 1024
#: Bytes read along behind a body that is read straight to its place: the next frame's head, and
#: little of what follows it, since that has to be copied.
TAIL: Final = 4096
#: Seconds between two lines of the same kind in the log.
_QUIET: Final = 5.0
#: Kinds of lines whose time is remembered.
_KINDS: Final = 256
#: Seconds between two looks at what the kernel still holds of what links have sent.
_LOOK: Final = 1.0
#: Seconds without any acknowledgement, while bytes are under way, after which a peer is gone.
SILENT: Final = 5.0
#: Unanswered questions whether a full peer has room again, after which it is gone. The system asks
#: ever more rarely, so this takes about three times as long as the peer has been full.
_PROBES: Final = 2

_INFO: Final = Struct("8B24I")


class Net:
    """Made by an actor on its loop, for all its listeners, links and pools; closed at its end.

    It is no process global: a second loop in the same process has one of its own.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.buffer: Final = memoryview(bytearray(READ))
        self.tail: Final = memoryview(bytearray(TAIL))
        self.names: Final = Names(self.loop)
        self.links: set[Link] = set()
        """Every link that still has a socket."""
        self.counters: dict[str, int] = {}
        """How often each thing out of the ordinary has happened, by its short name."""
        self.bytes_in = self.bytes_out = self.reads = self.writes = 0
        self._room = bytearray()
        self._dirty: list[Link] = []
        self._unsure: set[Link] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._told: dict[str, tuple[float, int]] = {}
        self._closed = False

    def count(self, what: str, by: int = 1) -> None:
        """Add to a counter."""
        self.counters[what] = self.counters.get(what, 0) + by

    def complain(self, what: str, text: str, error: BaseException | None = None) -> None:
        """Count something out of the ordinary, and log it unless it was logged just now.

        At most one line of a kind in 5 s; the next one says how many were left out. With ``error``
        the line comes with its traceback.
        """
        self.count(what)
        now = time.monotonic()
        last, left_out = self._told.get(what, (-_QUIET, 0))
        if now - last < _QUIET:
            self._told[what] = (last, left_out + 1)
            return
        if len(self._told) >= _KINDS:
            self._told.clear()
        self._told[what] = (now, 0)
        more = f" (and {left_out} more like this before it)" if left_out else ""
        log.log(logging.ERROR if error else logging.WARNING, "%s%s", text, more, exc_info=error)

    def statistics(self) -> dict[str, int]:
        """All counters and what is open, by name."""
        return self.counters | {
            "links": len(self.links),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "reads": self.reads,
            "writes": self.writes,
        }

    def borrow_room(self, size: int) -> bytearray:
        """Memory of at least ``size`` bytes to gather a large frame in; for links.

        One is kept, since fresh memory costs as much as the copy into it.
        """
        room, self._room = self._room, bytearray()
        return room if len(room) >= size else bytearray(size)

    def return_room(self, room: bytearray) -> None:
        """Give it back when the frame has been taken out."""
        if len(room) > len(self._room):
            self._room = room

    def plan_flush(self, link: Link) -> None:
        """Flush ``link`` at the end of this tick; for links."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(link)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            if link.dirty:
                link.flush()

    def watch(self, link: Link) -> None:
        """Look after a link that has sent something, until all of it is acknowledged; for links.

        TCP_USER_TIMEOUT would not do: it also ends a connection whose reader merely pauses.
        """
        self._unsure.add(link)
        if self._looking is None and not self._closed:
            self._looking = self.loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._looking = None
        for link in list(self._unsure):
            if not link.examine():
                self._unsure.discard(link)
        if self._unsure and not self._closed:
            self._looking = self.loop.call_later(_LOOK, self._look)

    def forget(self, link: Link) -> None:
        """A link's socket is closed; for links."""
        self.links.discard(link)
        self._unsure.discard(link)

    async def wait_closed(self, timeout: float = 2.0) -> None:
        """Wait until the links that are being closed have sent what was written, then ``close``."""
        deadline = self.loop.time() + timeout
        while any(link.closing for link in self.links):
            if self.loop.time() > deadline:
                break
            await asyncio.sleep(0.01)
        self.close()

    def close(self) -> None:
        """Cut every link that is left, without a word to whoever holds it."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self.names.close()
        for link in list(self.links):
            link.close(abort=True)


def tune(sock: socket.socket) -> None:
    """Options of every connection; a listener's are inherited by what it accepts.

    Buffers are left to the system, which lets them grow: fixed at 2 MiB they halved what a loopback
    connection carries.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def silence(sock: socket.socket) -> str | None:
    """Whether the peer's kernel still answers: a text says that it does not, "" that nothing waits
    for an answer, None that something does and it is too early to tell.
    """
    fields = _INFO.unpack_from(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    resent, probes = fields[2], fields[3]
    unacked, silent = fields[8 + 4], fields[8 + 12] / 1000
    if resent and unacked and silent >= SILENT:
        return f"nothing of what was sent has been acknowledged for {silent:.1f} s"
    if probes >= _PROBES:
        return f"{probes} probes in a row were not answered"
    return None if unacked or probes else ""


def lost(peer: str, error: OSError) -> ConnectionLost:
    """The typed error of a connection that the system has ended; names peer and errno."""
    code = errno.errorcode.get(error.errno or 0, "")
    text = error.strerror or text_of(error)
    return ConnectionLost(
        f"connection with {peer} is lost: {f'[{code}] ' if code else ''}{text}",
        peer=peer,
        errno=code,
    )


def gone(peer: str, why: str) -> ConnectionLost:
    """The typed error of a connection that ended for a reason the system has not told."""
    return ConnectionLost(f"connection with {peer} is lost: {why}", peer=peer, errno="")


def failed(peer: str, error: BaseException) -> CallHomeError:
    """The typed error of a connection whose user here has failed on what came."""
    if isinstance(error, CallHomeError):
        return error
    return gone(peer, f"{type(error).__name__} while its bytes were handled here: {text_of(error)}")


def abort(sock: socket.socket) -> None:
    """Close at once, throwing away what waits, and tell the peer so."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
