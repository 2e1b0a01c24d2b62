"""Bare values: what any reader takes, without extensions and tags; the values of plain codecs.

The domain is JSON's, with bytes under MessagePack. What is outside it is refused with its path and
never bent into shape, but for tuples, which become lists, and NumPy scalars.
"""

from __future__ import annotations

import gc
import json
from typing import Any, Final

from msgpack import Packer

from transport.errors import CallHomeError, EncodeError, LocalProtocolError
from transport.wire.values import Opaque, TextKind
from transport.wire.walk import Key, Walk

MAX_PLAIN_DEPTH: Final = 120
"""Containers inside one another; a reader in Rust stops at 128, its wrappers counted."""

_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN_KINDS: Final = _ATOMS | {list, tuple, dict}
_STR: Final = frozenset({str})
_KEPT_BYTES: Final = 1 << 20
_dump: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode


def write_bare(value: object, as_json: bool, root: str) -> bytes:
    """The bytes of a bare value; raises EncodeError naming the path inside ``root`` of what it
    cannot hold."""
    # Packing comes first: it ends soon on a value that contains itself, looking does not.
    try:
        data = _dump(value).encode() if as_json else _pack(value)
        if _is_plain(value, as_json):
            return data
    except Exception:
        pass  # the careful pass can tell where
    try:
        written = _Bare(as_json, root).value(value)
        return _dump(written).encode() if as_json else _pack(written)
    except CallHomeError:
        raise
    except RecursionError as error:
        raise EncodeError(f"{root}: the call stack has no room left to encode it") from error
    except Exception as error:
        raise EncodeError(f"{root}: cannot be written: {type(error).__name__}: {error}") from error


_packers: list[Packer] = []


def _pack(value: object) -> bytes:
    """MessagePack of a value that is known to be plain; lists and tuples are the same in it."""
    try:
        packer = _packers.pop()  # one step, so that no two threads get the same
    except IndexError:
        packer = Packer(use_bin_type=True)
    data: bytes = packer.pack(value)  # after an error it is not used again
    if len(data) <= _KEPT_BYTES:
        _packers.append(packer)
    return data


def _is_plain(value: Any, as_json: bool) -> bool:
    """Whether a value holds nothing that a packer would bend into shape; told level by level at the
    speed of C."""
    level: list[Any] = [value]
    for _ in range(MAX_PLAIN_DEPTH + 1):
        kinds = {*map(type, level)}
        if not kinds <= _PLAIN_KINDS:
            return False
        if as_json and (bytes in kinds or (int in kinds and not _are_small(level))):
            return False
        if kinds <= _ATOMS:
            return True
        nesting = level
        if not kinds.isdisjoint(_ATOMS):
            nesting = [item for item in level if type(item) not in _ATOMS]
        for item in nesting:
            if type(item) is dict and not _STR.issuperset(map(type, item)):
                return False
        level = gc.get_referents(*nesting)
    return False


def _are_small(level: list[Any]) -> bool:
    """Whether all integers have 64 bits: JSON has no bound of its own, its readers have."""
    numbers = [item for item in level if type(item) is int]
    return min(numbers) >= -(1 << 63) and max(numbers) < 1 << 64


class Far:
    """What a foreign peer cannot read, in the place where it stood in a value of ours; ``name`` is
    what it is called there.
    """

    def __init__(self, name: str = "an array, a frame or a buffer") -> None:
        self.name = name


class _Bare(Walk):
    """Writes a value that foreign peers can read, or names what they cannot."""

    def __init__(self, as_json: bool, root: str) -> None:
        super().__init__(self._refuse, root)
        self._as_json = as_json

    def _refuse(self, value: object) -> Opaque | None:
        name = type(value).__name__
        if isinstance(value, Far):
            name = value.name
        elif isinstance(value, (bytearray, memoryview)):
            hint = "bytes under msgpack" if self._as_json else "bytes(x)"
            raise EncodeError(f"{name} is nothing a Dynamo peer understands; send {hint}")
        elif not (hasattr(value, "dtype") or hasattr(value, "__array__") or name == "Frame"):
            return None
        raise EncodeError(
            f"{name} is nothing a Dynamo peer understands; send lists, or bytes under msgpack"
        )

    def _enter(self) -> None:
        if self._depth == MAX_PLAIN_DEPTH:
            self._path = self._path[:4]
            self.fail(
                f"nested deeper than {MAX_PLAIN_DEPTH} containers, or it contains itself; a Dynamo "
                "peer takes no more; send it flatter"
            )
        self._depth += 1

    def _key(self, key: object) -> object:
        written = super()._key(key)
        if type(written) is not str:
            self._path.append(Key(key))
            self.fail(
                f"a key that is {type(key).__name__} is nothing a Dynamo peer understands; "
                "send str(key)"
            )
        return written

    def write_float(self, value: float) -> object:
        if self._as_json and value - value != 0:
            self.fail(f"{value} is no JSON; send None or a str, or use msgpack")
        return value

    def write_bytes(self, value: bytes) -> object:
        if self._as_json and not self._in_key:
            self.fail("bytes are no JSON; send text (as base64), or use msgpack")
        return value

    def write_text_kind(self, value: object, kind: TextKind, text: str) -> object:
        if kind.name == "int":
            assert isinstance(value, int)
            self.fail(
                f"int of {value.bit_length()} bits; a Dynamo peer takes 64; send str(x) or a float"
            )
        name = type(value).__name__
        self.fail(f"{name} is nothing a Dynamo peer understands; send str(x)")

    def write_opaque(self, value: Opaque) -> object:
        raise LocalProtocolError("a plain codec has no opaque values")  # none is ever exported

    def write_tuple(self, items: list[object]) -> object:
        return items

    def write_dict(
        self, source: dict[object, object], written: list[tuple[object, object]]
    ) -> object:
        return dict(written)

    def write_annotated(self, fields: list[object]) -> object:
        self.fail("Annotated inside a value is nothing a Dynamo peer understands; send a dict")
