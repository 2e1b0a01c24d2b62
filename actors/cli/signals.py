"""Ctrl-C and SIGTERM while a command runs: first a request, then an end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

from actors.cli.command import Interrupted


class Interrupts:
    """``with Interrupts(...) as interrupts`` around the body of a command's coroutine.

    A signal of ``polite`` calls ``ask`` the first time, when it is set; any other one, and the
    second, cancels the coroutine, which ends with ``Interrupted``. SIGHUP is left alone where it is
    ignored (nohup).
    """

    def __init__(self, *polite: int) -> None:
        self._polite = polite
        self.ask: Callable[[], None] | None = None
        #: The last signal that came, 0 while there was none.
        self.number = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._came, number)
        return self

    def _came(self, number: int) -> None:
        first, self.number = not self.number, number
        if first and self.ask is not None and number in self._polite:
            self.ask()
        else:
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)
        if self.number and isinstance(error, asyncio.CancelledError):
            self._task.uncancel()
            raise Interrupted(self.number) from None
