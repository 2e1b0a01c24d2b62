"""MessagePack, the default codec: one quick pass for plain values, a careful one for the rest.

Spelling of what MessagePack lacks: a tuple is an array that begins with an empty extension of code
1, an envelope one that begins with code 2; kinds with an exact text are extensions 3 to 9; what
``export`` made is an extension from 32 on. A tuple is an array on the wire, so its depth is counted
by the same limit, and no extension holds MessagePack that would have to be parsed within a parse.

The quick pass packs without looking. It cannot see a ``bytearray`` (packed as bytes), a
``memoryview`` or a nesting beyond the limit, but each of them leaves a trace in the output: a
header byte, or a length over the limit. Only then is the value looked at, level by level at the
speed of C.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final, NoReturn

from msgpack import ExtType, Packer, Timestamp, Unpacker, unpackb

from transport.errors import CallHomeError, DecodeError, EncodeError
from transport.wire.ints import INTS, Ints, read_ints
from transport.wire.values import (
    MAX_DEPTH,
    NOT_PLAIN,
    TEXT_KINDS,
    Annotated,
    Opaque,
    TextKind,
    annotated_fault,
    plain_scalar,
)
from transport.wire.walk import Export, Walk

Restore = Callable[[Opaque], object]

_TUPLE: Final = 1
_ANNOTATED: Final = 2
_OPAQUE: Final = 32
_TUPLE_HEAD: Final = ExtType(_TUPLE, b"")
_ANNOTATED_HEAD: Final = ExtType(_ANNOTATED, b"")
_HEAD_BYTES: Final = b"\xc7\x00"
_LOADS: Final = {kind.code: kind for kind in TEXT_KINDS.values()}
_NATIVE_DEPTH: Final = 1024
"""Containers within one another that the C parser takes; it says ``StackError`` beyond."""
_LOWERED: Final = b"\x91" * (_NATIVE_DEPTH - MAX_DEPTH)
"""Arrays of one, put before a value so that the C parser's limit becomes ours."""
_KEPT_BYTES: Final = 1 << 20
_LONG: Final = 32
_SAMPLE: Final = 4_096
"""Bytes of long data that are looked at first."""

_STRAY_BYTES: Final = frozenset({*range(0xC4, 0xCA), *range(0xD4, 0xD9)})
_NESTING_BYTES: Final = frozenset({*range(0x80, 0xA0), *range(0xDC, 0xE0)})
_NO_STRAY: Final = bytes(byte for byte in range(256) if byte not in _STRAY_BYTES)
_NO_NESTING: Final = bytes(byte for byte in range(256) if byte not in _NESTING_BYTES)

_NESTING: Final = frozenset({list, dict, tuple, Annotated})
_STRAYS: Final = frozenset({bytearray, memoryview, ExtType, Timestamp})
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})


class _NotPlain(Exception):
    """The quick pass met something that only the careful pass can judge."""


class _Quick:
    """One packer and the hook that spells what MessagePack lacks.

    A packer serves one pass at a time; passes that run in other threads, or inside the hook of a
    first, take packers of their own from the pool.
    """

    __slots__ = ("hooked", "pack")

    def __init__(self) -> None:
        self.hooked = False
        packer = Packer(strict_types=True, use_bin_type=True, default=self._spell)
        self.pack: Callable[[object], bytes] = packer.pack

    def _spell(self, value: Any) -> object:
        self.hooked = True
        kind = type(value)
        if kind is tuple:
            return [_TUPLE_HEAD, *value]
        text_kind = TEXT_KINDS.get(kind)
        if text_kind is not None:
            return ExtType(text_kind.code, text_kind.dump(value).encode())
        if kind is Annotated:
            if annotated_fault(value) is not None:
                raise _NotPlain
            return [_ANNOTATED_HEAD, value.data, value.id, value.event, value.comment, value.error]
        if kind is Ints:
            return ExtType(INTS, value.data)
        if kind is _Exported:
            return value.ext
        scalar = plain_scalar(value)
        if scalar is NOT_PLAIN:
            raise _NotPlain
        return scalar


class _Exported:
    """What ``export`` made of a value, in the place of the value."""

    __slots__ = ("ext",)

    def __init__(self, ext: ExtType) -> None:
        self.ext = ext


_pool: list[_Quick] = []


