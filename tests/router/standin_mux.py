"""A node of ours made of raw bytes, on the one connection that it has dialled home."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tests.router.standin import Call, Half, StandIn
from tests.waiting import DEADLINE
from transport.wire.message import BatchReader, BatchWriter, Message
from transport.wire.mux import ABORT, BATCH, BODY, HEAD, PING, PONG, pack_mux, read_mux

_M = TypeVar("_M", bound=Message)

#: The stand-in's incarnation.
OWN = 0x77


class MuxEnd:
    """The node's end of the connection; ``read`` gives what the router says, pings are answered."""

    def __init__(self, half: Half) -> None:
        self.half = half
        self._writer = BatchWriter(OWN)
        self._batches = BatchReader()
        self._came: list[Message] = []
        #: Bytes of bodies that came, by their number, and which of them broke off.
        self.bodies: dict[int, int] = {}
        self.aborted: list[int] = []

    def send(self, *messages: Message) -> None:
        """One batch."""
        batch = self._writer.pack(messages)
        self.half.send(pack_mux(BATCH, len(batch)), batch)

    async def read(self) -> Message | None:
        """The next message; None at the end of the connection."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not self._came:
                    head = await self.half.reader.readexactly(HEAD)
                    length, kind, body = read_mux(head)
                    data = await self.half.reader.readexactly(length)
                    if kind == BATCH:
                        self._came += self._batches.unpack(data)[1]
                    elif kind == BODY:
                        self.bodies[body] = self.bodies.get(body, 0) + length
                    elif kind == ABORT:
                        self.aborted.append(body)
                    elif kind == PING:
                        self.half.send(pack_mux(PONG, length), data)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return self._came.pop(0)

    async def find(self, kind: type[_M]) -> _M:
        """The next message of this type; others are passed over."""
        while True:
            message = await self.read()
            assert message is not None, f"the connection has ended before a {kind.__name__}"
            if isinstance(message, kind):
                return message


def number(call: Call) -> int:
    """The router's number of a stream."""
    return call.envelope.connection.number("stream")


async def connect(worker: StandIn) -> tuple[Call, MuxEnd]:
    """The next request, acknowledged, and the connection dialled for it."""
    call = await worker.next()
    call.reply()
    return call, MuxEnd(await call.dial())
