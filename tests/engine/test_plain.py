"""Streams in a plain codec at an engine: what peers that are not ours send, and get to read."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import numpy as np
import pytest

from actors import Annotated, Context, RequestStream, Settings, bidirectional
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.messages import Accept, End, Feed, FeedEnd, FeedItem, Items
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import wait_until
from transport.shm.frames import Frame
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
        return [data for m in self.home.got(Items, stream) for data in m.payloads], end

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
    async with running(spec, actor):
        with raw_home(str(tmp_path)) as home:
            yield Rig(actor, home)


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for item in request:
        yield item


def echo_in_a_thread(request: Any) -> Iterator[Any]:
    yield from request


@bidirectional
async def echo_each(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
    async for item in requests:
        yield item


@both
@pytest.mark.parametrize("handler", [echo, echo_in_a_thread])
async def test_conformance_09_unary_items_are_annotated_maps(
    tmp_path: Path, codec: str, handler: Any
) -> None:
    sent = [{"a": [1, 2.5, None, True, "ä"]}, "text", None]
    async with rig(tmp_path, handler) as at:
        items, error = await at.run(codec, sent)
        assert error is None
        assert items == [{"data": item} for item in sent]


@both
async def test_conformance_09_request_items_are_bare(tmp_path: Path, codec: str) -> None:
    sent = [{"a": 1}, [1, [2]], "x"]
    async with rig(tmp_path, echo_each) as at:
        stream = at.open(codec, b"", many=True)
        await wait_until(lambda: at.home.got(Accept, stream))
        payloads = [write(item, codec) for item in sent]
        at.home.send(at.actor.address, Feed(stream, 0, payloads))
        at.home.send(at.actor.address, FeedEnd(stream, 3))
        found, end = await at.ended(stream)
        assert end.error is None
        assert [read(data, codec) for data in found] == [{"data": item} for item in sent]


async def test_bytes_survive_under_msgpack_and_tuples_are_lists(tmp_path: Path) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        assert request == b"\0\xff"
        yield {"b": request, "t": (1, (2,))}

    async with rig(tmp_path, give) as at:
        items, error = await at.run("plain.msgpack", b"\0\xff")
        assert error is None
        assert items == [{"data": {"b": b"\0\xff", "t": [1, [2]]}}]


@both
async def test_conformance_18_a_field_that_is_none_is_missing(tmp_path: Path, codec: str) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        yield Annotated()
        yield Annotated(data=1, id=None, event=None, comment=None, error=None)
        yield Annotated(id="7", event="tick", comment=["a", "b"])
        yield Annotated(data={"x": None}, event="error", error={"message": "no"})

    async with rig(tmp_path, give) as at:
        items, error = await at.run(codec)
        assert error is None
        assert items == [
            {},
            {"data": 1},
            {"id": "7", "event": "tick", "comment": ["a", "b"]},
            {"data": {"x": None}, "event": "error", "error": {"message": "no"}},
        ]


async def mutated(request: Any) -> AsyncIterator[Any]:
    item: dict[str, Any] = {"n": 0, "l": []}
    for number in range(100):
        item["n"] = number
        item["l"].append(number)
        yield item


def mutated_in_a_thread(request: Any) -> Iterator[Any]:
    item: dict[str, Any] = {"n": 0, "l": []}
    for number in range(100):
        item["n"] = number
        item["l"].append(number)
        yield item


@both
@pytest.mark.parametrize("handler", [mutated, mutated_in_a_thread])
async def test_conformance_17_an_object_that_is_yielded_again_is_another_item(
    tmp_path: Path, codec: str, handler: Any
) -> None:
    async with rig(tmp_path, handler) as at:
        items, error = await at.run(codec)
        assert error is None
        assert items == [{"data": {"n": n, "l": [*range(n + 1)]}} for n in range(100)]


async def with_context(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield ctx.metadata


async def without_context(request: Any) -> AsyncIterator[Any]:
    yield {"who": "me"}


@pytest.mark.parametrize("handler", [with_context, without_context])
async def test_conformance_38_with_and_without_context(tmp_path: Path, handler: Any) -> None:
    async with rig(tmp_path, handler) as at:
        stream = at.open("plain.json", b"1", metadata={"who": "me"})
        payloads, end = await at.ended(stream)
        assert (payloads, end.error) == ([b'{"data":{"who":"me"}}'], None)


async def test_conformance_27_a_second_reader_of_the_requests_gets_an_error(
    tmp_path: Path,
) -> None:
    @bidirectional
    async def twice(requests: RequestStream[Any]) -> AsyncIterator[Any]:
        first = asyncio.create_task(anext(requests))
        await asyncio.sleep(0)
        try:
            await anext(requests)
        except Exception as error:
            yield type(error).__name__
        yield await first

    async with rig(tmp_path, twice) as at:
        stream = at.open("plain.json", b"", many=True)
        await wait_until(lambda: at.home.got(Items, stream))
        at.home.send(at.actor.address, Feed(stream, 0, [b'"whole"']))
        payloads, end = await at.ended(stream)
        assert payloads == [b'{"data":"LocalProtocolError"}', b'{"data":"whole"}']
        assert end.error is None


# ------------------------------------------------------------------------- what they cannot be sent


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


NEVER: dict[str, Any] = {
    "b100 2**64": 2**64,
    "b100 -2**63-1": -(2**63) - 1,
    "b100 2**200": 2**200,
    "b101 int": {1: "a", "1": "b"},
    "b101 tuple": {(1, 2): "c"},
    "b101 none": {None: 0},
    "b101 float": {1.5: 0},
    "b103": "\ud800",
    "b107 naive": datetime(2020, 1, 1),
    "b107 aware": datetime(2020, 1, 1, tzinfo=UTC),
    "b107 uuid": UUID(int=1),
    "b107 enum": Colour.RED,
    "b107 dataclass": Point(1),
    "b107 decimal": Decimal("1.0"),
    "b109 digits": 10**5000,
    "array": np.zeros(3),
    "large array": np.zeros(100_000),
    "bytearray": bytearray(3),
    "object": object(),
    "annotated": Annotated(1),
    "set": {1},
}
ONLY_JSON: dict[str, Any] = {"b98": b"\0", "b104 nan": math.nan, "b104 inf": math.inf}
CLOSED: list[str] = []


async def spoil(request: str) -> AsyncIterator[Any]:
    try:
        yield "before"
        yield {"a": [1, (NEVER | ONLY_JSON)[request]]}
        yield "behind"
    finally:
        CLOSED.append(request)


def spoil_in_a_thread(request: str) -> Iterator[Any]:
    try:
        yield "before"
        yield {"a": [1, (NEVER | ONLY_JSON)[request]]}
        yield "behind"
    finally:
        CLOSED.append(request)


@both
@pytest.mark.parametrize("handler", [spoil, spoil_in_a_thread])
async def test_conformance_15_what_cannot_be_encoded_ends_its_stream_by_its_path(
    tmp_path: Path, codec: str, handler: Any
) -> None:
    CLOSED.clear()
    names = [*NEVER, *(ONLY_JSON if codec == "plain.json" else ())]
    async with rig(tmp_path, handler) as at:
        for name in names:
            items, error = await at.run(codec, name)
            assert items == [{"data": "before"}]
            assert error is not None
            assert error[0] == "payload.encode", name
            assert error[1].startswith('item["a"][1'), error[1]
        assert names == CLOSED
        assert at.actor.carries()["in_flight"] == 0
        assert at.actor.runtime.memory.statistics().slots == 0


@both
async def test_b97_numpy_scalars_are_plain_numbers(tmp_path: Path, codec: str) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        yield {"lp": np.float32(-1.5), "id": np.int64(3), "ok": np.bool_(True), "f": np.float64(2)}

    async with rig(tmp_path, give) as at:
        items, error = await at.run(codec)
        assert error is None
        assert items == [{"data": {"lp": -1.5, "id": 3, "ok": True, "f": 2.0}}]
        assert [type(each) for each in items[0]["data"].values()] == [float, int, bool, float]


@both
async def test_b100_integers_of_64_bits_pass(tmp_path: Path, codec: str) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        yield [2**64 - 1, -(2**63)]

    async with rig(tmp_path, give) as at:
        assert await at.run(codec) == ([{"data": [2**64 - 1, -(2**63)]}], None)


@both
async def test_b106_a_request_that_is_none_ends_its_stream_only(tmp_path: Path, codec: str) -> None:
    poison = {
        "plain.msgpack": [b"", b"\xc1", b"\x92\x01", b"\x01\x01", b"\x91" * 100_000,
                          b"\xdd\xff\xff\xff\xff", b"\xc7\x00\x01"],
        "plain.json": [b"", b"nul", b"[1", b"1 1", b"[" * 100_000, b"NaN", b'"\xff"'],
    }[codec]  # fmt: skip
    async with rig(tmp_path, echo) as at:
        for each in poison:
            payloads, end = await at.ended(at.open(codec, each))
            assert payloads == []
            assert end.error is not None
            assert end.error[0] == "payload.decode", each
            assert await at.run(codec, [1]) == ([{"data": 1}], None)


@both
async def test_b109_depth_is_the_same_for_both(tmp_path: Path, codec: str) -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    async def give(request: Any) -> AsyncIterator[Any]:
        yield nested(request)

    async with rig(tmp_path, give) as at:
        assert await at.run(codec, 100) == ([{"data": nested(100)}], None)
        items, error = await at.run(codec, 2000)
        assert items == []
        assert error is not None
        assert (error[0], "deeper" in error[1]) == ("payload.encode", True)


async def test_a_frame_that_cannot_travel_stays_with_its_handler(tmp_path: Path) -> None:
    kept: list[Frame] = []

    async def give(request: Any, ctx: Any) -> AsyncIterator[Any]:
        kept.append(ctx.frames.new(100_000, "u1"))
        yield kept[0]

    async with rig(tmp_path, give) as at:
        items, error = await at.run("plain.msgpack")
        assert items == []
        assert error is not None
        assert (error[0], error[1][:4]) == ("payload.encode", "item")
        kept.pop().release()
        assert at.actor.runtime.memory.statistics().slots == 0


async def test_an_item_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        yield "x" * 100_000

    async with rig(tmp_path, give, payload_limit=65_536) as at:
        items, error = await at.run("plain.json")
        assert items == []
        assert error is not None
        assert "65536 are allowed" in error[1]


async def test_handles_beside_a_plain_payload_are_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, echo_each) as at:
        stream = at.open("plain.json", b"", many=True)
        await wait_until(lambda: at.home.got(Accept, stream))
        item = FeedItem(stream, 0, b"1", [["", [1], b"x"]], 2)
        at.home.send(at.actor.address, item)
        payloads, end = await at.ended(stream)
        assert payloads == []
        assert end.error is not None
        assert "handles beside a payload" in end.error[1]


# -------------------------------------------------------------------------------- payload adapters


class Own:
    """The adapter's bytes are the whole map of an item; ``!`` is an error, ``?`` is beyond it."""

    def decode(self, data: bytes) -> Any:
        return data.decode()

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        if item == "?":
            raise ValueError("no words for it")
        if item == "!":
            return b'{"event":"error","error":{"message":"own"}}', True, False
        return f'{{"data":"<{item}>"}}'.encode(), False, item == "."