def _take() -> _Quick:
    try:
        return _pool.pop()  # one step, so that no two threads get the same
    except IndexError:
        return _Quick()


def _give_back(quick: _Quick, size: int) -> None:
    """Keep a packer for the next pass, unless its buffer has grown for ``size`` bytes."""
    if size <= _KEPT_BYTES:
        _pool.append(quick)
    else:
        # Packer and hook hold each other: the buffer would stay until the collector comes by, which
        # it does by the number of objects and not by their size.
        del quick.pack


def pack_plain(value: object) -> bytes | None:
    """The bytes of a plain value, or None when it takes the careful pass to judge it.

    The hot path: costs little more than the packing itself. Never calls user code but for a time
    zone's.
    """
    quick = _take()
    quick.hooked = False
    try:
        data = quick.pack(value)
    except Exception:
        del quick.pack  # this packer may hold half a value: it is not used again
        return None
    size = len(data)
    if (size > MAX_DEPTH or data.translate(None, _NO_STRAY)) and not _is_clean(value, quick.hooked):
        data = None  # type: ignore[assignment]
    _give_back(quick, size)
    return data


def pack(value: object, export: Export | None, root: str) -> bytes:
    """The bytes of any value of the domain.

    Raises ``EncodeError`` naming the path of a value outside it.
    """
    data = pack_plain(value)
    return data if data is not None else pack_careful(value, export, root)


def pack_careful(value: object, export: Export | None, root: str) -> bytes:
    """As ``pack``, for a value that is known not to be plain."""
    try:
        rebuilt = _Rebuild(export, root).value(value)
        quick = _take()
        data = quick.pack(rebuilt)
    except CallHomeError:
        raise
    except RecursionError as error:
        raise EncodeError(f"{root}: the call stack has no room left to encode it") from error
    except Exception as error:
        raise EncodeError(f"{root}: cannot be packed: {type(error).__name__}: {error}") from error
    _give_back(quick, len(data))
    return data


def _is_clean(value: object, hooked: bool) -> bool:
    """Whether a value that could be packed holds no stray type and is not nested beyond the
    limit."""
    level: list[Any] = [value]
    depth = 0
    while True:
        kinds = {*map(type, level)}
        if kinds <= _ATOMS:
            return True
        if not kinds.isdisjoint(_STRAYS):
            return False
        if kinds.isdisjoint(_NESTING):
            return True
        depth += 1
        if depth > MAX_DEPTH:
            return False
        nesting = level
        if not kinds <= _NESTING:
            nesting = [item for item in level if type(item) in _NESTING]
        if list in kinds and not hooked:
            nesting = [item for item in nesting if not _is_numeric(item)]
        level = gc.get_referents(*nesting)


def _is_numeric(value: Any) -> bool:
    """Whether it is a long list of nothing but numbers; a sum tells, several times quicker than
    types.

    Only for a value that was packed without the hook: there is then no object whose ``+`` is user
    code.
    """
    if type(value) is not list or len(value) < _LONG or type(value[0]) not in (int, float):
        return False
    try:
        sum(value)
    except (TypeError, OverflowError):
        return False
    return True


class _Rebuild(Walk):
    """Writes a value that the quick pass can pack: what was exported stands in the place of its
    source."""

    def write_float(self, value: float) -> object:
        return value

    def write_bytes(self, value: bytes) -> object:
        return value

    def write_text_kind(self, value: object, kind: TextKind, text: str) -> object:
        return value

    def write_opaque(self, value: Opaque) -> object:
        return _Exported(ExtType(_OPAQUE + value.kind, value.data))

    def write_tuple(self, items: list[object]) -> object:
        return tuple(items)

    def write_dict(
        self, source: dict[object, object], written: list[tuple[object, object]]
    ) -> object:
        return dict(written)

    def write_annotated(self, fields: list[object]) -> object:
        return Annotated(*fields)  # type: ignore[arg-type]


def _rebuilt_ints(walk: Walk, value: object) -> object:
    return value


_Rebuild._handlers[Ints] = _rebuilt_ints


def unpack(data: bytes, restore: Restore | None) -> object:
    """The value of ``pack``; raises ``DecodeError`` for anything else.

    A UTC timestamp of MessagePack itself (extension -1), which a foreign sender may use, becomes an
    aware datetime. Errors of ``restore`` that are ours pass unchanged.
    """
    if _may_nest(data):
        _check_shape(data)
    try:
        return unpackb(data, ext_hook=_ints_only, strict_map_key=False, timestamp=3)
    except Exception:
        pass
    # Not plain, or no value at all: the careful way can tell. Nothing was restored yet.
    return _unpack_extended(data, restore)


