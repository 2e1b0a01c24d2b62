"""Hands out descriptors of shared memory over a Unix socket, for readers that /proc does not help.

One packet asks, with the token of a segment; one packet answers, with the descriptor, or without it
where there is no such segment. A daemon thread serves, so that an owner whose loop is busy keeps no
reader waiting, and two owners that read each other's memory cannot wait for each other.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time

from transport.wire.handle import TOKEN_SIZE

#: Seconds that a caller has for its one packet.
_PATIENCE = 0.25
_LEAST = 0.001
#: Callers at a time; one more ends the oldest.
_CALLERS = 32
_BACKLOG = 512
#: Seconds of rest when no caller can be let in, for want of descriptors.
_REST = 0.05
_CREDENTIALS = struct.Struct("3i")


class Door:
    """The socket at ``path`` and its thread; ``offer`` what it may hand out."""

    def __init__(self, path: str) -> None:
        """Bind and begin. Raises OSError."""
        self._path = path
        self._fds: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._callers: dict[int, tuple[socket.socket, float]] = {}
        self._poll = select.poll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self._poll.register(self._listener, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, name="callhome-memory", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._listener.close()
            os.unlink(path)
            raise OSError(errno.EAGAIN, str(error)) from error

    def offer(self, token: bytes, fd: int) -> None:
        """Hand out ``fd`` to those who ask for ``token``."""
        with self._lock:
            self._fds[token] = fd

    def withdraw(self, token: bytes) -> None:
        """Hand it out no more: once this has returned its descriptor may be closed."""
        with self._lock:
            self._fds.pop(token, None)

    def close(self) -> None:
        """End the thread and remove the socket. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        for caller, _ in self._callers.values():
            caller.close()
        self._callers.clear()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _serve(self) -> None:
        listener = self._listener.fileno()
        while True:
            ready = self._poll.poll(self._wait())
            if self._closed:
                return
            for fd, _ in ready:
                if fd == listener:
                    self._admit()
                else:
                    self._answer(fd)
            self._expire(time.monotonic())

    def _wait(self) -> float | None:
        """Milliseconds until the oldest caller has had its time."""
        if not self._callers:
            return None
        oldest = next(iter(self._callers.values()))[1]
        return max(0.0, oldest - time.monotonic()) * 1000 + 1

    def _admit(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError:
            if not self._closed:
                time.sleep(_REST)
            return
        caller.setblocking(False)
        if len(self._callers) >= _CALLERS:
            self._dismiss(next(iter(self._callers)))
        self._callers[caller.fileno()] = (caller, time.monotonic() + _PATIENCE)
        self._poll.register(caller, select.POLLIN)

    def _answer(self, fd: int) -> None:
        found = self._callers.get(fd)
        if found is None:
            return
        caller = found[0]
        with contextlib.suppress(OSError):
            asked = caller.recv(TOKEN_SIZE + 1)
            if len(asked) == TOKEN_SIZE and _is_ours(caller):
                self._hand(caller, asked)
        self._dismiss(fd)

    def _hand(self, caller: socket.socket, token: bytes) -> None:
        with self._lock:
            fd = self._fds.get(token)
            if fd is None:
                caller.send(b"\0")
                return
            rights = array.array("i", [fd])
            caller.sendmsg([b"\1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _dismiss(self, fd: int) -> None:
        caller, _ = self._callers.pop(fd)
        self._poll.unregister(fd)
        caller.close()

    def _expire(self, now: float) -> None:
        for fd in [fd for fd, (_, until) in self._callers.items() if until <= now]:
            self._dismiss(fd)


def _is_ours(caller: socket.socket) -> bool:
    """Whether the caller is of our user; the folder's mode has kept others out before."""
    data = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.geteuid())


def fetch(path: str, token: bytes) -> int:
    """Ask the door at ``path``; the descriptor, which the caller closes.

    Takes a quarter of a second at most: it blocks the reader's loop. Raises OSError: TimeoutError
    when nobody answers, FileNotFoundError when it has no such segment (any more).
    """
    ends = time.monotonic() + _PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(_PATIENCE)
        caller.connect(path)
        caller.send(token)  # a new connection has room for it
        caller.settimeout(max(ends - time.monotonic(), _LEAST))
        _, extra, _, _ = caller.recvmsg(
            1, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
    fds = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds[1:]:
        os.close(fd)
    if not fds:
        raise FileNotFoundError(f"{path} has no such segment")
    return fds[0]
