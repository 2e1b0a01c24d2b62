"""The value domain: the same under both codecs, exact in type, or refused with the path."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest

from tests.wire.samples import (
    DOMAIN,
    OddZone,
    both,
    same,
)
from transport.errors import EncodeError, LocalProtocolError
from transport.wire.codec import (
    MAX_INT_BITS,
    Annotated,
    check_codec,
    decode,
    encode,
)


@both
@pytest.mark.parametrize("value", DOMAIN, ids=lambda v: repr(v)[:40])
def test_domain_comes_back_exactly(value: object, codec: str) -> None:
    for case in (value, [value], {"k": value}, (value, value), Annotated(data=value)):
        assert same(decode(encode(case, codec=codec), codec=codec), case)


@both
def test_domain_at_any_size(codec: str) -> None:
    value = {
        "all": [DOMAIN] * 50,
        "ints": list(range(5000)),
        "text": "é" * 70_000,
        "b": bytes(70_000),
    }
    assert same(decode(memoryview(encode(value, codec=codec)), codec=codec), value)


@both
def test_aware_datetime_keeps_instant_and_offset(codec: str) -> None:
    moment = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    back: Any = decode(encode(moment, codec=codec), codec=codec)
    assert back == moment.astimezone(UTC)
    assert back.utcoffset() == timedelta(hours=1)


@both
def test_nan_keys_stay_apart(codec: str) -> None:
    back: Any = decode(encode({math.nan: 1, float("nan"): 2}, codec=codec), codec=codec)
    assert list(back.values()) == [1, 2]


class Whole(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Record:
    x: int = 1


class NoOffset(OddZone):
    def utcoffset(self, _: datetime | None) -> None:
        return None


class Failing(OddZone):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise KeyError("zone")


REFUSED: list[tuple[object, str, str]] = [
    (2**9000, "int of 9001 bits", "limit is 8192"),
    (-(2**MAX_INT_BITS), "int of 8193 bits", "send it as bytes or str"),
    ("x\ud800", "lone surrogate at index 1", "surrogatepass"),
    ({1}, "set has no order", "list(x)"),
    (frozenset(), "frozenset", "list(x)"),
    (Whole.ONE, "Enum", ".value"),
    (Word.A, "Enum", ".value"),
    (Record(), "Record", "dataclasses.asdict(x)"),
    (Point(1), "named tuple", "x._asdict()"),
    (collections.OrderedDict(), "derived from dict", "dict(x)"),
    (collections.defaultdict(list), "derived from dict", "dict(x)"),
    (Text("a"), "derived from str", "str(x)"),
    (1j, "complex", "x.real"),
    (range(3), "range", "list(x)"),
    (iter([1]), "list_iterator", "list(x)"),
    (len, "builtin_function_or_method", "name"),
    (dict, "class dict", "name"),
    (object(), "object is no payload value", "dict of its fields"),
    (bytearray(b"a"), "bytearray", "bytes(x)"),
    (memoryview(b"a"), "memoryview", "bytes(x)"),
    (memoryview(b"abcd")[::2], "memoryview", "bytes(x)"),
    (msgpack.ExtType(3, b"1"), "ExtType", "named tuple"),
    (msgpack.Timestamp(1), "Timestamp", "dict of its fields"),
    (np.datetime64("2020-01-01"), "datetime64", "datetime"),
    (np.timedelta64(1, "s"), "timedelta64", "timedelta"),
    (np.complex64(1), "complex64", "x.real"),
    (np.longdouble(1), "longdouble", "float(x)"),
    (np.void(b"a"), "void", "x.item()"),
    (np.zeros(1), "ndarray", ""),
    (datetime(2020, 1, 1, tzinfo=NoOffset()), "no offset", "without tzinfo"),
    (time(1, tzinfo=ZoneInfo("Europe/Berlin")), "no offset", "without tzinfo"),
    (datetime(2020, 1, 1, tzinfo=Failing()), "zone", ""),
]


@both
@pytest.mark.parametrize(
    ("value", "wrong", "hint"), REFUSED, ids=lambda v: repr(v).partition(" at 0x")[0][:30]
)
def test_refused_with_path_and_hint(value: object, wrong: str, hint: str, codec: str) -> None:
    request = {"a": [0, {"t": (1, value)}], "b": 2}
    with pytest.raises(EncodeError) as caught:
        encode(request, codec=codec, root="request")
    text = str(caught.value)
    assert text.startswith('request["a"][1]["t"][1]: ')
    assert wrong in text
    assert hint in text
    text.encode()
    assert decode(encode({"next": 1}, codec=codec), codec=codec) == {"next": 1}


@both
def test_both_codecs_say_the_same(codec: str) -> None:
    for value, _, _ in REFUSED:
        with pytest.raises(EncodeError) as caught:
            encode([value], codec=codec)
        with pytest.raises(EncodeError) as other:
            encode([value])
        assert str(caught.value).split(" at 0x")[0] == str(other.value).split(" at 0x")[0]


@both
@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Annotated(id=5), "id"),  # type: ignore[arg-type]
        (Annotated(event=b"x"), "event"),  # type: ignore[arg-type]
        (Annotated(comment="x"), "comment"),  # type: ignore[arg-type]
        (Annotated(comment=["x", 1]), "comment"),  # type: ignore[list-item]
        (Annotated(comment=("x",)), "comment"),  # type: ignore[arg-type]
        (Annotated(error=5), "error"),  # type: ignore[arg-type]
    ],
)
def test_malformed_envelope(value: Annotated, field: str, codec: str) -> None:
    with pytest.raises(EncodeError, match=rf"^item\[0\]\.{field}: "):
        encode([value], codec=codec)


def test_envelope_is_an_error() -> None:
    assert Annotated(event="error").is_error
    assert Annotated(error={}).is_error
    assert not Annotated(event="other", data=1).is_error
    assert Annotated(data=1, id=None, error=None) == Annotated(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Annotated().data = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        hash(Annotated())


def test_unknown_codec() -> None:
    with pytest.raises(LocalProtocolError, match="msgpack, json"):
        encode(1, codec="pickle")
    with pytest.raises(LocalProtocolError, match="msgpack, json"):
        decode(b"1", codec="pickle")
    assert check_codec("json") == "json"
    assert check_codec("msgpack") == "msgpack"
