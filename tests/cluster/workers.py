"""Engines and actors for the tests of clusters; imported by exec'd children."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from actors import Actor, Context, Engine, handles
from actors.messages import Inspect


class Echo(Engine[Any, Any]):
    """Answers with the request, once."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


class Where(Engine[Any, Any]):
    """Answers with its process and that process's cores."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0))}


class OnceUp(Echo):
    """Comes up the first time; every later start fails."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def on_start(self) -> None:
        if self.file.exists():
            raise RuntimeError("only once")
        self.file.touch()


class OnceWell(Echo):
    """Answers its canary the first time; in every later process it fails it, or dies (``dies``)."""

    def __init__(self, file: str, dies: bool = False) -> None:
        self.later = Path(file).exists()
        self.dies = dies
        Path(file).touch()

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        if self.later and self.dies:
            os.abort()
        if self.later:
            raise RuntimeError("well only once")
        yield request


class NotAfter(Echo):
    """Comes up as long as ``file`` is not there."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def on_start(self) -> None:
        if self.file.exists():
            raise RuntimeError("no more")


class NotWellAfter(Echo):
    """Of those that start once ``file`` is there none answers."""

    def __init__(self, file: str) -> None:
        self.late = Path(file).exists()

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        if self.late:
            raise RuntimeError("not well")
        yield request


class Holds(Engine[Any, Any]):
    """Yields 0, and 1 once ``file`` is there."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield 0
        while not self.file.exists():  # noqa: ASYNC110 - the test makes it
            await asyncio.sleep(0.02)
        yield 1


class Endless(Engine[Any, Any]):
    """Yields one item, then waits for ever."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield os.getpid()
        await asyncio.Event().wait()


class Refuses(Engine[Any, Any]):
    """Its constructor raises."""

    def __init__(self) -> None:
        raise ValueError("this engine refuses")

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield None


class Stuck(Engine[Any, Any]):
    """Never gets through on_start."""

    async def on_start(self) -> None:
        await asyncio.Event().wait()

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield None


class Add(NamedTuple):
    """Add to a Counter."""

    amount: int


class Total(NamedTuple):
    """Ask a Counter for its total and its process."""


class Die(NamedTuple):
    """End the process at once, with this exit code."""

    code: int


class Leave(NamedTuple):
    """Call ``exit`` with this code in the handler."""

    code: int


class Counter(Actor):
    """Counts in memory; ``log`` is a file that gets a line for each start and stop."""

    def __init__(self, log: str = "") -> None:
        self.log = log
        self.total = 0

    def note(self, text: str) -> None:
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{text}\n")

    async def on_start(self) -> None:
        self.note("start")

    async def on_stop(self) -> None:
        self.note("stop")

    @handles(Add)
    async def add(self, message: Add) -> int:
        self.total += message.amount
        return self.total

    @handles(Total)
    async def report(self, message: Total) -> list[int]:
        return [self.total, os.getpid()]

    @handles(Die)
    async def die(self, message: Die) -> None:
        os._exit(message.code)

    @handles(Leave)
    async def leave(self, message: Leave) -> None:
        sys.exit(message.code)


class LeavesLate(Actor):
    """Calls ``exit`` as it stops."""

    async def on_stop(self) -> None:
        sys.exit(6)


async def leaving(request: int, ctx: Context) -> int:
    """Calls ``exit``."""
    sys.exit(request)


def leaving_thread(request: int, ctx: Context) -> Iterator[int]:
    """Yields, and calls ``exit``, in a thread."""
    yield request
    sys.exit(request)


class CallsAtStart(Actor):
    """Calls an endpoint when it starts, and fails if that fails."""

    async def on_start(self) -> None:
        answer = await self.calls.call("test.echo.one", {"from": self.name}, timeout=5.0)
        assert answer == {"from": self.name}


class Odd(Actor):
    """Says things about itself that nobody can count with."""

    def carries(self) -> Any:
        return {"in_flight": "many", "queued": [], "capacity": None, "extra": 1}


class Odder(Actor):
    """What it says about itself is no table at all."""

    @handles(Inspect)
    async def inspect(self, message: Inspect) -> AsyncIterator[Any]:
        yield "mine"


class Once(Actor):
    """Starts once; afterwards its process ends hard in on_start. ``mark`` is a file of its own."""

    def __init__(self, mark: str) -> None:
        self.mark = Path(mark)

    async def on_start(self) -> None:
        if self.mark.exists():
            os._exit(5)
        self.mark.touch()
