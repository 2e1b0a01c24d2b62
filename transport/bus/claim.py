"""The file of an inbox: bound by one, and watched so that nobody takes it over unseen.

ZeroMQ unlinks what stands at a path before it binds there: of two that bind one path the second
would get all later connections, and neither would know. The kernel refuses the second, so the
socket is bound here and handed to ZeroMQ.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import Final

from transport.errors import LocalProtocolError

#: Connections that may wait to be accepted: those that still come when the path is hidden for want
#: of descriptors. ZeroMQ's other ends try again where there is no place.
_BACKLOG: Final = 24
#: Behind the path of an inbox that is out of sight.
HIDDEN: Final = ".full"


class Claim:
    """One path, bound. ``fd`` is the listening socket; whoever takes it closes it. ``watched`` is
    another descriptor of it, for who waits for connections; -1 once that is over.

    Raises LocalProtocolError when somebody else is bound there, or nothing can be.
    """

    __slots__ = ("_identity", "_where", "fd", "path", "watched")

    def __init__(self, path: str) -> None:
        self.path = self._where = path
        self.watched = -1
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(path)
            found = os.stat(path)
            listener.listen(_BACKLOG)
            self.watched = os.dup(listener.fileno())
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                text = f"another actor is bound at {path}; incarnations must be unique"
            else:
                text = f"inbox {path} cannot be bound: {error}"
            raise LocalProtocolError(text) from error
        self._identity = (found.st_dev, found.st_ino)
        self.fd = listener.detach()

    def fault(self) -> str:
        """What is wrong with the path: "" while it is ours, or while its folder is gone, which is
        the end of the node and not ours to tell.
        """
        try:
            found = os.stat(self._where, follow_symlinks=False)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(self.path)):
                return ""
            return f"its inbox {self.path} was removed"
        except OSError as error:
            return f"its inbox {self.path} cannot be looked at: {error}"
        if (found.st_dev, found.st_ino) == self._identity:
            return ""
        return f"its inbox {self.path} was taken over by somebody else"

    def release(self) -> None:
        """Remove the file, if it is still ours."""
        if not self.fault() and os.path.lexists(self._where):
            os.unlink(self._where)

    def hide(self, hidden: bool) -> None:
        """Let nobody connect any more, or let them again."""
        where = self.path + HIDDEN if hidden else self.path
        if not self.fault():
            with contextlib.suppress(OSError):
                os.rename(self._where, where)
                self._where = where

    def unwatch(self) -> None:
        """Close ``watched``; harmless twice."""
        if self.watched >= 0:
            os.close(self.watched)
            self.watched = -1

    def abandon(self) -> None:
        """Nobody has taken the socket over: close it and remove the file."""
        with contextlib.suppress(OSError):
            os.close(self.fd)
        self.unwatch()
        self.release()
