"""Field reports on codecs that ``test_streaming_values`` leaves out, by either road: requests go
there and come back as items.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from actors import Client, NodeSpec
from actors.errors import EncodeError
from tests.e2e.engines import ECHO, PART
from tests.e2e.standing import ROADS, Standing, standing, wait_idle

GO, EACH = "t.part.go", "t.echo.go"
both = pytest.mark.parametrize("codec", ["msgpack", "json"])


@pytest.fixture(scope="module", params=ROADS)
def node(request: pytest.FixtureRequest) -> Iterator[Standing]:
    with standing(NodeSpec(engines=[PART, ECHO]), request.param) as found:
        yield found


async def echo(client: Client, value: Any, codec: str) -> Any:
    return await client.call(GO, {"do": "echo", "value": value}, timeout=10.0, codec=codec)


async def echo_each(client: Client, value: Any, codec: str) -> Any:
    """As ``echo``, as an item of a stream of requests."""
    async with client.open(EACH, timeout=10.0, codec=codec) as chat:
        await chat.send(value)
        await chat.end()
        found = [item async for item in chat]
    assert found[1:] == [{"count": 1}]
    return found[0]


roads = pytest.mark.parametrize("carry", [echo, echo_each])


async def outcome(client: Client, carry: Any, value: Any, codec: str) -> Any:
    """What comes back, or the name of the error at the sender."""
    try:
        return await carry(client, value, codec)
    except EncodeError as error:
        return type(error)


@roads
async def test_b101_keys_are_the_same_under_both_codecs(node: Standing, carry: Any) -> None:
    async with node.client() as client:
        for value in ({1: "a", "1": "b"}, {(1, 2): "c"}, {None: 0}, {1.5: 0}, {"x": {2: {3: 4}}}):
            found = [await outcome(client, carry, value, codec) for codec in ("msgpack", "json")]
            assert found[0] == found[1], value
            assert found[0] in (value, EncodeError)
        assert await echo(client, {1: "a", "1": "b"}, "json") == {1: "a", "1": "b"}
        await wait_idle(client)


@both
@roads
async def test_b104_nan_and_infinities_come_back(node: Standing, carry: Any, codec: str) -> None:
    async with node.client() as client:
        found = await carry(client, [math.nan, math.inf, -math.inf, -0.0], codec)
    assert math.isnan(found[0])
    assert found[1:3] == [math.inf, -math.inf]
    assert math.copysign(1.0, found[3]) == -1.0


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


DATES = [
    datetime(2020, 2, 29, 12, 30, 15, 123456),  # naive
    datetime(2020, 2, 29, tzinfo=UTC),
    datetime(2020, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    UUID(int=2**127 + 1),
    Decimal("1.10"),
    Colour.RED,
    Point(1),
]


@roads
async def test_b107_dates_and_records_arrive_or_are_refused_by_path(
    node: Standing, carry: Any
) -> None:
    async with node.client() as client:
        for value in DATES:
            found = [
                await outcome(client, carry, {"a": [value]}, codec) for codec in ("msgpack", "json")
            ]
            assert found[0] == found[1], value
            if found[0] is EncodeError:
                with pytest.raises(EncodeError, match=r'\["a"\]\[0\]'):
                    await carry(client, {"a": [value]}, "msgpack")
            elif isinstance(value, datetime):
                (got,) = found[0]["a"]
                assert got == value  # the same instant
                assert (got.tzinfo is None) == (value.tzinfo is None)
        await wait_idle(client)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@both
@roads
async def test_b109_depth_and_digits_have_the_same_limits(
    node: Standing, carry: Any, codec: str
) -> None:
    async with node.client() as client:
        assert await carry(client, nested(100), codec) == nested(100)
        for value in (nested(2000), 10**5000):
            with pytest.raises(EncodeError, match="request"):
                await carry(client, value, codec)
        assert await carry(client, [1], codec) == [1]  # the next is none the worse
        await wait_idle(client)
