"""Waiting for room in an arena: who is next, and how one waits, in a coroutine or in a thread.

Those who wait are served in the order in which they came, by whoever gives memory back, under the
arena's lock. ``new`` without waiting does not queue: what fits is given to it at once, so a large
frame may wait while small ones are made; its time limit ends that.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from transport.errors import Cancelled, LocalProtocolError, MemoryExhausted

if TYPE_CHECKING:
    from transport.shm.arena import Arena
    from transport.shm.slots import Slot

#: How often one who waits looks by himself, in seconds: nobody tells when the system has memory
#: again, or when a loop that would have settled releases stands still.
_LOOK = 0.25
#: Set by whoever runs a handler in a thread: says why its stream has ended, None until it has.
OVER: ContextVar[Callable[[], str | None] | None] = ContextVar("OVER", default=None)


class Turn:
    """One who waits for ``size`` bytes since ``since`` (monotonic); ``slot`` once he was served.

    ``wake`` is called under the arena's lock, in any thread, when he is served or the arena closes.
    """

    __slots__ = ("since", "size", "slot", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.since = time.monotonic()
        self.slot: Slot | None = None
        self.wake = wake


async def wait_slot(arena: Arena, size: int, timeout: float | None) -> Slot:
    """A slot of ``size`` bytes as soon as there is room, after all who came before.

    Raises MemoryExhausted after ``timeout`` seconds (None: never), and at once for what can never
    fit. When it is cancelled, nothing is lost.
    """
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(woken.set)
        except RuntimeError:  # the loop is closed, and with it whoever waited
            turn.slot = None

    turn = Turn(size, wake)
    ends = _end(turn, timeout)
    arena.queue(turn)
    try:
        while turn.slot is None:
            left = ends - time.monotonic()
            if left <= 0:
                raise _late(arena, turn)
            woken.clear()
            timer = loop.call_later(min(left, _LOOK), woken.set)
            try:
                await woken.wait()
            finally:
                timer.cancel()
            arena.poke()
    except BaseException:
        arena.leave(turn)
        raise
    return turn.slot


def block_for_slot(arena: Arena, size: int, timeout: float) -> Slot:
    """As ``wait_slot``, for a thread without a loop.

    Raises LocalProtocolError in the thread of a running loop, which would have to give the memory
    back, and Cancelled when the stream has been killed.
    """
    if asyncio._get_running_loop() is not None:
        raise LocalProtocolError(
            "new(..., wait=) would stop this event loop, by which memory comes back: use "
            "'await frames.wait_new(...)' in a coroutine"
        )
    over = OVER.get()
    woken = threading.Event()
    turn = Turn(size, woken.set)
    ends = _end(turn, timeout)
    arena.queue(turn)
    try:
        while turn.slot is None:
            reason = over() if over is not None else None
            if reason is not None:
                raise Cancelled(f"the stream has ended while it waited for memory: {reason}")
            left = ends - time.monotonic()
            if left <= 0:
                raise _late(arena, turn)
            woken.wait(min(left, _LOOK))
            woken.clear()
            arena.poke()
    except BaseException:
        arena.leave(turn)
        raise
    return turn.slot


def _end(turn: Turn, timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if not timeout >= 0:
        raise LocalProtocolError(f"a wait takes seconds from 0 on, or None, not {timeout!r}")
    return turn.since + timeout


def _late(arena: Arena, turn: Turn) -> MemoryExhausted:
    waited = time.monotonic() - turn.since
    return MemoryExhausted(
        f"no room for a frame of {turn.size} bytes within {waited:.3g} s: {arena.held_by()}; let "
        "readers drop what they have seen, raise arena_limit, or wait longer"
    )
