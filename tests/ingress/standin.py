"""A requester as Dynamo has one, made by hand: raw bytes on plain sockets.

``Requester`` listens where workers call home, and sends requests to an ingress. Nothing of
``transport.callhome`` is used here, so that both do not share one mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgpack

from tests.waiting import DEADLINE

_ids = itertools.count(1)


def two_part(header: bytes = b"", body: bytes = b"") -> bytes:
    """One two-part frame."""
    return struct.pack(">QQQ", len(header), len(body), 0) + header + body


def control(word: str) -> bytes:
    """A control frame."""
    return two_part(json.dumps(word).encode())


def pack(value: Any, codec: str) -> bytes:
    """A value as a Dynamo requester encodes it."""
    if codec == "json":
        return json.dumps(value, separators=(",", ":")).encode()
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(data: bytes, codec: str) -> Any:
    return json.loads(data) if codec == "json" else msgpack.unpackb(data)


class Half:
    """One socket of a stream, accepted from the worker; ``hello`` is its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.hello: dict[str, Any] = {}
        #: All frames that came, the handshake left out.
        self.frames: list[tuple[bytes, bytes]] = []

    async def frame(self) -> tuple[bytes, bytes] | None:
        """The next frame; None at the end of the socket, or when it breaks off."""
        try:
            async with asyncio.timeout(DEADLINE):
                h, b, _ = struct.unpack(">QQQ", await self.reader.readexactly(24))
                header, body = await self.reader.readexactly(h), await self.reader.readexactly(b)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.frames.append((header, body))
        return header, body

    async def rest(self) -> list[tuple[bytes, bytes]]:
        """All frames up to the end of the socket."""
        found = []
        while (each := await self.frame()) is not None:
            found.append(each)
        return found

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()


class Answer(NamedTuple):
    """What came over a response socket: prologue, items, whether the two words of the end came."""

    prologue: Any
    items: list[Any]
    final: bool
    sentinel: bool

    @property
    def data(self) -> list[Any]:
        """The bare data of all items."""
        return [each.get("data") for each in self.items]


def read_answer(frames: list[tuple[bytes, bytes]], codec: str) -> Answer:
    """The frames of a response, checked against the order that they must have."""
    prologue: Any = None
    items: list[Any] = []
    final = sentinel = False
    for index, (header, body) in enumerate(frames):
        assert not sentinel, "a frame behind the sentinel"
        if index == 0:
            assert not body
            prologue = json.loads(header)
        elif header:
            assert not body
            assert json.loads(header) == "sentinel"
            sentinel = True
        else:
            assert not final, "a frame behind the last wrapper"
            wrapper = unpack(body, codec)
            assert set(wrapper) <= {"data", "complete_final"}
            final = wrapper["complete_final"]
            assert final is ("data" not in wrapper)
            if not final:
                items.append(wrapper["data"])
    return Answer(prologue, items, final, sentinel)


class Asked:
    """One request that was sent."""

    def __init__(self, requester: Requester, codec: str, subjects: dict[str, str]) -> None:
        self._requester = requester
        self.codec = codec
        self.subjects = subjects
        self.reply: bytes | None = None

    async def half(self, stream_type: str = "response") -> Half:
        """The socket that the worker dialled for this half."""
        waiting = self._requester.arrived(self.subjects[stream_type])
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(waiting)

    def dialled(self, stream_type: str = "response") -> bool:
        return self._requester.arrived(self.subjects[stream_type]).done()

    async def answer(self) -> Answer:
        """The whole response; the socket is closed as Dynamo's requester does it."""
        half = await self.half()
        frames = []
        while (each := await half.frame()) is not None:
            frames.append(each)
            if each[0] == b'"sentinel"':
                half.close()
                break
        return read_answer(frames, self.codec)


