"""Plain codecs: what a foreign peer takes and is sent, what is refused with its path, wrappers."""

from __future__ import annotations

import collections
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.samples import nested, same
from transport.errors import DecodeError, EncodeError, LocalProtocolError, RemoteProtocolError
from transport.wire.bare import MAX_PLAIN_DEPTH
from transport.wire.codec import Annotated, Opaque, decode, encode
from transport.wire.plain import (
    PLAIN,
    around,
    base_of,
    decode_item,
    decode_value,
    encode_item,
    encode_value,
    final,
    plain_of,
    transcode,
    unwrap,
    wrap,
)

both = pytest.mark.parametrize("codec", ["plain.msgpack", "plain.json"])
VALUES: list[Any] = [
    None,
    True,
    0,
    -(1 << 63),
    (1 << 64) - 1,
    1.5,
    "",
    "é😀\u2028",
    [],
    {},
    [1, [2, {"a": [None]}]],
    {"a": {"b": {"": 1}}},
    list(range(1000)),
    {"$callhome": "tuple", "v": [1]},
]


def foreign(value: object, codec: str) -> bytes:
    """The bytes as a library of somebody else writes them."""
    if base_of(codec) == "json":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    data: bytes = msgpack.packb(value)
    return data


def test_names() -> None:
    assert {"plain.msgpack", "plain.json"} == PLAIN
    for name in ("msgpack", "json"):
        assert plain_of(name) == plain_of(plain_of(name)) == f"plain.{name}"
        assert base_of(name) == base_of(plain_of(name)) == name
    with pytest.raises(LocalProtocolError, match="'cbor' is unknown"):
        plain_of("cbor")


@both
@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v).partition(" at 0x")[0][:30])
def test_values_are_those_of_any_library(value: object, codec: str) -> None:
    data = encode_value(value, codec)
    assert data == foreign(value, codec)
    assert same(decode_value(data, codec), value)


@both
def test_tuples_become_lists_and_numpy_scalars_plain(codec: str) -> None:
    value = {"a": (1, (2, [3])), "n": np.float64(1.5), "i": np.int64(7), "s": np.str_("x")}
    data = encode_value(value, codec)
    assert same(decode_value(data, codec), {"a": [1, [2, [3]]], "n": 1.5, "i": 7, "s": "x"})


def test_bytes_and_odd_floats_under_msgpack() -> None:
    value = {"b": bytes(range(256)), "f": [float("nan"), float("inf")]}
    assert same(decode_value(encode_value(value, "plain.msgpack"), "plain.msgpack"), value)


Point = collections.namedtuple("Point", "x y")


class Text(str):
    __slots__ = ()


@both
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": np.zeros(2)}, 'item["a"]: ndarray is nothing a Dynamo peer understands; send lists'),
        ({"a": [bytearray(b"x")]}, 'item["a"][0]: bytearray is nothing'),
        ([memoryview(b"x")], "item[0]: memoryview is nothing"),
        ({"a": {1: 2}}, 'item["a"], key 1: a key that is int'),
        ({b"k": 1}, "item, key b'k': a key that is bytes"),
        ({None: 1}, "item, key None: a key that is NoneType"),
        ({(1, 2): 1}, "item, key (1, 2): a key that is tuple"),
        ([1 << 64], "item[0]: int of 65 bits; a Dynamo peer takes 64"),
        ([-(1 << 63) - 1], "item[0]: int of 64 bits"),
        ({"a": [datetime(2024, 1, 1, tzinfo=UTC)]}, 'item["a"][0]: datetime is nothing'),
        ([Decimal(1)], "item[0]: Decimal is nothing"),
        ([Annotated(1)], "item[0]: Annotated inside a value"),
        ([{1, 2}], "item[0]: set has no order"),
        ([Point(1, 2)], "item[0]: tests.wire.test_plain.Point is a named tuple"),
        ([Text("x")], "item[0]: tests.wire.test_plain.Text is derived from str"),
        ([object()], "item[0]: object is no payload value"),
        (["\ud800"], "item[0]: str with a lone surrogate"),
        ({"\ud800": 1}, "item, key"),
    ],
    ids=lambda v: str(v).partition(" at 0x")[0][:30],
)
def test_what_a_peer_cannot_take_is_refused_with_its_path(
    value: object, text: str, codec: str
) -> None:
    for case in (value, Annotated(value)):
        with pytest.raises(EncodeError) as failure:
            encode_item(case, codec)
        where = text if case is value else text.replace("item", "item.data", 1)
        assert str(failure.value).startswith(where)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": b"x"}, 'request["a"]: bytes are no JSON'),
        ([float("nan")], "request[0]: nan is no JSON"),
        ([float("-inf")], "request[0]: -inf is no JSON"),
        ([np.float32("inf")], "request[0]: inf is no JSON"),
    ],
)
def test_what_json_lacks_is_refused_with_its_path(value: object, text: str) -> None:
    with pytest.raises(EncodeError) as failure:
        encode_value(value, "plain.json")
    assert str(failure.value).startswith(text)


