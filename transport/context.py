"""Context: what a handler and a caller know of one stream: id, metadata, deadline, stop, kill,
children.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class FrameMaker(Protocol):
    """Where frames come from; ``ctx.frames`` and ``client.frames`` are such makers."""

    def new(self, shape: int | tuple[int, ...], dtype: np.typing.DTypeLike = ...) -> Any:
        """A frame of ``shape`` and ``dtype`` to be written in place, leased in this process's
        arena.

        Raises MemoryExhausted when the arena is full; ``wait_new`` waits for room.
        """


class Context:
    """One stream as its handler or caller sees it; made by callhome, one per stream.

    It moves from live to stopped to killed and never back; ``reason`` tells why. ``stopped`` is
    true in both later states. Plain attributes, so that a handler in a thread may read them; every
    method but ``remaining`` belongs to the event loop.
    """

    __slots__ = (
        "_children",
        "_parent",
        "_waiters",
        "deadline",
        "id",
        "killed",
        "metadata",
        "reason",
        "stopped",
        "warnings",
        "when_cancelled",
        "when_warned",
    )

    def __init__(
        self,
        request_id: str,
        metadata: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.id = request_id
        #: Strings that travel with the request.
        self.metadata: dict[str, str] = dict(metadata) if metadata else {}
        #: ``time.monotonic()`` at which the request expires, in seconds; None: never.
        self.deadline = deadline
        self.stopped = False
        self.killed = False
        self.reason = ""
        #: Called with the context whenever it becomes stopped or killed; set by who runs the
        #: stream.
        self.when_cancelled: Callable[[Context], None] | None = None
        #: What its caller was told of trouble at the other end, the newest last; bounded.
        self.warnings: tuple[Any, ...] = ()
        #: Called with each of these as it is told; set by the caller.
        self.when_warned: Callable[[Any], object] | None = None
        self._children: dict[Context, None] = {}
        self._parent: Context | None = None
        self._waiters: list[tuple[bool, asyncio.Future[None]]] = []

    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative; None when there is none."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    def stop(self, reason: str = "stopped") -> None:
        """Ask for an end: the handler may still yield, and what it yields arrives."""
        if not self.stopped:
            self.stopped = True
            self.reason = reason
            self._spread(kill=False)

    def kill(self, reason: str = "killed") -> None:
        """Drop the stream: nothing more is wanted."""
        if not self.killed:
            self.stopped = self.killed = True
            self.reason = reason
            self._spread(kill=True)

    def _spread(self, kill: bool) -> None:
        # Children first, in link order, on a snapshot: a callback may link or unlink.
        for child in list(self._children):
            if kill:
                child.kill(self.reason)
            else:
                child.stop(self.reason)
        waiters, self._waiters = self._waiters, []
        for for_kill, waiter in waiters:
            if for_kill and not self.killed:
                self._waiters.append((for_kill, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        if self.when_cancelled is not None:
            self.when_cancelled(self)

    def link(self, child: Context) -> None:
        """Repeat later stops and kills on ``child``; at once if this context is cancelled
        already.
        """
        self._children[child] = None
        child._parent = self
        if self.killed:
            child.kill(self.reason)
        elif self.stopped:
            child.stop(self.reason)

    def unlink(self) -> None:
        """Leave the parent: its later stops and kills no longer reach here."""
        if self._parent is not None:
            self._parent._children.pop(self, None)
            self._parent = None

    def finish(self, reason: str) -> None:
        """The stream has ended: calls and waits that its handler has left running end with it."""
        self.when_cancelled = None
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            waiter.cancel()  # neither a stop nor a kill will come
        for child in list(self._children):
            child.kill(reason)
        self.unlink()

    async def wait_stopped(self) -> None:
        """Wait until the context is stopped or killed; returns at once if it is.

        It ends at the latest with the request's deadline, when the context is killed. A task that
        still waits when the handler has ended is cancelled.
        """
        if not self.stopped:
            await self._wait(for_kill=False)

    async def wait_killed(self) -> None:
        """Wait until the context is killed; returns at once if it is."""
        if not self.killed:
            await self._wait(for_kill=True)

    async def _wait(self, for_kill: bool) -> None:
        entry = (for_kill, asyncio.get_running_loop().create_future())
        self._waiters.append(entry)
        try:
            await entry[1]
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
