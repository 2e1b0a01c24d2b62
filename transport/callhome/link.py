"""One TCP connection on the running loop: what is written leaves once a tick, large parts unjoined
and uncopied; what comes is handed on from one shared buffer, or read straight to its place.

asyncio's own transports reach 10 to 13 % of a plain socket at 8 MiB, copy what they cannot send,
and cost a task or a future where a callback does; hence a socket and ``add_reader``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final

from transport.callhome.address import hostport
from transport.callhome.net import Net as Net
from transport.callhome.net import abort as abort_socket
from transport.callhome.net import failed, gone, lost, silence
from transport.callhome.outgoing import Buffer, Outgoing
from transport.callhome.straight import Straight
from transport.errors import CallHomeError, RemoteProtocolError

Received = Callable[[memoryview], None]
Ended = Callable[[CallHomeError | None], None]

#: Bytes that one wake-up may move each way before other connections have their turn.
_TURN: Final = 1 << 20
#: Below this many waiting bytes a link counts as drained.
DRAINED: Final = 64 * 1024
#: Seconds that a closed link may take to send what was written before.
LINGER: Final = 2.0


class Link:
    """A connected, non-blocking socket; made by a listener or a dialer on the loop of its ``Net``.

    Reading begins with ``start``. Everything is called on the loop, and nothing after ``close``.
    """

    __slots__ = (
        "_blocked", "_broken", "_closed", "_drained", "_ended", "_ending", "_eof",
        "_local", "_out", "_paused", "_pumping", "_reading", "_received", "_sock", "_straight",
        "_timer", "closing", "dirty", "net", "peer", "received",
    )  # fmt: skip

    def __init__(self, net: Net, sock: socket.socket, peer: str = "") -> None:
        self.net = net
        self._sock = sock
        self.peer = peer or _name(sock.getpeername())
        """``host:port`` of the other end."""
        self.received = 0
        """Bytes that have come."""
        self.closing = False
        """``close`` was called and what was written before is still being sent."""
        self._local = ""
        self._out = Outgoing()
        self._drained: list[Callable[[], None]] = []
        self._received: Received | None = None
        self._ended: Ended | None = None
        self._straight = Straight()
        self._broken: CallHomeError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.dirty = False
        """Something was written in this tick and nobody has flushed it; for ``Net``."""
        self._blocked = self._pumping = False
        self._reading = self._paused = self._eof = self._ending = self._closed = False
        net.links.add(self)

    @property
    def socket(self) -> socket.socket:
        """The socket, for its options; nobody else reads or writes it."""
        return self._sock

    @property
    def backlog(self) -> int:
        """Bytes that were written and the system has not taken yet."""
        return self._out.size

    @property
    def local(self) -> str:
        """``host:port`` of this end."""
        if not self._local and not self._closed:
            self._local = _name(self._sock.getsockname())
        return self._local

    def start(self, received: Received, ended: Ended) -> None:
        """Begin to read, or hand what comes from now on to somebody else.

        ``received`` gets a view that is valid only during the call. ``ended(None)``: the peer has
        ended its side, writing may go on. ``ended(error)``: the connection is gone; nothing is
        called after it. What the peer sent before it failed is handed on before that.
        A callback that raises ends this link, with its error if it is one of ours.
        """
        self._received, self._ended = received, ended
        self._see_reader()

    def stop_reading(self) -> None:
        """Hand nothing on until ``start`` is called again, by whoever takes this link over."""
        self._received = self._ended = None
        self._paused = False
        self._see_reader()

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call in a later turn as if bytes had come: what it raises ends this link."""
        self.net.loop.call_soon(self._guarded, callback, arguments)

    def _guarded(self, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self._closed and not self.closing:
            try:
                callback(*arguments)
            except Exception as error:
                self.fail(error)

    # Writing

    def write(self, *parts: Buffer, soon: bool = True) -> None:
        """Queue parts for this tick's send. They are kept, not copied: do not change them.

        Where not ``soon``, ``flush`` has to follow: no turn of the loop is planned for it. After
        ``close``, ``end_write`` or a failure they are dropped.
        """
        if self._ending or self._broken is not None or self._closed:
            return
        self._out.add(parts)
        if soon and not self.dirty and not self._blocked:
            self.dirty = True
            self.net.plan_flush(self)

    def flush(self) -> None:
        """Send now what was written, instead of at the end of this tick."""
        self.dirty = False
        if not self._blocked and not self._pumping and not self._closed:
            self._pump()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call once when fewer than 64 KiB wait to be sent; never from within this call."""
        self._drained.append(callback)
        if self.backlog < DRAINED and not self.dirty and not self._blocked and not self._pumping:
            self.dirty = True
            self.net.plan_flush(self)

    def end_write(self) -> None:
        """Tell the peer, behind what was written, that nothing more comes from here."""
        self._ending = True
        self.flush()

    def _pump(self) -> None:
        """Send until the system takes no more, or until others shall have their turn."""
        self._pumping = True
        try:
            self._send_turn()
        finally:
            self._pumping = False
        if self._closed or self._blocked or self._broken is not None:
            return
        if self._ending:
            self._sent_all()
        elif self._drained:
            self.dirty = True
            self.net.plan_flush(self)

    def _send_turn(self) -> None:
        out, sent = self._out, 0
        while self._broken is None and not self._closed:
            if self._drained and out.size < DRAINED:
                self._call_drained()
            if not out.size:
                if self._blocked:
                    self._block(False)
                break
            if sent >= _TURN:
                self._block(True)
                break
            try:
                sent += out.send(self._sock)
            except (BlockingIOError, InterruptedError):
                self._block(True)
                break
            except OSError as error:
                self.lose(lost(self.peer, error))
                break
        if sent:
            self.net.bytes_out += sent
            self.net.writes += 1
            self.net.watch(self)

    def _call_drained(self) -> None:
        waiting, self._drained = self._drained, []
        for callback in waiting:
            try:
                callback()
            except Exception as error:
                self.fail(error)
                return

    def _block(self, blocked: bool) -> None:
        if blocked is not self._blocked and not self._closed:
            self._blocked = blocked
            if blocked:
                self.net.loop.add_writer(self._sock.fileno(), self._pump)
            else:
                self.net.loop.remove_writer(self._sock.fileno())

    def _sent_all(self) -> None:
        with contextlib.suppress(OSError):  # gone already: reading tells it
            self._sock.shutdown(socket.SHUT_WR)
        if self.closing and self._eof:
            self._shut()

    # Reading

    def pause(self) -> None:
        """Read nothing more from the socket; what has been read already is still handed on."""
        self._paused = True
        self._see_reader()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self._see_reader()

    def read_into(self, view: memoryview, done: Callable[[], None]) -> None:
        """Read the next ``len(view)`` bytes straight into ``view``, then call ``done``.

        Bytes that a ``received`` call holds already are for its own code to copy. ``done`` may ask
        for the next; bytes read along behind the last go to ``received``.
        """
        self._straight.aim(view, done)

    def _see_reader(self) -> None:
        wanted = not (self._eof or self._closed) and (
            self.closing or (self._received is not None and not self._paused)
        )
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self.net.loop.add_reader(self._sock.fileno(), self._readable)
            else:
                self.net.loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        net, sock, budget = self.net, self._sock, _TURN
        buffer = net.buffer
        straight = self._straight
        while budget > 0 and self._reading:
            placed = straight.view is not None
            try:
                if placed:
                    count, full = straight.read(sock, net.tail)
                else:
                    count, full = sock.recv_into(buffer), len(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._end(self._broken or lost(self.peer, error))
                return
            if not count:
                self._came_to_end()
                return
            budget -= count
            net.bytes_in += count
            self.received += count
            net.reads += 1
            try:
                data = straight.took(count, net.tail) if placed else buffer[:count]
                if data and self._received is not None:
                    self._received(data)
            except Exception as error:
                self.fail(error)
                return
            if count < full:
                break  # nothing more there; what comes in this moment wakes us again
        if self.dirty:
            self.flush()

    # The end

    def _came_to_end(self) -> None:
        if self._broken is not None:
            self._end(self._broken)
            return
        self._eof = True
        self._see_reader()
        if self.closing:
            if not self.backlog:
                self._shut()
        elif self._straight.view is not None:
            self._end(gone(self.peer, "it ended in the middle of a body"))
        elif self._ended is not None:
            self._call_ended(self._ended, None)

    def examine(self) -> bool:
        """Whether something still waits for an acknowledgement; ends a link whose peer is silent.

        For ``Net``.
        """
        try:
            verdict = silence(self._sock)
        except OSError:
            return False  # so broken that reading tells it
        if verdict:
            self.lose(gone(self.peer, verdict))
            return False
        return verdict is None or self.backlog > 0

    def lose(self, error: CallHomeError) -> None:
        """The connection is of no use any more: hand on what came before, then ``ended(error)``."""
        if self._closed or self._broken is not None:
            return
        self._broken = error
        self._out.clear()
        self._block(False)
        if self.closing:
            self.net.count("link.cut")
            self._shut()
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # so that reading comes to an end
        if self._eof:
            self._end(error)

    def fail(self, error: Exception) -> None:
        """Somebody here has failed on what came; it costs this link and nothing else.

        Counted and logged, then ``ended(error)``.
        """
        if isinstance(error, RemoteProtocolError):
            self.net.complain("link.garbage", f"connection with {self.peer} is cut: {error}")
        elif not isinstance(error, CallHomeError):
            self.net.complain("link.failed", f"failed on a connection with {self.peer}", error)
        if not self.closing:
            self._end(failed(self.peer, error))

    def _end(self, error: CallHomeError) -> None:
        ended = self._ended
        self._shut(abort=True)
        if ended is not None:
            self._call_ended(ended, error)

    def _call_ended(self, ended: Ended, error: CallHomeError | None) -> None:
        try:
            ended(error)
        except Exception as trouble:
            if error is None:
                self.fail(trouble)
            else:
                self.net.complain("link.failed", f"failed on the end of {self.peer}", trouble)

    def close(self, abort: bool = False) -> None:
        """Be done with this connection; no callback comes any more.

        What was written is still sent, for at most 2 s, and then the peer sees the end; ``abort``
        throws it away and the peer sees a reset.
        """
        if self._closed or (self.closing and not abort):
            return
        self._received = self._ended = None
        self._straight.drop()
        self._drained = []
        if abort or self._broken is not None:
            self._shut(abort=True)
            return
        self.closing = self._ending = True
        self._timer = self.net.loop.call_later(LINGER, self._overdue)
        # Reads and drops what still comes: closing with unread bytes would be a reset, and that can
        # take from the peer what it has not read yet.
        self._see_reader()
        self.flush()

    def _overdue(self) -> None:
        if self.backlog:
            self.net.complain(
                "link.cut",
                f"{self.peer} does not read: {self.backlog} bytes were thrown away {LINGER:g} s "
                "after the connection was closed",
            )
        self._shut(abort=self.backlog > 0)

    def _shut(self, abort: bool = False) -> None:
        if self._closed:
            return
        self._block(False)
        self._closed, self.closing = True, False
        self._see_reader()
        if self._timer is not None:
            self._timer.cancel()
        self._received = self._ended = self._timer = None
        self._straight.drop()
        self._drained = []
        self._out.clear()
        self.net.forget(self)
        if abort:
            abort_socket(self._sock)
        else:
            self._sock.close()


def _name(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    return hostport(address[0], address[1])
