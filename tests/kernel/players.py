"""Actors of a user's own, as the tests of actors and references start them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from actors import Actor, ActorSpec, Context, handles
from actors.errors import Unsupported


class Add(NamedTuple):
    """Add; the answer is the total."""

    amount: int
    note: str = ""


class Race(NamedTuple):
    """Read, wait a turn, write: two at a time would lose one."""


class CountTo(NamedTuple):
    """A stream of the numbers below."""

    limit: int


class Wait(NamedTuple):
    """Wait for ``Go``, or for ever."""


class Go(NamedTuple):
    """Let ``Wait`` go on; a stream, since the mailbox is busy."""


class Seen(NamedTuple):
    """What has happened, as a stream."""


class Fail(NamedTuple):
    """Raise: ``foreign`` or one of ours."""

    how: str


class Crash(NamedTuple):
    """End the process as a bug in native code would."""


class Give(NamedTuple):
    """Any value, back."""

    value: Any


class Relay(NamedTuple):
    """Ask another actor, or an endpoint, and answer what it says."""

    to: str
    amount: int


class Unknown(NamedTuple):
    """Nobody handles this."""


class Counter(Actor):
    """Counts, waits, fails, crashes."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    async def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.happened: list[str] = []

    @handles(Add)
    async def add(self, message: Add) -> int:
        self.total += message.amount
        return self.total

    @handles(Race)
    async def race(self, message: Race) -> int:
        before = self.total
        await asyncio.sleep(0)
        self.total = before + 1
        return self.total

    @handles(CountTo)
    async def count_to(self, message: CountTo) -> AsyncIterator[int]:
        try:
            for number in range(message.limit):
                yield number
        finally:
            self.happened.append("count ended")

    @handles(Wait)
    async def wait(self, message: Wait) -> str:
        self.happened.append("waiting")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.happened.append("wait cancelled")
            raise
        return "went on"

    @handles(Go)
    async def go(self, message: Go) -> AsyncIterator[bool]:
        self.gate.set()
        yield True

    @handles(Seen)
    async def seen(self, message: Seen) -> AsyncIterator[list[str]]:
        yield self.happened

    @handles(Fail)
    async def fail(self, message: Fail) -> None:
        if message.how == "ours":
            raise Unsupported("not with me")
        raise ValueError(f"boom {message.how}")

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        os._exit(3)

    @handles(Give)
    async def give(self, message: Give) -> Any:
        return message.value

    @handles(Relay)
    async def relay(self, message: Relay) -> Any:
        if "." in message.to:
            return await self.calls.call(message.to, message.amount, timeout=60.0)
        return await self.ref(message.to).ask(Add(message.amount), timeout=60.0)


class Louder(Counter):
    """A subclass replaces one handler and keeps the others."""

    @handles(Add)
    async def add(self, message: Add) -> int:
        return 10 * await super().add(message)


async def double(request: int, ctx: Context) -> int:
    """An engine that an actor calls."""
    return 2 * request


HERE = "tests.kernel.players:"
COUNTER = ActorSpec("counter", actor=HERE + "Counter", args={"start": 100})
LOUDER = ActorSpec("louder", actor=HERE + "Louder")
OTHER = ActorSpec("other", actor=HERE + "Counter", args={"start": 100})
MORTAL = ActorSpec("mortal", actor=HERE + "Counter", restart="never")