@both
def test_depth_has_a_bound_and_so_has_a_value_that_contains_itself(codec: str) -> None:
    deepest = nested(MAX_PLAIN_DEPTH, lambda inner: [inner])
    assert decode_value(encode_value(deepest, codec), codec) == deepest
    loop: list[Any] = []
    loop += [loop, loop]
    knot: dict[str, Any] = {}
    knot["a"] = knot
    for value in ([deepest], {"a": deepest}, loop, knot, nested(5000, lambda inner: [inner])):
        with pytest.raises(EncodeError, match=f"deeper than {MAX_PLAIN_DEPTH}"):
            encode_value(value, codec)


@both
def test_foreign_bytes_that_are_no_value(codec: str) -> None:
    good = encode_value({"a": [1, "x"]}, codec)
    for cut in range(len(good)):
        with pytest.raises(DecodeError):
            decode_value(good[:cut], codec)
    with pytest.raises(DecodeError):
        decode_value(good + b" x", codec)
    bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff" * 200, b"\x91" * 5000]
    for bad in bombs if "msgpack" in codec else [b"[" * 5000, b"NaN", b"9" * 5000, b'"\\ud800"']:
        with pytest.raises(DecodeError):
            decode_value(bad, codec)


@pytest.mark.parametrize("value", [(1, 2), Annotated(1), Decimal(1), 1 << 70])
def test_extensions_and_tags_of_ours_mean_nothing_from_others(value: object) -> None:
    with pytest.raises(DecodeError, match="extension"):
        decode_value(encode(value), "plain.msgpack")
    assert type(decode_value(encode(value, codec="json"), "plain.json")) is (
        int if type(value) is int and value < 1 << 64 else dict
    )


@both
def test_an_item_is_an_annotated_map(codec: str) -> None:
    for item in (1, None, {"a": 1}, {"data": 2, "event": "x"}, [1]):
        data = encode_item(item, codec)
        assert data == foreign({"data": item}, codec)
        assert same(decode_item(data, codec), item)
    told = Annotated({"a": 1}, "7", "ping", ["é", "x"], None)
    data = encode_item(told, codec)
    fields = {"data": {"a": 1}, "id": "7", "event": "ping", "comment": ["é", "x"]}
    assert data == foreign(fields, codec)
    assert decode_item(data, codec) == told
    assert decode_item(encode_item(Annotated(5), codec), codec) == 5
    assert encode_item(Annotated(), codec) == foreign({}, codec)


@both
def test_conformance_18_none_in_a_field_is_the_same_as_no_field(codec: str) -> None:
    full: dict[str, Any] = {
        "data": 1,
        "id": "i",
        "event": "e",
        "comment": ["c"],
        "error": {"message": "m"},
    }
    for name in full:
        without = {key: value for key, value in full.items() if key != name}
        item = decode_item(foreign(without, codec), codec)
        assert item == decode_item(foreign({**full, name: None}, codec), codec)
        assert getattr(item, name) is None
        assert encode_item(item, codec) == encode_item(Annotated(**without), codec)
    nothing = dict.fromkeys(full)
    assert decode_item(foreign(nothing, codec), codec) is None
    assert decode_item(foreign({**nothing, "data": 3}, codec), codec) == 3
    assert decode_item(foreign({"data": 3, "later": 4}, codec), codec) == 3


@both
@pytest.mark.parametrize(
    "value",
    [1, None, [], "x", {"id": 1}, {"event": []}, {"comment": "c"}, {"comment": [1]}, {"error": 5}],
)
def test_a_malformed_annotated_map_is_a_decode_error(value: object, codec: str) -> None:
    with pytest.raises(DecodeError, match="Annotated"):
        decode_item(foreign(value, codec), codec)


@both
def test_a_malformed_envelope_is_not_sent(codec: str) -> None:
    with pytest.raises(EncodeError, match=r"item\.id: int"):
        encode_item(Annotated(1, id=3), codec)  # type: ignore[arg-type]


def test_wrappers_are_those_of_dynamo() -> None:
    assert final("plain.msgpack") == bytes.fromhex("81ae636f6d706c6574655f66696e616cc3")
    assert final("json") == b'{"complete_final":true}'
    item = encode_item({"x": 1}, "json")
    assert wrap(item, "json") == b'{"data":{"data":{"x":1}},"complete_final":false}'
    assert wrap(b"\x01", "msgpack") == b"\x82\xa4data\x01\xaecomplete_final\xc2"
    assert b"1".join(around("plain.json")) == b'{"data":1,"complete_final":false}'


