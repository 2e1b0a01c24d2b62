"""Actors and engines for what users do with references, errors and limits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from actors import Actor, Context, Engine, Ref, handles
from actors.errors import MemoryExhausted
from tests.kernel.players import Add


class Odd(Exception):
    """Takes more than its message: nothing that rebuilds it from its text could."""

    def __init__(self, code: int, msg: str) -> None:
        super().__init__(msg)
        self.code = code


class Locked(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Mute(Exception):
    """Raises when it is asked for its words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def foreign() -> Exception:
    """An exception of a module that only this process has."""
    space: dict[str, Any] = {"__name__": "only_here"}
    exec("class Strange(Exception): pass", space)
    found: Exception = space["Strange"]("from nowhere")
    return found


RAISED = {
    "odd": lambda: Odd(7, "seven"),
    "lock": Locked,
    "mute": Mute,
    "foreign": foreign,
}


class Raise(NamedTuple):
    """Raise one of ``RAISED``."""

    how: str


class Through(NamedTuple):
    """Ask whoever ``ref`` names to add; ``more``: others, nested."""

    ref: Ref
    amount: int
    more: Any = None


class Given(NamedTuple):
    """Ask the one that was given with the spec."""

    amount: int


class Back(NamedTuple):
    """A reference, back."""

    ref: Ref


class Round(NamedTuple):
    """Ask along ``names``, the last of which adds."""

    names: list[str]


class Pause(NamedTuple):
    """Answer after some seconds."""

    seconds: float


class Fork(NamedTuple):
    """Fork, and use in the child what was inherited; the child's words."""


class Player(Actor):
    """Does what it is told, and counts."""

    def __init__(self, peer: Ref | None = None, deep: Any = None) -> None:
        self.peer = peer
        self.deep = deep
        self.total = 0

    async def on_start(self) -> None:
        if self.peer is not None:
            assert self.peer.name  # bound by now

    @handles(Add)
    async def add(self, message: Add) -> int:
        self.total += message.amount
        return self.total

    @handles(Raise)
    async def fail(self, message: Raise) -> None:
        raise RAISED[message.how]()

    @handles(Through)
    async def through(self, message: Through) -> Any:
        found = await message.ref.ask(Add(message.amount), timeout=20.0)
        if message.more is None:
            return found
        return [await each.ask(Add(0), timeout=20.0) for each in message.more["refs"]]

    @handles(Given)
    async def given_one(self, message: Given) -> list[int]:
        assert self.peer is not None
        others = [self.peer, *self.deep["all"]]
        return [await each.ask(Add(message.amount), timeout=20.0) for each in others]

    @handles(Back)
    async def back(self, message: Back) -> Any:
        return {"same": message.ref, "own": self.ref(self.name)}

    @handles(Round)
    async def round(self, message: Round) -> Any:
        first, *rest = message.names
        next_message = Round(rest) if rest else Add(1)
        return await self.ref(first).ask(next_message, timeout=20.0)

    @handles(Pause)
    async def pause(self, message: Pause) -> str:
        await asyncio.sleep(message.seconds)
        return "rested"

    @handles(Fork)
    async def fork(self, message: Fork) -> AsyncIterator[str]:
        peer = self.ref("b")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _in_child(peer, self, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            told = await asyncio.to_thread(lines.read)
        await asyncio.to_thread(os.waitpid, child, 0)
        yield told


def _in_child(peer: Ref, actor: Actor, writing: int) -> None:
    """What a forked child may try; it ends here, without a word to the loop that it inherited."""
    told = []
    tries: dict[str, Callable[[], Any]] = {
        "ask": lambda: peer.ask(Add(1), timeout=1.0),
        "tell": lambda: peer.tell(Add(1)),
        "call": lambda: actor.calls.call("t.ask.refs", {}, timeout=1.0),
    }
    for what, make in tries.items():
        try:
            asyncio.run(make())
            told.append(f"{what}: worked")
        except BaseException as error:
            told.append(f"{what}: {type(error).__name__}: {error}")
    try:
        actor.runtime.memory.frames.new(10, "u1")
        told.append("frame: worked")
    except MemoryExhausted as error:
        told.append(f"frame: {error}")
    actor.runtime.close()
    os.write(writing, "\n".join(told).encode())
    os._exit(0)


class Asker(Engine[dict[str, Any], Any]):
    """An engine that gets references: in its request, and with its spec."""

    def __init__(self, peer: Ref) -> None:
        self.peer = peer

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        if "raise" in request:
            raise RAISED[request["raise"]]()
        for _ in range(request.get("items", 0)):
            yield 0
        if "pause" in request:
            await asyncio.sleep(request["pause"])
        if "ref" in request:
            yield await request["ref"].ask(Add(request["amount"]), timeout=20.0)
            yield {"ref": request["ref"]}
        yield await self.peer.ask(Add(0), timeout=20.0)
