"""Who is to be hit, and hitting him: by pidfd, so that no stranger with the same pid ever is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from actors.kernel.peers import alive
from perf.chaos.plan import Fault
from transport.bus.address import Address

_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}

#: Living processes of a role, in an order that does not change.
Targets = Callable[[str], list[Address]]


class Signals:
    """Sends the plan's signals at their times; ``log`` has a line for each, with its time."""

    def __init__(self, faults: tuple[Fault, ...], began: float, targets: Targets) -> None:
        self._faults = faults
        self._began = began
        self._targets = targets
        self._stopped: dict[int, asyncio.TimerHandle] = {}
        self.counts: Counter[str] = Counter()
        self.missed = 0
        #: Called with role, deed and whom it was done to.
        self.on_hit: Callable[[str, str, Address], None] = lambda role, deed, target: None
        self.log: list[tuple[float, str]] = []
        #: From when to when somebody is stopped.
        self.stops: list[tuple[float, float]] = []

    async def run(self) -> None:
        """All of them, then nothing."""
        for fault in self._faults:
            await asyncio.sleep(max(0.0, self._began + fault.at - time.monotonic()))
            self._hit(fault)

    def _hit(self, fault: Fault) -> None:
        found = self._targets(fault.role)
        if not found:
            self.missed += 1
            return
        target = found[fault.which % len(found)]
        try:
            fd = os.pidfd_open(target.pid)
        except ProcessLookupError:
            self.missed += 1
            return
        try:
            if not alive(target):
                self.missed += 1
                return
            signal.pidfd_send_signal(fd, _SIGNALS[fault.deed])
        except ProcessLookupError:
            self.missed += 1
            return
        finally:
            if fault.deed != "stop":
                os.close(fd)
        self.counts[f"{fault.deed} {fault.role}"] += 1
        self.on_hit(fault.role, fault.deed, target)
        more = f" for {fault.seconds} s" if fault.deed == "stop" else ""
        self.log.append((time.monotonic(), f"{fault.deed} {fault.role} {target}{more}"))
        if fault.deed == "stop":
            self.stops.append((time.monotonic(), time.monotonic() + fault.seconds))
            loop = asyncio.get_running_loop()
            self._stopped[fd] = loop.call_later(fault.seconds, self._continue, fd)

    def _continue(self, fd: int) -> None:
        self._stopped.pop(fd).cancel()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGCONT)
        os.close(fd)

    def continue_all(self) -> None:
        """Nobody stays stopped."""
        for fd in list(self._stopped):
            self._continue(fd)
