"""What the tests of relayed values share: runtimes of one node, and a connection that is fed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from actors.config import Settings
from actors.kernel.bodies import Outgoing
from actors.kernel.runtime import Runtime
from actors.messages import Item, Items
from tests.waiting import wait_until
from transport.payload import Encoded
from transport.wire.message import Message

#: A stream's number wherever there is one.
STREAM = 7


class Feed:
    """Stands for the connection that bodies come over: the test says what arrives, and when."""

    def __init__(self) -> None:
        self.wanted: dict[int, tuple[list[memoryview], Callable[[bool], None]]] = {}
        self.dropped: list[int] = []

    def expect(
        self, number: int, targets: Sequence[memoryview], done: Callable[[bool], None]
    ) -> None:
        self.wanted[number] = (list(targets), done)

    def drop_body(self, number: int) -> None:
        del self.wanted[number]
        self.dropped.append(number)

    def bring(self, number: int, parts: Sequence[bytes | memoryview]) -> None:
        """The whole body arrives."""
        targets, done = self.wanted.pop(number)
        for target, part in zip(targets, parts, strict=True):
            target[:] = part
        targets.clear()
        del target
        done(True)

    def begin(self, number: int, data: bytes) -> None:
        """The first bytes of a body arrive."""
        self.wanted[number][0][0][: len(data)] = data

    def abort(self, number: int) -> None:
        """The body is given up by its sender."""
        _, done = self.wanted.pop(number)
        done(False)


class Reader:
    """A runtime that keeps the items which it is sent."""

    def __init__(self, run: str, name: str, **settings: Any) -> None:
        self.runtime = Runtime(run=run, name=name, settings=Settings(**settings))
        self.messages: list[Message] = []
        self.runtime.on(Item, self._item)
        self.runtime.on(Items, lambda sender, m: self.messages.append(m))

    def _item(self, sender: int, m: Item) -> None:
        self.runtime.expect(m.handles)
        self.messages.append(m)

    async def take(self) -> Message:
        """The next message."""
        await wait_until(lambda: self.messages)
        return self.messages.pop(0)

    async def item(self) -> Item:
        """The next message, which is an Item."""
        found = await self.take()
        assert isinstance(found, Item)
        return found

    async def value(self) -> Any:
        """The value of the next Item."""
        found = await self.item()
        return self.runtime.decode(found.payload, found.handles, "msgpack")


@contextlib.asynccontextmanager
async def actors(run: str, *names: str, **settings: Any) -> AsyncIterator[list[Reader]]:
    """Runtimes of one node that watch each other."""
    found = [Reader(run, name, **settings) for name in names]
    try:
        for one in found:
            for other in found:
                if one is not other:
                    assert one.runtime.peers.watch(other.runtime.address)
        yield found
    finally:
        for one in found:
            one.messages.clear()
            one.runtime.close()


async def send(sender: Reader, to: Reader, value: Any, seq: int = 0) -> int:
    """Send a value as an engine does, in shared memory; its counted size."""
    encoded = sender.runtime.encode(value, "msgpack", True, "item")
    encoded = await sender.runtime.lend(encoded, to.runtime.address, STREAM)
    message = Item(STREAM, seq, encoded.data, encoded.handles, encoded.size)
    sender.runtime.port.send(to.runtime.address, message, size=encoded.carried)
    return encoded.size


def item(seq: int) -> Callable[[Encoded], Message]:
    """How a relay passes an item on."""
    return lambda encoded: Item(STREAM, seq, encoded.data, encoded.handles, encoded.size)


def bytes_of(outgoing: Outgoing) -> list[bytes]:
    """The parts of a body as they would cross the wire."""
    return [bytes(part) for part in outgoing.parts]


async def at_rest(*readers: Reader) -> None:
    """Wait until nobody's arena holds anything."""
    await wait_until(lambda: all(_idle(each.runtime) for each in readers), what="arenas are empty")


def _idle(runtime: Runtime) -> bool:
    runtime.links.send_releases()
    found = runtime.memory.statistics()
    return found.slots == found.lent == found.in_use == 0


async def settle() -> None:
    """Let callbacks of the loop run that are due already."""
    for _ in range(3):
        await asyncio.sleep(0)
