"""Field reports on codecs where the peer is none of ours: what an engine may yield, by its path."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from actors import Annotated, Context, RequestStream, bidirectional
from actors.messages import Accept, FeedItem
from tests.engine.plain import both, rig
from tests.waiting import wait_until
from transport.shm.frames import Frame


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for item in request:
        yield item


@bidirectional
async def echo_each(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
    async for item in requests:
        yield item


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
