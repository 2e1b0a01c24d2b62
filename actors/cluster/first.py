"""What a launcher script owes its machine when it is the first process of it (pid 1, as in a
container): a signal that would end any other program does nothing there.

Used by ``Cluster``. Orphans of actors are the node's business, which adopts them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading

_FIRST = 1


class First:
    """Makes SIGTERM cancel the task that entered, where nothing else would; ``end`` says so."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._came = False

    def begin(self) -> None:
        """Take SIGTERM, if this is pid 1, its main thread, and nobody has taken it."""
        main = threading.current_thread() is threading.main_thread()
        if os.getpid() != _FIRST or not main:
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        if self._task is not None:
            self._came = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> None:
        """Give SIGTERM back. Raises SystemExit (143) where it was what ended the block."""
        if self._task is None:
            return
        self._task = None
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        if self._came and isinstance(error, asyncio.CancelledError):
            raise SystemExit(128 + signal.SIGTERM) from None