@both
def test_wrapped_items_come_back_in_any_order_of_keys(codec: str) -> None:
    item = encode_item({"complete_final": [False, "data"]}, codec)
    value = decode_value(item, codec)
    assert unwrap(wrap(item, codec), codec) == item
    for fields in (
        {"complete_final": False, "data": value},
        {"data": value, "later": 1, "complete_final": False},
        {"later": {"data": 9}, "data": value, "complete_final": False},
    ):
        assert unwrap(foreign(fields, codec), codec) == item
    assert unwrap(final(codec), codec) is None
    for fields in ({"data": None, "complete_final": True}, {"complete_final": True, "later": [1]}):
        assert unwrap(foreign(fields, codec), codec) is None
    if codec == "plain.json":
        assert (
            unwrap(b' { "data" : {"data": 1} , "complete_final" : false }', codec) == b'{"data":1}'
        )


@both
def test_wrappers_of_a_wrong_shape(codec: str) -> None:
    for fields in (
        {"data": 1},
        {},
        {"data": 1, "complete_final": None},
        {"complete_final": 1},
        [1],
        3,
    ):
        with pytest.raises(DecodeError, match="response frame"):
            unwrap(foreign(fields, codec), codec)
    with pytest.raises(RemoteProtocolError, match="both an item and the end"):
        unwrap(foreign({"data": 1, "complete_final": True}, codec), codec)
    for neither in ({"complete_final": False}, {"later": 1, "data": None, "complete_final": False}):
        with pytest.raises(RemoteProtocolError, match="neither an item nor the end"):
            unwrap(foreign(neither, codec), codec)


@both
def test_a_cut_wrapper_is_never_the_clean_end(codec: str) -> None:
    for whole in (wrap(encode_item({"a": "b"}, codec), codec), final(codec)):
        for cut in range(len(whole)):
            with pytest.raises(DecodeError):
                decode_item(unwrap(whole[:cut], codec) or b"", codec)
    with pytest.raises(DecodeError):
        unwrap(wrap(b"", codec), codec)


@both
@given(st.binary(max_size=120))
def test_garbage_is_a_typed_error(codec: str, data: bytes) -> None:
    before, after = around(codec)
    for body in (data, before + data + after, before + data, data + after):
        try:
            item = unwrap(body, codec)
            assert item is not None or decode_value(body, codec)["complete_final"] is True
            decode_item(item or b"", codec)
        except (DecodeError, RemoteProtocolError):
            pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@both
@given(JSON)
def test_any_value_of_json_comes_back(codec: str, value: Any) -> None:
    assert same(decode_value(encode_value(value, codec), codec), value)
    assert same(decode_item(encode_item(value, codec), codec), value)
    assert same(
        decode_item(unwrap(wrap(encode_item(value, codec), codec), codec) or b"", codec), value
    )
    assert encode_value(value, codec) == foreign(value, codec)


def test_a_value_in_another_codec() -> None:
    value = {"a": [1, "é", None], "b": 1.5}
    codecs = ("msgpack", "json", *PLAIN)
    for one in codecs:
        for other in codecs:
            data = (encode_value if one in PLAIN else encode)(value, codec=one)
            assert same(decode_any(transcode(data, one, other), other), value)
    data = b"not looked at"
    assert transcode(data, "json", "json") is data


def decode_any(data: bytes, codec: str) -> object:
    return decode_value(data, codec) if codec in PLAIN else decode(data, codec=codec)


def test_what_the_other_codec_lacks_is_named() -> None:
    data = encode({"a": (1, Decimal(2))})
    with pytest.raises(EncodeError, match=r'request\["a"\]\[1\]: Decimal is nothing'):
        transcode(data, "msgpack", "plain.json")
    with pytest.raises(EncodeError, match=r'item\["a"\]: bytes are no JSON'):
        transcode(encode({"a": b"x"}), "msgpack", "plain.json", root="item")
    with pytest.raises(DecodeError):
        transcode(data[:-1], "msgpack", "plain.json")
    far = encode({"a": [np.zeros(1)]}, export=lambda value: Opaque(2, b"x"))
    with pytest.raises(EncodeError, match=r'request\["a"\]\[0\]: an array, a frame or a buffer'):
        transcode(far, "msgpack", "plain.msgpack")
    read = transcode(far, "msgpack", "plain.msgpack", restore=lambda opaque: opaque.data)
    assert decode_value(read, "plain.msgpack") == {"a": [b"x"]}
