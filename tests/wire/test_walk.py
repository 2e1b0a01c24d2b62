"""The careful pass: paths, depth, and what is asked of ``export``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.wire.samples import (
    both,
    in_dict,
    in_envelope,
    in_list,
    in_odd_dict,
    in_tuple,
    nested,
    same,
)
from transport.errors import DecodeError, EncodeError, FrameReleased
from transport.wire.codec import (
    MAX_DEPTH,
    Annotated,
    Opaque,
    decode,
    encode,
)


@both
def test_paths_of_keys_fields_and_root(codec: str) -> None:
    for value, path in [
        (object(), "item: "),
        ({"a": {1j: 1}}, 'item["a"], key '),
        ({"a": {(1, frozenset()): 1}}, 'item["a"], key (1, frozenset())[1]: '),
        ({"\ud800": 1}, 'item, key "\\ud800": '),
        ({"k" * 1000: object()}, 'item["kkkkkkk'),
        ({2**9000: 1}, "item, key int of 9001 bits: "),
        ({memoryview(b"a"): 1}, "item, key <memory"),
        ({(1, 2): [object()]}, "item[(1, 2)][0]: "),
        (Annotated(data=[object()]), "item.data[0]: "),
        (Annotated(error={"a": 1j}), 'item.error["a"]: '),
    ]:
        with pytest.raises(EncodeError) as caught:
            encode(value, codec=codec)
        text = str(caught.value)
        assert text.startswith(path)
        assert len(text) < 400


@both
@pytest.mark.parametrize("wrap", [in_list, in_tuple, in_dict, in_odd_dict, in_envelope])
def test_depth_is_one_number(wrap: Callable[[object], object], codec: str) -> None:
    value = nested(MAX_DEPTH, wrap)
    data = encode(value, codec=codec)
    assert same(decode(data, codec=codec), value)
    for core in (1, "a", b"x" * 500, object()):
        for over in (1, 2, 900, 2000, 50_000):
            if wrap is in_envelope and over > 900:
                continue  # the interpreter itself fails on freeing these
            value = nested(MAX_DEPTH + over, wrap, core)
            with pytest.raises(EncodeError, match="nested deeper than 128"):
                encode(value, codec=codec)


@both
def test_depth_on_a_deep_call_stack(codec: str) -> None:
    value = nested(MAX_DEPTH, in_odd_dict)

    def deep(levels: int) -> object:
        return deep(levels - 1) if levels else decode(encode(value, codec=codec), codec=codec)

    assert deep(400) == value


@both
def test_no_room_on_the_call_stack_is_a_typed_error(codec: str) -> None:
    def deep(levels: int) -> object:
        if levels:
            return deep(levels - 1)
        try:
            return encode(nested(MAX_DEPTH, in_odd_dict, object()), codec=codec)
        except RecursionError:
            pytest.fail("untyped")

    with pytest.raises(EncodeError):
        deep(850)


@both
def test_a_value_that_contains_itself(codec: str) -> None:
    loop: list[object] = []
    loop += [loop, loop]
    table: dict[str, object] = {"x" * 200: 1}
    table["self"] = table
    for value in (loop, table):
        with pytest.raises(EncodeError, match="contains itself"):
            encode(value, codec=codec)


class Wave:
    """Something that ``export`` knows."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def export(value: object) -> Opaque | None:
    if isinstance(value, Wave):
        return Opaque(95, value.data)
    if isinstance(value, (bytearray, memoryview)):
        return Opaque(0, bytes(value))
    return None


def restore(opaque: Opaque) -> object:
    return (opaque.kind, opaque.data)


@both
def test_export_and_restore_anywhere(codec: str) -> None:
    value = {
        "w": Wave(b"\x00\xff"),
        "list": [Wave(b""), {"x": bytearray(b"ab")}, (memoryview(b"cd")[::2], 2**100)],
        "many": [*range(1000), bytearray(b"e")],
        "note": Annotated(data=Wave(b"z")),
        "deep": nested(MAX_DEPTH - 2, in_list, bytearray(b"f")),
        (1, 2): b"plain",
    }
    back: Any = decode(encode(value, codec=codec, export=export), codec=codec, restore=restore)
    assert back["w"] == (95, b"\x00\xff")
    assert back["list"] == [(95, b""), {"x": (0, b"ab")}, ((0, b"c"), 2**100)]
    assert back["many"] == [*range(1000), (0, b"e")]
    assert back["note"] == Annotated(data=(95, b"z"))
    assert back["deep"] == nested(MAX_DEPTH - 2, in_list, (0, b"f"))
    assert back[(1, 2)] == b"plain"
    assert bytearray(b"ab") == value["list"][1]["x"]  # type: ignore[index]


@both
def test_export_is_asked_once_and_in_order(codec: str) -> None:
    asked: list[object] = []

    def note(value: object) -> Opaque | None:
        asked.append(value)
        return export(value)

    waves = [Wave(bytes([n])) for n in range(5)]
    data = encode(
        [waves[0], (bytearray(b"b"), waves[1]), {"a": waves[2:]}], codec=codec, export=note
    )
    assert [value for value in asked if isinstance(value, Wave)] == waves
    order: list[bytes] = []
    decode(data, codec=codec, restore=lambda opaque: order.append(opaque.data))
    assert order == [b"\0", b"b", b"\1", b"\2", b"\3", b"\4"]


@both
def test_errors_of_export(codec: str) -> None:
    def fails(error: Exception) -> Callable[[object], Opaque | None]:
        def fail(_: object) -> Opaque | None:
            raise error

        return fail

    with pytest.raises(EncodeError, match=r"^item\[0\]: object dtype$"):
        encode([Wave(b"")], codec=codec, export=fails(EncodeError("object dtype")))
    with pytest.raises(EncodeError, match=r"^item\[0\]: ZeroDivisionError: x$"):
        encode([Wave(b"")], codec=codec, export=fails(ZeroDivisionError("x")))
    with pytest.raises(FrameReleased, match=r"^gone$"):
        encode([Wave(b"")], codec=codec, export=fails(FrameReleased("gone")))
    with pytest.raises(EncodeError, match=r"kind 96"):
        encode([Wave(b"")], codec=codec, export=lambda _: Opaque(96, b""))
    with pytest.raises(EncodeError, match="key"):
        encode({Wave(b""): 1}, codec=codec, export=export)


@both
def test_errors_of_restore(codec: str) -> None:
    data = encode([Wave(b"")], codec=codec, export=export)

    def fail(_: Opaque) -> object:
        raise FrameReleased("gone")

    with pytest.raises(FrameReleased):
        decode(data, codec=codec, restore=fail)
    with pytest.raises(DecodeError, match="ZeroDivisionError"):
        decode(data, codec=codec, restore=lambda _: 1 / 0)
    with pytest.raises(DecodeError, match="only plain values"):
        decode(data, codec=codec)
