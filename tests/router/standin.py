"""A worker of another node made of raw bytes: a test plays it step by step, rightly or wrongly."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack

from tests.waiting import DEADLINE, wait_until
from transport.wire.control import SENTINEL, pack_handshake, pack_prologue
from transport.wire.envelope import Envelope, Info, read_envelope
from transport.wire.framing import FrameReader, frame, read_frame
from transport.wire.plain import final, wrap
from transport.wire.request import RequestFrame, RequestReader, pack_reply


class Half:
    """A socket that the worker has dialled home."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._came: list[tuple[bytes, bytes]] = []

    def send(self, *data: bytes) -> None:
        """Raw bytes."""
        self._writer.write(b"".join(data))

    def prologue(self, error: str | None = None, typed: Any = None) -> None:
        self.send(pack_prologue(error, typed))

    def item(self, value: Any, codec: str = "msgpack") -> None:
        """An item as a worker with MessagePack wraps it."""
        self.send(item_frame(value, codec))

    def end(self, codec: str = "msgpack") -> None:
        """The terminal wrapper and the sentinel."""
        self.send(frame(b"", final(codec)), SENTINEL)

    async def read(self) -> tuple[bytes, bytes] | None:
        """The next frame from the router; None at the end of the connection, however it came."""
        async with asyncio.timeout(DEADLINE):
            while not self._came:
                try:
                    data = await self.reader.read(65536)
                except OSError:
                    return None
                if not data:
                    return None
                self._came += self._frames.feed(data)
        return self._came.pop(0)

    async def taken(self) -> None:
        """Wait until the other side has read all that was sent: a reset takes along what it has
        not.
        """
        sock = self._writer.get_extra_info("socket")
        ends = _hexadecimal(sock.getsockname()), _hexadecimal(sock.getpeername())

        def read() -> bool:
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            left = {(line[1], line[2]): line[4] for line in lines}  # to be sent and to be read
            ours, theirs = left.get(ends), left.get(ends[::-1])
            return (
                not self._writer.transport.get_write_buffer_size()
                and (ours is None or ours.startswith("00000000:"))
                and (theirs is None or theirs.endswith(":00000000"))
            )

        for _ in range(2):  # it may have been between the two at the first look
            await wait_until(read, what="what was sent is read")

    async def rest(self) -> list[tuple[bytes, bytes]]:
        """All frames up to the end of the connection."""
        found = []
        while (each := await self.read()) is not None:
            found.append(each)
        return found

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """The peer sees a reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()


def _hexadecimal(address: tuple[str, int]) -> str:
    """As ``/proc/net/tcp`` shows it."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


class Call:
    """One request as it came to the stand-in."""

    def __init__(self, worker: StandIn, request: RequestFrame, writer: Any) -> None:
        self._worker = worker
        self._writer = writer
        self.path = request.path
        self.headers = request.headers
        header, self.body = read_frame(request.payload)
        self.header = header
        self.envelope: Envelope = read_envelope(header)

    @property
    def value(self) -> Any:
        return msgpack.unpackb(self.body)

    def reply(self, text: bytes = b"") -> None:
        """Answer; nothing is the acknowledgement."""
        self._writer.write(pack_reply(text))

    def cut(self) -> None:
        """Close the connection that the request came over."""
        self._writer.close()

    async def dial(
        self, info: Info | None = None, hello: bytes | None = None, **changed: str
    ) -> Half:
        """Call home for the response, or for what ``info`` says."""
        info = info or self.envelope.connection
        host, _, port = info.text("address").rpartition(":")
        half = Half(*await asyncio.open_connection(host, int(port)))
        self._worker.halves.append(half)
        kind = "mux" if "incarnation" in info.info else info.text("stream_type")
        said = {"subject": info.text("subject"), "stream_type": kind, **changed}
        half.send(pack_handshake(**said) if hello is None else hello)
        return half

    async def answer(self, *values: Any, codec: str = "msgpack") -> Half:
        """Acknowledge, call home, send these items and the end."""
        self.reply()
        half = await self.dial()
        half.prologue()
        for each in values:
            half.item(each, codec)
        half.end(codec)
        return half


class StandIn:
    """Listens for requests; ``calls`` are those that came."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.halves: list[Half] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._queue: asyncio.Queue[Call] = asyncio.Queue()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.via = f"{self.address}/abc/t/far/go"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        requests = RequestReader()
        try:
            while data := await reader.read(65536):
                for each in requests.feed(data):
                    call = Call(self, each, writer)
                    self.calls.append(call)
                    self._queue.put_nowait(call)
        except OSError:
            pass
        finally:
            writer.close()

    async def next(self) -> Call:
        """The next request."""
        async with asyncio.timeout(DEADLINE):
            return await self._queue.get()

    def hang_up(self) -> None:
        """Close all that was dialled, so that nobody has to wait for it."""
        for half in self.halves:
            half.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()


def item_frame(value: Any, codec: str = "msgpack") -> bytes:
    """The frame of an item with this data."""
    if codec == "json":
        import json

        return frame(b"", wrap(json.dumps({"data": value}).encode(), codec))
    return frame(b"", wrap(msgpack.packb({"data": value}), codec))


@asynccontextmanager
async def standin() -> AsyncIterator[StandIn]:
    """A worker that does nothing by itself; all its sockets close with the block."""
    worker = StandIn()
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()
