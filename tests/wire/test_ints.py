"""Long lists of integers in one piece: what is taken, and that the reader sees no difference."""

from __future__ import annotations

import enum
import random
from typing import Any

import msgpack
import pytest

from transport.errors import DecodeError, EncodeError
from transport.payload import REQUEST, decode_payload, encode_payload
from transport.wire.codec import decode
from transport.wire.ints import Ints, read_ints, with_ints, without_ints

IDS = [random.Random(1).randrange(-(1 << 31), 1 << 31) for _ in range(2_000)]
EDGES = [0, -1, 1, (1 << 31) - 1, -(1 << 31)]


class Level(enum.IntEnum):
    LOW = 1


def request(value: Any) -> bytes:
    encoded = encode_payload(value, root=REQUEST)
    assert not encoded.handles
    return encoded.data


@pytest.mark.parametrize(
    "value",
    [
        [*IDS, *EDGES],
        {"token_ids": IDS, "items": 3, "more": [1, (2, "x")]},
        {1: IDS, "two": IDS[:1_024]},
        {"token_ids": IDS, "id": (1, b"\xc7\x00"), "big": 2**70},
    ],
    ids=["bare", "dict", "two lists", "beside other extensions"],
)
def test_the_reader_gets_the_same_list(value: Any) -> None:
    data = request(value)
    back = decode_payload(data)
    assert back == value
    assert list(back) == list(value)  # the keys in their order, too
    ids = next(iter(back.values())) if isinstance(back, dict) else back
    assert {*map(type, ids)} == {int}
    assert len(data) < 4 * 4_200


def test_only_long_lists_of_plain_small_integers_are_taken() -> None:
    for index in (0, 700, len(IDS) - 1):
        for odd in (True, 1 << 31, -(1 << 31) - 1, 1.0, None, "x", [1], Level.LOW, b"iiii"):
            items: list[Any] = [*IDS]
            items[index] = odd
            assert with_ints(items) is items
    short = {"a": IDS[:1_023], "b": tuple(IDS), "c": {"deep": IDS}}
    assert with_ints(short) is short
    wide = dict.fromkeys(range(65), IDS)
    assert with_ints(wide) is wide
    taken = with_ints({"a": IDS, "b": IDS[:3]})
    assert type(taken["a"]) is Ints
    assert taken["b"] == IDS[:3]


def test_bytes_of_a_long_word_do_not_pass_for_integers() -> None:
    """The check reads every fifth byte: nothing else may look like integers there."""
    for size in (5, 10, 5 * 1_024):
        for filler in (b"i" * size, "i" * size, 1 << (8 * size)):
            items: list[Any] = [*IDS, filler, 1]
            assert with_ints(items) is items


def test_an_error_beside_a_long_list_names_its_place() -> None:
    with pytest.raises(EncodeError, match=r'^request\["odd"\]'):
        request({"token_ids": IDS, "odd": object()})
    with pytest.raises(EncodeError, match=r'^request\["token_ids"\]\[700\]'):
        request({"token_ids": [*IDS[:700], object(), *IDS]})


def test_arrays_stand_beside_long_lists() -> None:
    import numpy as np

    back = decode_payload(request({"token_ids": IDS, "mask": np.arange(4)}))
    assert back["token_ids"] == IDS
    assert back["mask"].tolist() == [0, 1, 2, 3]


def test_a_cut_word_is_refused() -> None:
    assert read_ints(b"") == []
    assert read_ints(b"\xff\xff\xff\xff\x02\x00\x00\x00") == [-1, 2]
    with pytest.raises(DecodeError, match="5 bytes are no whole words"):
        read_ints(b"12345")
    with pytest.raises(DecodeError, match="no whole words"):
        decode(msgpack.packb([1, msgpack.ExtType(10, b"123")]))


def test_an_adapter_reads_plain_messagepack() -> None:
    value = {"token_ids": IDS, "when": (1, 2)}
    data = request(value)
    spelt = without_ints(data, "msgpack")
    assert msgpack.unpackb(spelt, ext_hook=lambda code, inner: code)["token_ids"] == IDS
    assert decode(spelt) == value


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 5_000,
        b"\xc8\x04\x00\x0a" * 2_000,
        msgpack.packb([b"\xc8\x10\x00\x0a" * 500, 1]),
        msgpack.packb([msgpack.ExtType(10, b"123" * 1_001)]),
    ],
)
def test_bytes_that_are_not_ours_reach_an_adapter_as_they_are(data: bytes) -> None:
    assert without_ints(data, "msgpack") == data
    ours = request({"token_ids": IDS})
    assert without_ints(ours, "plain.msgpack") is ours