class Requester:
    """Listens for workers and has one connection to an ingress."""

    def __init__(self) -> None:
        self.address = ""
        self._arrived: dict[str, asyncio.Future[Half]] = {}
        self._halves: list[Half] = []
        self._server: asyncio.Server | None = None
        self._requests: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def arrived(self, subject: str) -> asyncio.Future[Half]:
        """The socket with this subject, when it has come."""
        if subject not in self._arrived:
            self._arrived[subject] = asyncio.get_running_loop().create_future()
        return self._arrived[subject]

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        half = Half(reader, writer)
        self._halves.append(half)
        first = await half.frame()
        if first is not None:
            half.frames.clear()
            half.hello = json.loads(first[0])
            self.arrived(half.hello["subject"]).set_result(half)

    async def connect(self, ingress: str) -> None:
        """Open the connection for requests."""
        host, _, port = ingress.rpartition(":")
        self._requests = await asyncio.open_connection(host, int(port))

    async def reconnect(self, ingress: str) -> None:
        """Cut the connection for requests, with what was written, and open a new one."""
        assert self._requests is not None
        await self._requests[1].drain()
        self._requests[1].transport.abort()
        await self.connect(ingress)

    def info(self, subject: str, context: str, stream_type: str, **changed: Any) -> dict[str, Any]:
        """Connection info of one half."""
        inner = {
            "address": self.address,
            "subject": subject,
            "context": context,
            "stream_type": stream_type,
        } | changed
        return {"transport": "tcp_server", "info": json.dumps(inner)}

    def envelope(
        self, request: Any, codec: str = "msgpack", many: bool = False, **fields: Any
    ) -> tuple[Asked, bytes]:
        """A two-part frame that asks, not sent; ``fields`` replace those of the control message,
        None leaves one out. ``body`` are the bytes behind it.
        """
        subjects = {kind: str(uuid.uuid4()) for kind in ("response", "request")}
        context = f"r-{next(_ids)}"
        body = fields.pop("body", b"" if many else pack(request, codec))
        message: dict[str, Any] = {
            "id": context,
            "request_type": "many_in" if many else "single_in",
            "response_type": "many_out",
            "payload_codec": codec,
            "connection_info": self.info(subjects["response"], context, "response"),
        }
        if many:
            message["request_stream_connection_info"] = self.info(
                subjects["request"], context, "request"
            )
        message = {key: each for key, each in (message | fields).items() if each is not None}
        asked = Asked(self, codec, subjects)
        return asked, two_part(json.dumps(message).encode(), body)

    def write(self, path: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a request frame."""
        assert self._requests is not None
        head = json.dumps({"x-endpoint-path": path} | (headers or {})).encode()
        name = path.encode()
        self._requests[1].write(
            struct.pack(">H", len(name)) + name + struct.pack(">H", len(head)) + head
            + struct.pack(">I", len(payload)) + payload
        )  # fmt: skip

    async def reply(self) -> bytes:
        """The next reply."""
        assert self._requests is not None
        async with asyncio.timeout(DEADLINE):
            (length,) = struct.unpack(">I", await self._requests[0].readexactly(4))
            return await self._requests[0].readexactly(length)

    async def ask(self, path: str, request: Any = None, **fields: Any) -> Asked:
        """Send a request and wait for its reply, which is kept in ``reply``."""
        headers = fields.pop("headers", None)
        asked, payload = self.envelope(request, **fields)
        self.write(path, payload, headers)
        asked.reply = await self.reply()
        return asked

    async def close(self) -> None:
        if self._requests is not None:
            self._requests[1].close()
            with contextlib.suppress(ConnectionError):
                await self._requests[1].wait_closed()
        await self.stop_listening()
        for half in self._halves:
            half.close()
            with contextlib.suppress(ConnectionError):
                await half.writer.wait_closed()

    async def stop_listening(self) -> None:
        """Whoever calls home from now on is refused."""
        if self._server is not None:
            self._server.close()
            self._server = None


@contextlib.asynccontextmanager
async def requester(ingress: str) -> AsyncIterator[Requester]:
    """A requester with a connection to ``ingress``."""
    made = Requester()
    await made.listen()
    try:
        await made.connect(ingress)
        yield made
    finally:
        await made.close()