def unpack_bare(data: bytes) -> object:
    """The value of MessagePack from somebody who has no extensions of ours: none is taken.

    Raises ``DecodeError``; memory taken is bounded as in ``unpack``.
    """
    if _may_nest(data):
        _check_shape(data)
    try:
        return unpackb(data, ext_hook=_no_extension, strict_map_key=False, timestamp=3)
    except _NotPlain as error:
        raise DecodeError(f"MessagePack: extension {error.args[0]} has no meaning here") from None
    except Exception as error:
        raise _decode_error(error) from error


def _may_nest(data: bytes) -> bool:
    """Whether there are as many bytes that could begin a container as it takes to be too deep."""
    if len(data) <= MAX_DEPTH:
        return False
    # Numbers and text have such bytes in them, too: the beginning of long data mostly decides.
    if len(data) > _SAMPLE and len(data[:_SAMPLE].translate(None, _NO_NESTING)) > MAX_DEPTH:
        return True
    return len(data.translate(None, _NO_NESTING)) > MAX_DEPTH


def _ints_only(code: int, data: bytes) -> list[int]:
    """The extension that the quick way takes."""
    if code == INTS:
        return read_ints(data)
    raise _NotPlain(code)


def _no_extension(code: int, data: bytes) -> NoReturn:
    raise _NotPlain(code)


def _unpack_extended(data: bytes, restore: Restore | None) -> object:
    reader = _Reader(restore)
    heads = _HEAD_BYTES in data
    try:
        value = unpackb(
            data,
            ext_hook=reader.extension,
            list_hook=reader.array if heads else None,
            strict_map_key=False,
            timestamp=3,
        )
    except CallHomeError:
        raise
    except Exception as error:
        raise _decode_error(error) from error
    if reader.open_heads:
        raise DecodeError("MessagePack: the head of a tuple or an envelope outside an array")
    return value


def _check_shape(data: bytes) -> None:
    """Refuse data that is cut or too deep before memory is taken for what its headers claim."""
    skimmer = Unpacker(max_buffer_size=len(_LOWERED) + len(data))
    skimmer.feed(_LOWERED)
    skimmer.feed(data)
    try:
        skimmer.skip()
    except Exception as error:
        raise _decode_error(error) from error


def _decode_error(error: Exception) -> DecodeError:
    name = type(error).__name__
    if name == "StackError":
        return DecodeError(f"MessagePack: nested deeper than {MAX_DEPTH} containers")
    return DecodeError(f"MessagePack: {name}: {error}"[:300])


class _Head:
    """What an array begins with when it is a tuple or an envelope."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class _Reader:
    """Gives extensions and marked arrays of one value their meaning."""

    __slots__ = ("_restore", "open_heads")

    def __init__(self, restore: Restore | None) -> None:
        self._restore = restore
        self.open_heads = 0

    def extension(self, code: int, data: bytes) -> object:
        if code >= _OPAQUE:
            if self._restore is None:
                raise DecodeError(
                    f"MessagePack: extension {code} where only plain values are allowed"
                )
            return self._restore(Opaque(code - _OPAQUE, data))
        if code in (_TUPLE, _ANNOTATED) and not data:
            self.open_heads += 1
            return _Head(code)
        if code == INTS:
            return read_ints(data)
        kind = _LOADS.get(code)
        if kind is None:
            raise DecodeError(f"MessagePack: extension {code} has no meaning here")
        return kind.load(data.decode())

    def array(self, items: list[Any]) -> object:
        if not items or type(items[0]) is not _Head:
            return items
        self.open_heads -= 1
        code, fields = items[0].code, items[1:]
        return tuple(fields) if code == _TUPLE else annotated_from(fields)


def annotated_from(fields: list[Any]) -> Annotated:
    """The envelope of five fields as received; raises ``DecodeError`` when it is malformed."""
    if len(fields) != 5:
        raise DecodeError(f"envelope of {len(fields)} fields; there are 5")
    value = Annotated(*fields)
    fault = annotated_fault(value)
    if fault is not None:
        raise DecodeError(f"envelope: {fault[0]}: {fault[1]}")
    return value
