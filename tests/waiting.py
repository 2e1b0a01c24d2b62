"""How tests wait and how long: a scaled unit of time and conditions polled against a deadline."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest

#: Unit of time of every test, in seconds; ``CALLHOME_TEST_TICK=5`` makes it five times longer.
TICK = 0.1 * float(os.environ.get("CALLHOME_TEST_TICK", "1"))

#: How long something may take that takes no time on a machine that has nothing else to do.
PATIENCE = 50 * TICK

#: How long a condition may take by default, in seconds: processes of a busy machine stand for
#: seconds, and whoever is waited for starts others.
DEADLINE = 4 * PATIENCE

#: A limit that must not strike, and a wait that another one shall end.
LONG = 12 * PATIENCE

_PAUSE = 0.005

Condition = Callable[[], object]


def _what(condition: Condition, what: str) -> str:
    return what or getattr(condition, "__qualname__", repr(condition))


async def wait_until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    timeout: float = DEADLINE,
    what: str = "",
) -> None:
    """Polls ``condition`` (a function or a coroutine function) until it is true.

    Raises AssertionError after ``timeout`` seconds, naming ``what``.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await asyncio.wait_for(value, max(0.01, deadline - time.monotonic()))
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout:.1f} s: {_what(condition, what)}")
        await asyncio.sleep(_PAUSE)


def wait_until_sync(condition: Condition, timeout: float = DEADLINE, what: str = "") -> None:
    """As ``wait_until``, for tests without a loop."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout:.1f} s: {_what(condition, what)}")
        time.sleep(_PAUSE)


def require_root(why: str) -> None:
    """Skips the running test unless it runs as root; ``why`` is shown in the summary."""
    if os.geteuid() != 0:
        pytest.skip(f"needs root: {why}")


def require_cores(count: int, why: str) -> None:
    """Skips the running test unless this process may use ``count`` cores."""
    have = len(os.sched_getaffinity(0))
    if have < count:
        pytest.skip(f"needs {count} cores, {have} are permitted: {why}")