async def letters(request: str) -> AsyncIterator[str]:
    for each in request:
        yield each


def letters_in_a_thread(request: str) -> Iterator[str]:
    yield from request


threads_too = pytest.mark.parametrize("handler", [letters, letters_in_a_thread])


@threads_too
async def test_an_adapter_alone_decides_what_its_bytes_are(tmp_path: Path, handler: Any) -> None:
    async with rig(tmp_path, handler, Own()) as at:
        payloads, end = await at.ended(at.open("plain.json", b"a.b"))
        assert payloads == [b'{"data":"<a>"}', b'{"data":"<.>"}']
        assert end.error is None
        payloads, end = await at.ended(at.open("plain.json", b"a!b"))
        assert payloads == [b'{"data":"<a>"}', b'{"event":"error","error":{"message":"own"}}']
        assert end.error is not None
        assert (end.error[0], end.error[2]["type"]) == ("engine", "error item")


@threads_too
async def test_conformance_16_an_adapter_without_words_is_told_apart(
    tmp_path: Path, handler: Any
) -> None:
    async with rig(tmp_path, handler, Own()) as at:
        payloads, end = await at.ended(at.open("plain.json", b"a?b"))
        assert payloads == [b'{"data":"<a>"}']
        assert end.error is not None
        code, text, details = end.error
        assert (code, details["adapter"]) == ("payload.encode", "raised")
        assert text == "the payload adapter of t.plain.go raised ValueError: no words for it"
        # Among our own it stays what the handler's side raised.
        payloads, end = await at.ended(at.open("msgpack", b"a?b"))
        assert end.error is not None
        assert end.error[0] == "engine"
