"""Turns for busy streams: however many run, a tick of the loop stays short.

A stream that never waits would starve the loop, and a few hundred of them that each give way once
in a while still make every tick as long as all their turns together. Here they queue, and a tick
lets through only as many turns as make ``BURST`` items; in between, control messages, timers and
handlers that have just been woken get theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: Items that all streams together send in one tick of the loop.
BURST = 64
#: Items of one turn while several streams are busy: fewer would only cost more switching.
_TURN = 16


class Turnstile:
    """The queue of busy streams of one runtime."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._planned = False
        #: Streams whose handlers run now.
        self.running = 0

    @property
    def turn(self) -> int:
        """Items that a stream may send before it has to ``wait``."""
        return max(BURST // self.running, _TURN)

    async def wait(self) -> None:
        """Wait for this stream's next turn; at once alone, behind the others in the queue."""
        if self.running == 1:
            await asyncio.sleep(0)
            return
        turn = self._loop.create_future()
        self.queue(turn)
        await turn

    def queue(self, turn: asyncio.Future[None]) -> None:
        """Resolve ``turn`` when it has its turn; one Credit message may be for hundreds."""
        self._waiting.append(turn)
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        let_through = BURST // _TURN
        while self._waiting and let_through:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled stream's turn is nobody's
                turn.set_result(None)
                let_through -= 1
        self._planned = bool(self._waiting)
        if self._planned:
            self._loop.call_soon(self._tick)
