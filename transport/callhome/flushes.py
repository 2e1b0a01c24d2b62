"""The connections of one owner that have something to send, until he comes to flush them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.callhome.mux import MuxConnection


class Flushes:
    """What is said on a connection leaves at the end of the burst that it came with, instead of a
    turn of the loop later.

    ``add`` is what its connections have as ``plan``. ``plan`` is to have ``flush`` called soon;
    ``failed`` gets the words for a connection and the error, when one cannot be flushed.
    """

    __slots__ = ("_failed", "_plan", "waiting")

    def __init__(
        self, plan: Callable[[], None], failed: Callable[[str, Exception], object]
    ) -> None:
        self._plan = plan
        self._failed = failed
        #: Each asks once until it is flushed.
        self.waiting: list[MuxConnection] = []

    def add(self, connection: MuxConnection) -> None:
        """It has something to send."""
        self.waiting.append(connection)
        self._plan()

    def flush(self) -> None:
        """Send what waits; a connection that fails costs itself only."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            try:
                each.flush()
            except Exception as error:
                self._failed(f"the connection with {each.link.peer}", error)
        if self.waiting:  # by what was told as bodies left: the present flush is past it
            asyncio.get_running_loop().call_soon(self._plan)
