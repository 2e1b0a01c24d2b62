"""As much of a WebSocket client as a test needs to speak to Dynamo's realtime frontend."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_TEXT, _CLOSE = 1, 8
#: How long the frontend may take for one message; seconds.
_PATIENCE = 60.0


class WebSocket:
    """One open connection; messages are JSON objects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: dict[str, Any]) -> None:
        """One text message."""
        await self._write(_TEXT, json.dumps(message).encode())

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the frontend closes."""
        async with asyncio.timeout(_PATIENCE):
            head = await self._reader.readexactly(2)
            length = head[1] & 0x7F
            if length > 125:
                size = 2 if length == 126 else 8
                length = int.from_bytes(await self._reader.readexactly(size), "big")
            body = await self._reader.readexactly(length)
        if head[0] & 0x0F == _CLOSE:
            return None
        message: dict[str, Any] = json.loads(body)
        return message

    async def close(self) -> None:
        """Say goodbye."""
        await self._write(_CLOSE, struct.pack(">H", 1000))

    async def _write(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        length = b"\xff" + len(data).to_bytes(8, "big")  # the longest form: always allowed there
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._writer.write(bytes([0x80 | kind]) + length + mask + masked)
        await self._writer.drain()


@asynccontextmanager
async def connected(port: int, path: str) -> AsyncIterator[WebSocket]:
    """A connection; leaving the block cuts it if it is still open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        async with asyncio.timeout(_PATIENCE):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer.splitlines()[0], answer
        yield WebSocket(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
