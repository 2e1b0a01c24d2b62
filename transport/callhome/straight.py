"""Bytes that are read straight to where they belong, past the shared buffer."""

from __future__ import annotations

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

    def took(self, view: memoryview, count: int, behind: memoryview) -> memoryview:
        """``count`` bytes were read into ``view`` and, beyond its end, into ``behind``.

        Returns those behind that no further place wants.
        """
        room = len(view)
        if count < room:
            self.view = view[count:]
            return behind[:0]
        spare = behind[: count - room]
        self._full()
        while spare and self.view is not None:
            room = min(len(self.view), len(spare))
            self.view[:room] = spare[:room]
            spare, left = spare[room:], self.view[room:]
            if left:
                self.view = left
            else:
                self._full()
        return spare

    def _full(self) -> None:
        done, self.view, self._done = self._done, None, None
        if done is not None:
            done()
