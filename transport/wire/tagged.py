"""JSON, the codec of peers that speak nothing else: strict text, tags for what JSON lacks.

A tag is an object ``{"$callhome": kind, "v": ...}``. An object of the user that has a key
``$callhome``, or a key that is no str, is itself written as a tag that lists keys and values in
turn, so nothing of the user's is ever taken for a tag. NaN and infinities are tags too: the text
passes any strict parser.
"""

from __future__ import annotations

import gc
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NoReturn

from transport.errors import CallHomeError, DecodeError, EncodeError
from transport.wire.packed import Restore, annotated_from
from transport.wire.values import (
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_OPAQUE_KIND,
    TEXT_KINDS,
    Annotated,
    Opaque,
    TextKind,
)
from transport.wire.walk import Export, Walk

_TAG: Final = "$callhome"
_FLOATS: Final = {"nan", "inf", "-inf"}
_MAX_DIGITS: Final = MAX_INT_BITS * 30103 // 100_000 + 2
"""Characters of the longest integer with its sign (a bit is 0.30103 decimal digits)."""
_NESTING: Final = frozenset({list, dict, tuple, Annotated})
_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode


def dump(value: object, export: Export | None, root: str) -> bytes:
    """JSON text of any value of the domain; raises ``EncodeError`` naming the path of a value
    outside it."""
    try:
        return _encode(_Tagged(export, root).value(value)).encode()
    except CallHomeError:
        raise
    except RecursionError as error:
        raise EncodeError(f"{root}: the call stack has no room left to encode it") from error
    except Exception as error:
        raise EncodeError(f"{root}: cannot be written: {type(error).__name__}: {error}") from error


class _Tagged(Walk):
    """Writes a value that JSON can say."""

    def write_float(self, value: float) -> object:
        return value if isfinite(value) else _tag("float", str(value))

    def write_bytes(self, value: bytes) -> object:
        return _tag("bytes", b64encode(value).decode())

    def write_text_kind(self, value: object, kind: TextKind, text: str) -> object:
        return _tag(kind.name, text)

    def write_opaque(self, value: Opaque) -> object:
        return {_TAG: "opaque", "kind": value.kind, "v": b64encode(value.data).decode()}

    def write_tuple(self, items: list[object]) -> object:
        return _tag("tuple", items)

    def write_dict(
        self, source: dict[object, object], written: list[tuple[object, object]]
    ) -> object:
        if {*map(type, source)} <= {str} and _TAG not in source:
            return dict(written)
        return _tag("dict", [part for pair in written for part in pair])

    def write_annotated(self, fields: list[object]) -> object:
        return _tag("annotated", fields)


def _tag(kind: str, written: object) -> dict[str, object]:
    return {_TAG: kind, "v": written}


def load(data: bytes, restore: Restore | None) -> object:
    """The value of ``dump``, or of any JSON text without tags; raises ``DecodeError`` for anything
    else."""
    decoder = json.JSONDecoder(
        object_hook=_Reader(restore).object, parse_int=_integer, parse_constant=_no_constant
    )
    return _load(data, decoder)


def load_bare(data: bytes) -> object:
    """The value of a JSON text from somebody who has no tags of ours: nothing is taken for one.

    Raises ``DecodeError``.
    """
    return _load(data, _bare)


def _load(data: bytes, decoder: json.JSONDecoder) -> object:
    try:
        text = data.decode()
        if "\\ud" in text or "\\uD" in text:
            # The parser lets a lone surrogate pass, over which the next sender would stumble.
            _encode(json.loads(text)).encode()
        value = decoder.decode(text)
    except CallHomeError:
        raise
    except RecursionError as error:
        raise DecodeError(f"JSON: nested deeper than {MAX_DEPTH} containers") from error
    except Exception as error:
        raise DecodeError(f"JSON: {type(error).__name__}: {error}"[:300]) from error
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level: list[Any] = [value]
    depth = 0
    while nesting := [item for item in level if type(item) in _NESTING]:
        depth += 1
        if depth > MAX_DEPTH:
            raise DecodeError(f"JSON: nested deeper than {MAX_DEPTH} containers")
        level = gc.get_referents(*nesting)


def _integer(text: str) -> int:
    value = int(text) if len(text) <= _MAX_DIGITS else None
    if value is None or value.bit_length() > MAX_INT_BITS:
        raise DecodeError(f"JSON: int of {len(text)} digits; the limit is {MAX_INT_BITS} bits")
    return value


def _no_constant(text: str) -> NoReturn:
    raise DecodeError(f"JSON: {text} is no JSON")


_bare: Final = json.JSONDecoder(parse_int=_integer, parse_constant=_no_constant)


def _wrong(kind: object) -> NoReturn:
    raise DecodeError(f"JSON: malformed tag {str(kind)[:40]!r}")


class _Reader:
    """Gives the tags of one text their meaning; the parser calls it for inner objects first."""

    __slots__ = ("_restore",)

    def __init__(self, restore: Restore | None) -> None:
        self._restore = restore

    def object(self, found: dict[str, Any]) -> object:
        if _TAG not in found:
            return found
        kind, content = found[_TAG], found.get("v")
        if kind == "opaque" and type(found.get("kind")) is int and type(content) is str:
            return self._opaque(found["kind"], content)
        if found.keys() != {_TAG, "v"} or type(kind) is not str:
            _wrong(kind)
        if type(content) is str and kind in _LOADS:
            return _LOADS[kind](content)
        if kind not in _STRUCTURES:
            _wrong(kind)
        return _STRUCTURES[kind](content)

    def _opaque(self, kind: int, content: str) -> Any:
        if self._restore is None:
            raise DecodeError("JSON: opaque value where only plain values are allowed")
        if not 0 <= kind <= MAX_OPAQUE_KIND:
            _wrong("opaque")
        return self._restore(Opaque(kind, b64decode(content, validate=True)))


def _load_float(text: str) -> float:
    return float(text) if text in _FLOATS else _wrong("float")


def _load_tuple(items: object) -> tuple[object, ...]:
    return tuple(items) if type(items) is list else _wrong("tuple")


def _load_dict(items: object) -> dict[object, object]:
    if type(items) is not list or len(items) % 2:
        _wrong("dict")
    return dict(zip(items[::2], items[1::2], strict=True))


def _load_annotated(items: object) -> Annotated:
    return annotated_from(items) if type(items) is list else _wrong("annotated")


_LOADS: Final[dict[str, Callable[[str], object]]] = {
    **{kind.name: kind.load for kind in TEXT_KINDS.values()},
    "float": _load_float,
    "bytes": lambda text: b64decode(text, validate=True),
}
_STRUCTURES: Final[dict[str, Callable[[object], object]]] = {
    "tuple": _load_tuple,
    "dict": _load_dict,
    "annotated": _load_annotated,
}
