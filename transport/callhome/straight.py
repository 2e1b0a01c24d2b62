"""Bytes that are read straight to where they belong, past the shared buffer."""

from __future__ import annotations

import socket
from collections.abc import Callable


class Straight:
    """The place for the next bytes of one link; only the link touches it."""

    __slots__ = ("_done", "view")

    def __init__(self) -> None:
        self.view: memoryview | None = None
        """What is left to fill; None while bytes go to the shared buffer."""
        self._done: Callable[[], None] | None = None

    def aim(self, view: memoryview, done: Callable[[], None]) -> None:
        """Fill ``view`` next, then call ``done``, which may aim again."""
        if view.nbytes:
            self.view, self._done = view.cast("B"), done
        else:
            done()

    def drop(self) -> None:
        """Forget the place."""
        self.view = self._done = None

    def read(self, sock: socket.socket, behind: memoryview) -> tuple[int, int]:
        """Read once into the place and, beyond its end, into ``behind``.

        Returns the bytes that came and those that the place had room for; raises as a socket does.
        """
        view = self.view
        assert view is not None
        return sock.recvmsg_into((view, behind))[0], len(view)

    def took(self, count: int, behind: memoryview) -> memoryview:
        """``count`` bytes were read; returns those behind the place that no further one wants.

        No reference to a place is held here while its ``done`` runs: its memory may be handed on.
        """
        left = self._filled(count)
        spare = behind[:left]
        while spare and self.view is not None:
            count = min(len(self.view), len(spare))
            self.view[:count] = spare[:count]
            spare = spare[count:]
            self._filled(count)
        return spare

    def _filled(self, count: int) -> int:
        """The next ``count`` bytes are in place; the number of those that are behind it."""
        view = self.view
        assert view is not None
        left = count - len(view)
        if left < 0:
            self.view = view[count:]
            return 0
        del view
        done, self.view, self._done = self._done, None, None
        if done is not None:
            done()
        return left
