"""An orderly end: take nothing new, let what is under way go on, and cut it when its time is over.

Used by the actors that carry streams of others: engines, routers, the ingress. The node tells them
by ``Drain``, all at once and before it stops any of them, so that each road stays open until the
streams on it have ended; an engine that is asked to stop alone does the same for itself.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Protocol

from actors.errors import CallHomeError, RemoteProtocolError
from actors.notices import Drain, Drained

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: Seconds between two looks whether something is under way still.
_LOOK: Final = 0.01


class Drainable(Protocol):
    """What can be drained."""

    def refuse(self, reason: str, succeeded: bool = False) -> None:
        """From now on whatever is new is refused with ``actors.errors.Draining``; "": no more.
        ``succeeded``: whoever has its place takes it all, so nothing has to be refused.
        """

    def under_way(self) -> int:
        """How many streams would be cut if it stopped now."""

    def cut(self, reason: str) -> None:
        """End what is under way, each stream with an error that tells the reason."""


class Drainer:
    """Drains one actor, once; used by the actor itself. Its tasks run in ``tasks``."""

    def __init__(self, actor: Drainable, runtime: Runtime, tasks: asyncio.TaskGroup) -> None:
        self._actor = actor
        self._runtime = runtime
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._until = math.inf
        self._limit = 0.0
        self._stops = f"{runtime.address.name} stops"
        #: Somebody has asked once more, and ended the time before its limit.
        self._hurried = False
        self._succeeded = False
        self._answering: asyncio.Task[None] | None = None
        runtime.on(Drain, self._asked)

    def _asked(self, sender: int, message: Drain) -> None:
        if sender != self._runtime.node:
            raise RemoteProtocolError("only the node drains its actors")
        if message.limit < 0:
            self._resume()
            return
        if self._answering is not None and not self._answering.done():
            self._shorten(self._loop.time() + max(0.0, message.limit))
            return
        if message.why:
            self._stops = f"{self._runtime.address.name} stops, since {message.why}"
        self._succeeded = message.succeeded
        work = self._answer(sender, message.limit)
        self._answering = self._tasks.create_task(work, name="drain")

    async def _answer(self, sender: int, limit: float) -> None:
        left = await self.wait_drained(limit)
        asker = self._runtime.peers.find(sender)
        if asker is not None:
            try:
                self._runtime.send(asker, Drained(left), control=True)
            except CallHomeError as error:
                self._runtime.note(f"nobody waits for the end of its streams: {error}")

    def _resume(self) -> None:
        """It is not to end after all, and nothing is under way that was given a limit."""
        if self._answering is not None:
            self._answering.cancel()
        self._begun = self._hurried = self._succeeded = False
        self._until = math.inf
        self._stops = f"{self._runtime.address.name} stops"
        self._actor.refuse("")

    def hurry(self) -> None:
        """What is under way has no more time."""
        self._shorten(self._loop.time())

    def _shorten(self, until: float) -> None:
        if until < self._until:
            self._until, self._hurried = until, True

    async def wait_drained(self, limit: float) -> int:
        """Refuse what is new and wait for what is under way, at most ``limit`` seconds, or those
        that are left of an earlier limit; then cut it. How many streams were cut.
        """
        until = self._loop.time() + max(0.0, limit)
        if not self._begun:
            self._begun, self._limit = True, limit
            self._actor.refuse(self._stops, self._succeeded)
        self._until = min(self._until, until)
        while left := self._actor.under_way():
            rest = self._until - self._loop.time()
            if rest <= 0:
                self._actor.cut(self._reason())
                return left
            await asyncio.sleep(min(_LOOK, rest))
        return 0

    def _reason(self) -> str:
        if self._limit <= 0:
            return f"{self._stops}, and streams get no time to end (setting drain_limit)"
        if self._hurried:
            return f"{self._stops}, and was asked once more: streams get no more time to end"
        ours = self._limit == self._runtime.settings.drain_limit
        what = "setting drain_limit" if ours else "the limit given"
        return f"{self._stops}, and the time for streams to end is over ({what}, {self._limit:g} s)"
