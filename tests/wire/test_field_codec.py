"""Field reports on codecs, each as a test of the pure half: values and bytes, no process."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from tests.wire.samples import both
from transport.errors import DecodeError, EncodeError
from transport.wire.codec import decode, encode


def there_and_back(value: object, codec: str) -> Any:
    return decode(encode(value, codec=codec), codec=codec)


def strict(text: bytes) -> object:
    def refuse(token: str) -> object:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


@both
def test_b97_numpy_scalars_become_plain_numbers(codec: str) -> None:
    sent = {"lp": np.float32(-1.5), "id": np.int64(3), "ok": np.bool_(True), "f": np.float64(2)}
    got = there_and_back(sent, codec)
    assert got == {"lp": -1.5, "id": 3, "ok": True, "f": 2.0}
    assert [type(value) for value in got.values()] == [float, int, bool, float]
    more = [
        np.float16(0.1),
        np.uint64(2**64 - 1),
        np.int8(-1),
        np.str_("s"),
        np.bytes_(b"b"),
        np.False_,
    ]
    got = there_and_back(more, codec)
    assert got == [float(np.float16(0.1)), 2**64 - 1, -1, "s", b"b", False]
    assert [type(value) for value in got] == [float, int, int, str, bytes, bool]
    assert there_and_back({np.int64(1): (np.float32("nan"),)}, codec)[1][0] != 0


@both
def test_b98_bytes_come_back_as_bytes(codec: str) -> None:
    sent = {"a": [b"\x00\xff", {"b": b""}]}
    assert there_and_back(sent, codec) == sent
    for like_a_tag in (
        {"$callhome": "bytes", "v": "AP8="},
        {"$callhome": "bytes", "v": "AP8=", "more": b"x"},
        {"$callhome": "dict", "v": [{"$callhome": 1}]},
        {"$callhome": None},
    ):
        assert there_and_back([like_a_tag], codec) == [like_a_tag]


@both
def test_b100_integers_beyond_64_bits(codec: str) -> None:
    sent = [2**64 - 1, 2**64, -(2**63) - 1, 2**200]
    assert there_and_back({"n": [sent]}, codec) == {"n": [sent]}
    with pytest.raises(EncodeError, match=r'^request\["n"\]\[1\]: int of 9001 bits'):
        encode({"n": [1, 2**9000]}, codec=codec, root="request")
    assert there_and_back(1, codec) == 1


@both
@pytest.mark.parametrize("sent", [{1: "a", "1": "b"}, {(1, 2): "c"}, {None: 0}, {1.5: 0}])
def test_b101_keys_of_any_kind(sent: dict[object, object], codec: str) -> None:
    got = there_and_back(sent, codec)
    assert got == sent
    assert list(map(type, got)) == list(map(type, sent))


@both
def test_b103_lone_surrogates_are_refused_at_the_sender(codec: str) -> None:
    got = []
    for item in ("ok", "\ud800", "ok2"):
        try:
            got.append(there_and_back(item, codec))
        except EncodeError as error:
            got.append(str(error).split(";")[0])
    assert got == ["ok", "item: str with a lone surrogate at index 0 is no Unicode text", "ok2"]


@both
def test_b104_nan_and_infinities(codec: str) -> None:
    data = encode([math.nan, math.inf, -math.inf], codec=codec)
    got: Any = decode(data, codec=codec)
    assert math.isnan(got[0])
    assert got[1:] == [math.inf, -math.inf]
    if codec == "json":
        strict(data)


POISON = {
    "msgpack": [
        b"\xc1",
        b"\x92\x01",
        b"\x01\x01",
        b"\x91" * 100_000 + b"\x90",
        b"\x92\xc7\x00\x01" * 25_000 + b"\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x40",
        b"",
    ],
    "json": [
        b"{",
        b"[1,",
        b"1 1",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 100_000,
        b"\xc1",
        b"",
    ],
}


@both
def test_b106_poison_is_a_typed_error(codec: str, peak_rss: Callable[[], int]) -> None:
    good = encode({"a": [1]}, codec=codec)
    before = peak_rss()
    for data in POISON[codec]:
        with pytest.raises(DecodeError):
            decode(data, codec=codec)
        assert decode(good, codec=codec) == {"a": [1]}
    assert peak_rss() - before < 20 << 20


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Job:
    name: str = "x"


@both
def test_b107_dates_and_records(codec: str) -> None:
    naive = datetime(2024, 3, 1, 12, 0, 0, 5)
    aware = datetime(2024, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    got = there_and_back([naive, aware, UUID(int=7), Decimal("1.230")], codec)
    assert got[0] == naive
    assert got[0].tzinfo is None
    assert got[1].astimezone(UTC) == aware.astimezone(UTC)
    assert got[1].utcoffset() == aware.utcoffset()
    assert got[2:] == [UUID(int=7), Decimal("1.230")]
    assert str(got[3]) == "1.230"
    with pytest.raises(EncodeError, match=r'^item\["c"\]: [\w.]*Colour is an Enum; send \.value$'):
        encode({"c": Colour.RED}, codec=codec)
    with pytest.raises(EncodeError, match=r'^item\["j"\].*dataclasses\.asdict'):
        encode({"j": Job()}, codec=codec)


@both
def test_b109_one_depth_and_one_size_of_integers(codec: str) -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    assert there_and_back(deep, codec) == deep
    for _ in range(1900):
        deep = [deep]
    with pytest.raises(EncodeError, match="nested deeper than 128 containers"):
        encode(deep, codec=codec)
    with pytest.raises(EncodeError, match=r"^item: int of 16610 bits; the limit is 8192"):
        encode(10**5000 - 1, codec=codec)
