"""Values and measures that the tests of codecs share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from uuid import UUID

import pytest

from transport.wire.codec import (
    MAX_INT_BITS,
    Annotated,
)

both = pytest.mark.parametrize("codec", ["msgpack", "json"])


def same(one: object, other: object) -> bool:
    """Equal in value and in type, at every place, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, Annotated) and isinstance(other, Annotated):
        return same(dataclasses.astuple(one), dataclasses.astuple(other))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, (datetime, time)) and isinstance(other, (datetime, time)):
        return (one, one.utcoffset(), one.fold) == (other, other.utcoffset(), other.fold)
    return one == other


class OddZone(tzinfo):
    """A time zone whose offset a test decides."""

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "odd"


def nested(depth: int, wrap: Callable[[object], object], core: object = 1) -> object:
    for _ in range(depth):
        core = wrap(core)
    return core


def in_list(value: object) -> object:
    return [value]


def in_tuple(value: object) -> object:
    return (value,)


def in_dict(value: object) -> object:
    return {"a": value}


def in_odd_dict(value: object) -> object:
    return {1: value}


def in_envelope(value: object) -> object:
    return Annotated(data=value)


DOMAIN: list[object] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    2**MAX_INT_BITS - 1,
    -(2**MAX_INT_BITS) + 1,
    0.0,
    -0.0,
    1.5,
    5e-324,
    1.7976931348623157e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "a\x00é\u20ac\U0001f600",
    "\\ud800 is no escape",
    b"",
    bytes(range(256)),
    [],
    [[], [[]]],
    (),
    (1, (2,), [(3,)]),
    {},
    {"a": {"b": [1, 2.0, None, True]}},
    {1: "a", "1": "b", b"1": "c", 1.5: "d", None: "e", (1, (2, "x")): "f", (): "g"},
    {True: 1, "$callhome": 2},
    {"$callhome": "bytes", "v": "AA=="},
    {"$callhome": {"$callhome": "tuple", "v": []}},
    datetime(2024, 2, 29, 23, 59, 59, 999999),
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-11, minutes=-7, seconds=-3))),
    date(1, 1, 1),
    time(12, 30, 1, 5, fold=1),
    time(12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=-1),
    UUID(int=2**128 - 1),
    Decimal("1.10"),
    Decimal("-0E+7"),
    Decimal("1" * 400),
    Decimal("Infinity"),
    {date(2020, 1, 1): UUID(int=0), Decimal(1): 2},
    Annotated(),
    Annotated({"x": (1, b"2")}, "id", "event", ["one", "two"], {"code": 1}),
    Annotated(error="text"),
    [Annotated(Annotated(1))],
]
