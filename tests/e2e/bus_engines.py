"""Engines and actors of the field reports on the bus."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from actors import Actor, Context, handles


class Note(NamedTuple):
    """Count it; ``body`` is ballast."""

    number: int
    body: bytes = b""


class Noted(NamedTuple):
    """How many notes have come, and whether each was the one behind the last."""


class Busy(NamedTuple):
    """Keep the mailbox busy until ``Free``."""


class Free(NamedTuple):
    """Let ``Busy`` end; a stream, for the mailbox is busy."""


class Notes(Actor):
    """Counts notes."""

    def __init__(self) -> None:
        self.count = 0
        self.order = True
        self.last = -2

    async def on_start(self) -> None:
        self.gate = asyncio.Event()

    @handles(Note)
    async def note(self, message: Note) -> int:
        self.order = self.order and message.number > self.last
        self.last = message.number
        self.count += 1
        return self.count

    @handles(Noted)
    async def noted(self, message: Noted) -> AsyncIterator[list[Any]]:
        yield [self.count, self.order]

    @handles(Busy)
    async def busy(self, message: Busy) -> None:
        await self.gate.wait()
        self.gate.clear()

    @handles(Free)
    async def free(self, message: Free) -> AsyncIterator[bool]:
        self.gate.set()
        yield True


async def last_words(request: int, ctx: Context) -> AsyncIterator[int]:
    """Yields numbers, and its process is asked to stop the moment that the handler returns."""
    for number in range(request):
        yield number
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)


async def echo(request: Any, ctx: Context) -> Any:
    """The request, back."""
    return request


class Sleep(NamedTuple):
    """Let the whole process do nothing else for so many seconds."""

    seconds: float


class Sink(Notes):
    """Counts notes, and sleeps when it is told to."""

    @handles(Sleep)
    async def sleep(self, message: Sleep) -> None:
        time.sleep(message.seconds)  # noqa: ASYNC251 - nothing is read meanwhile


async def large(request: int, ctx: Context) -> AsyncIterator[str]:
    """Three items of ``request`` bytes."""
    for _ in range(3):
        yield "x" * request
