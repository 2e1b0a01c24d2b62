"""The end of a node by force, for a launcher that nobody lets wait for anything.

A hand that hammers Ctrl-C interrupts each wait of a clean-up, then the loop, then the interpreter's
own end. Used by ``Cluster`` for each of its nodes: what remains to be done then is done without the
loop, with signals unheard for as long as that takes, at the latest as the interpreter exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

from actors.cluster.sweep import sweep_dead
from actors.kernel.spawn import Child

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Signals that code of this program would handle, and raise from, are ignored meanwhile."""
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if callable(signal.getsignal(number)):
                    handlers[number] = signal.signal(number, signal.SIG_IGN)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Force:
    """Stands by while one node is being stopped: from ``begin`` until ``end`` has returned."""

    def __init__(self, child: Child, folder: str) -> None:
        self._child = child
        self._folder = folder
        self._process = os.getpid()

    def begin(self) -> None:
        """The stop begins: whatever becomes of it, nothing is left when this process exits."""
        atexit.register(self.end)

    def end(self) -> None:
        """Kill the node if it still runs, and remove what it has left; blocks for a second, or
        for as long as ``sweep_dead`` does.

        In a fork of the launcher it does nothing.
        """
        if os.getpid() != self._process:
            return
        with unheard():
            self._child.end_now()
            sweep_dead(self._folder, str(self._process))
            atexit.unregister(self.end)
