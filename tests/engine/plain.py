"""An engine in this process, and a hand-made home that speaks a plain codec to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors import Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.messages import End, Items
from tests.e2e.raw import RawHome, raw_home
from transport.wire.adapter import PayloadAdapter

ENDPOINT = "t.plain.go"
CODECS = ("plain.msgpack", "plain.json")
both = pytest.mark.parametrize("codec", CODECS)


def read(data: bytes, codec: str) -> Any:
    """A payload as a peer of another tongue reads it, strictly."""
    if codec == "plain.json":
        return json.loads(data, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    return msgpack.unpackb(data, strict_map_key=True)


def write(value: Any, codec: str) -> bytes:
    """A payload as such a peer writes it."""
    data: bytes = json.dumps(value).encode() if codec == "plain.json" else msgpack.packb(value)
    return data


class Rig:
    """An engine and a hand-made home that opens streams of it."""

    def __init__(self, actor: EngineActor, home: RawHome) -> None:
        self.actor = actor
        self.home = home
        self._stream = 0

    def open(self, codec: str, request: bytes, **fields: Any) -> int:
        self._stream += 1
        self.home.open(
            self.actor.address, self._stream, ENDPOINT, None,
            codec=codec, payload=request, **fields,
        )  # fmt: skip
        return self._stream

    async def ended(self, stream: int) -> tuple[list[bytes], End]:
        """The payloads of a stream, and its end."""
        end = await self.home.ended(stream)
        payloads = [data for m in self.home.got(Items, stream) for data in m.payloads]
        return payloads + end.last, end

    async def run(self, codec: str, request: Any = None) -> tuple[list[Any], list[Any] | None]:
        """One stream: what its reader makes of the items, and the error at their end."""
        payloads, end = await self.ended(self.open(codec, write(request, codec)))
        assert end.total == len(payloads)
        return [read(data, codec) for data in payloads], end.error


@asynccontextmanager
async def rig(
    tmp_path: Path, handler: Any, adapter: PayloadAdapter | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    spec = {
        "run": str(tmp_path),
        "name": "engine",
        "role": "engine",
        "settings": Settings(**settings).to_dict(),
    }
    actor = EngineActor(handler, {}, ENDPOINT, 4, 4, adapter)
    with raw_home(str(tmp_path)) as home:
        async with running(spec, actor):  # ends before the home, for whom it would linger
            yield Rig(actor, home)
