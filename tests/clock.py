"""Clocks in the hands of a test: how long something takes is never measured on a busy machine.

A limit that is to strike is hours long, and strikes when the test turns the clock; what is to
happen at once happens while the clock of the loop stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.waiting import DEADLINE, LONG, TICK
from transport.callhome.reception import Reception


class Clock:
    """The monotonic clock of this process, and so of its loops, which ``turn`` sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, exact, self._ahead = time.monotonic, time.monotonic_ns, 0.0

        def turned() -> float:
            return real() + self._ahead

        monkeypatch.setattr(time, "monotonic", turned)
        # Its clock is a default, which was taken when the module was read.
        defaults = Reception.__init__.__kwdefaults__ or {}
        monkeypatch.setitem(defaults, "clock", turned)
        # Actors beat by this one, and would be taken for frozen if it stayed behind.
        monkeypatch.setattr(time, "monotonic_ns", lambda: exact() + int(1e9 * self._ahead))

    def turn(self, seconds: float) -> None:
        """So much time is over: all timers that were set for it are due in the next turn."""
        self._ahead += seconds

    async def pass_time(self, seconds: float) -> None:
        """The same by steps of a quarter second: all that looks at times goes on meanwhile."""
        for _ in range(round(4 * seconds)):
            self.turn(0.25)
            await asyncio.sleep(0)
            await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """For tests of actors and engines that all run in this process."""
    return Clock(monkeypatch)


async def at_once(condition: Callable[[], object], what: str) -> None:
    """Wait for what needs no time: until ``condition`` is true, no timer of this loop that is set
    for later ends. Raises AssertionError where it waits for one.
    """
    loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    patience = time.monotonic() + DEADLINE
    loop.time = lambda: now  # type: ignore[method-assign]
    try:
        while not condition():
            assert time.monotonic() < patience, f"not at once: {what}"
            await asyncio.sleep(0)
    finally:
        del loop.time


class Turns:
    """What a loop has done: its turns, and the timers that were set meanwhile."""

    def __init__(self) -> None:
        self.count = self.timers = 0


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    """Count the turns of this loop within the block: one that waits does not turn, however little
    of a processor there is to be had for those that do.
    """
    loop, found = asyncio.get_running_loop(), Turns()
    selector, call_at = loop._selector, loop.call_at  # type: ignore[attr-defined]
    select = selector.select

    def counted(timeout: float | None = None) -> Any:
        found.count += 1
        return select(timeout)

    def timed(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
        found.timers += 1
        return call_at(*arguments, **more)

    selector.select = counted
    loop.call_at = timed  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        del selector.select, loop.call_at


async def steady(value: Callable[[], int]) -> int:
    """The value, once it has stayed the same for ten looks on end."""
    patience, last, same = time.monotonic() + LONG, value(), 0
    while same < 10:
        assert time.monotonic() < patience, f"it has not come to rest, and is {last}"
        await asyncio.sleep(TICK / 2)
        last, same = value(), same + 1 if value() == last else 0
    return last
