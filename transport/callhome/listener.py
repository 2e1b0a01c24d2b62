"""A listening socket on the running loop; it survives a lack of descriptors without a busy loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from transport.callhome.address import advertised, hostport, wildcard
from transport.callhome.link import Link
from transport.callhome.net import Net, tune
from transport.errors import SpecError, text_of

#: The machine or the process has run out of something; the connection stays in the queue.
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Seconds to wait then: doubled each time, from the first to the second.
_PAUSES: Final = (0.005, 1.0)
#: What to do where a listener cannot be.
_ADVICE: Final = {
    errno.EADDRINUSE: "another process listens there; choose a free port, 0 for any",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EACCES: "ports below 1024 are the administrator's; choose another, 0 for any",
}
_ADVICE_ELSE: Final = "choose an address of this machine and a free port, 0 for any"
#: Connections taken in one wake-up.
_BURST: Final = 64
#: Connections that the system may hold for us.
_BACKLOG: Final = 1024


def bound_socket(host: str, port: int, name: str) -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0: any) that nobody reaches before ``listen``.

    Raises SpecError, naming the setting ``name``, when that cannot be done. Used by a listener, and
    by whoever keeps a port open beyond the life of one.
    """
    numeric = _advertised(host, name)
    bind = "" if wildcard(host) else numeric
    family = socket.AF_INET6 if ":" in (host or numeric) else socket.AF_INET
    if wildcard(host) and host == "::":
        bind, family = "::", socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SpecError(f"{name}: no socket can be made: {text_of(error)}") from error
    try:
        tune(sock)
        if port:
            # A port of one's own comes back at once after a restart. Not for a port that the
            # system chooses: it may give the same one to two that both allow reuse.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((bind, port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise _unbound(name, host or numeric, port, error) from error
    return sock


def _advertised(host: str, name: str) -> str:
    try:
        return advertised(host)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from error


def _unbound(name: str, host: str, port: int, error: OSError | OverflowError) -> SpecError:
    where = hostport(host, port) if port else host
    return SpecError(f"{name}: {where} cannot be bound: {_reason(error)}")


class Listener:
    """Accepts connections and hands each on as a ``Link`` that nobody reads yet.

    ``name`` is the setting that an error of ``open`` names. ``sock`` is bound already, by somebody
    who may keep it open beyond this listener's end; it is this one's to close.
    """

    def __init__(
        self,
        net: Net,
        host: str,
        port: int,
        accepted: Callable[[Link], None],
        name: str,
        sock: socket.socket | None = None,
    ) -> None:
        self.address = ""
        """``host:port`` as peers can dial it, numeric; empty before ``open``."""
        self.bound = ""
        """``host:port`` as the system tells it."""
        self._net = net
        self._host, self._port = host, port
        self._accepted = accepted
        self._name = name
        self._given = sock
        self._sock: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._pause = 0.0

    def open(self) -> None:
        """Bind and listen. Raises SpecError, naming the setting, when that cannot be done."""
        sock, self._given = self._given, None
        if sock is None:
            sock = bound_socket(self._host, self._port, self._name)
        try:
            host = _advertised(self._host, self._name)
            sock.listen(_BACKLOG)
        except (OSError, SpecError) as error:
            sock.close()
            if isinstance(error, SpecError):
                raise
            raise _unbound(self._name, self._host, self._port, error) from error
        self._sock = sock
        name = sock.getsockname()
        self.bound = hostport(name[0], name[1])
        self.address = hostport(host, name[1])
        self._net.loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_BURST):
            if self._sock is None:
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._back_off(error)
                    return
                self._net.count("accept.failed")
                continue  # that connection was gone before we came to it
            self._pause = 0.0
            self._hand_on(sock, hostport(peer[0], peer[1]))

    def _hand_on(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        link = Link(self._net, sock, peer)
        self._net.count("accepted")
        try:
            self._accepted(link)
        except Exception as error:
            self._net.complain("accept.refused", f"{self._name} failed on {peer}", error)
            link.close(abort=True)

    def _back_off(self, error: OSError) -> None:
        assert self._sock is not None
        least, most = _PAUSES
        self._pause = min(self._pause * 2, most) or least
        self._net.complain(
            "accept.short",
            f"{self._name}: no connection can be accepted at {self.bound}: {text_of(error)}; "
            "they wait, accepting is tried again; raise ulimit -n",
        )
        self._net.loop.remove_reader(self._sock.fileno())
        self._retry = self._net.loop.call_later(self._pause, self._again)

    def _again(self) -> None:
        self._retry = None
        if self._sock is not None:
            self._net.loop.add_reader(self._sock.fileno(), self._readable)

    def close(self) -> None:
        """Stop listening; what was accepted stays. Connections not yet accepted are reset."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._sock is not None:
            self._net.loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None


def _reason(error: OSError | OverflowError) -> str:
    number = getattr(error, "errno", None)
    words = getattr(error, "strerror", None) or text_of(error)
    return f"{words}; {_ADVICE.get(number or 0, _ADVICE_ELSE)}"
