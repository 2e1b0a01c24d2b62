"""The value domain of payloads: what may be sent, how each kind is written, and why others are
refused.

Both codecs read this file, so a value that one of them takes is taken by the other. Plain kinds
(None, bool, int, float, str, bytes, list, tuple, dict) are spelled by each codec; kinds that have
an exact short text (dates, ``UUID``, ``Decimal``, large integers) are written as that text by both.
``docs/payloads.md`` is the table that users read.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

MAX_DEPTH: Final = 128
"""Containers inside one another: a list in a list counts two. One number for both codecs and both
ends."""

MAX_INT_BITS: Final = 8192
"""Bits of the largest integer, without its sign."""

_Clock = TypeVar("_Clock", datetime, time)

MAX_OPAQUE_KIND: Final = 95
"""Largest ``kind`` of an ``Opaque``."""


class Opaque(NamedTuple):
    """How a value outside the plain domain travels: what ``export`` returns and ``restore`` is
    given."""

    kind: int
    """What the bytes mean to whoever exports and restores, 0 to ``MAX_OPAQUE_KIND``."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Annotated:
    """An envelope around an item; an explicit None and a missing field are the same.

    Engines yield it, and clients that ask for ``annotated=True`` receive it. A field of a wrong
    type is an ``EncodeError`` when the envelope is sent.
    """

    data: Any = None
    id: str | None = None
    event: str | None = None
    comment: list[str] | None = None
    error: dict[str, Any] | str | None = None

    # An envelope is no key of a dict: its data need not be hashable.
    __hash__ = None  # type: ignore[assignment]

    @property
    def is_error(self) -> bool:
        """Whether this is an error item: its event is ``error`` or an error is given."""
        return self.event == "error" or self.error is not None


FIELDS: Final = ("data", "id", "event", "comment", "error")
"""Fields of ``Annotated`` in wire order."""


def annotated_fault(value: Annotated) -> tuple[str, str] | None:
    """``(field, what is wrong)`` of a malformed envelope, or None."""
    for field, text in (("id", value.id), ("event", value.event)):
        if text is not None and type(text) is not str:
            return field, f"{_name(text)}, but a str or None is wanted"
    comment = value.comment
    if comment is not None and not (type(comment) is list and {*map(type, comment)} <= {str}):
        return "comment", f"{_name(comment)}, but a list of str or None is wanted"
    if value.error is not None and type(value.error) not in (dict, str):
        return "error", f"{_name(value.error)}, but a dict, a str or None is wanted"
    return None


class TextKind(NamedTuple):
    """A kind of value that has an exact text."""

    code: int
    """Its MessagePack extension code."""
    name: str
    """Its name in a JSON tag."""
    dump: Callable[[Any], str]
    load: Callable[[str], Any]
    """Raises ``ValueError`` or ``ArithmeticError`` for a text that is none of its own."""


def _dump_int(value: int) -> str:
    if value.bit_length() > MAX_INT_BITS:
        raise ValueError(
            f"int of {value.bit_length()} bits; the limit is {MAX_INT_BITS}; "
            "send it as bytes or str"
        )
    return f"{value:x}"


def _load_int(text: str) -> int:
    value = int(text, 16) if len(text) <= MAX_INT_BITS // 4 + 1 else None
    if value is None or value.bit_length() > MAX_INT_BITS:
        raise ValueError(f"int of more than {MAX_INT_BITS} bits")
    return value


def _offset(value: datetime | time, zone: tzinfo | None) -> timedelta | None:
    offset = value.utcoffset()
    if zone is not None and offset is None:
        raise ValueError(
            f"{type(value).__name__} whose time zone gives no offset from UTC; "
            "send it without tzinfo, or a datetime"
        )
    return offset


def _dump_datetime(value: datetime) -> str:
    offset = _offset(value, value.tzinfo)
    if offset is None:
        return value.isoformat() + "~" * value.fold
    return value.replace(tzinfo=timezone(offset), fold=0).isoformat()


def _load_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text.removesuffix("~"))
    return _folded(value) if text.endswith("~") else value


def _folded(value: _Clock) -> _Clock:
    """The second of two equal readings of a clock; where an offset stands there is only one."""
    if value.tzinfo is not None:
        raise ValueError("a fold beside an offset from UTC")
    return value.replace(fold=1)


def _dump_time(value: time) -> str:
    offset = _offset(value, value.tzinfo)
    if offset is None:
        return value.isoformat() + "~" * value.fold
    return value.replace(tzinfo=timezone(offset), fold=0).isoformat()


def _load_time(text: str) -> time:
    value = time.fromisoformat(text.removesuffix("~"))
    return _folded(value) if text.endswith("~") else value


def _dump_timedelta(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _load_timedelta(text: str) -> timedelta:
    days, seconds, micros = text.split(" ")
    return timedelta(int(days), int(seconds), int(micros))


TEXT_KINDS: Final[dict[type, TextKind]] = {
    int: TextKind(3, "int", _dump_int, _load_int),
    datetime: TextKind(4, "datetime", _dump_datetime, _load_datetime),
    date: TextKind(5, "date", date.isoformat, date.fromisoformat),
    time: TextKind(6, "time", _dump_time, _load_time),
    timedelta: TextKind(7, "timedelta", _dump_timedelta, _load_timedelta),
    UUID: TextKind(8, "uuid", str, UUID),
    Decimal: TextKind(9, "decimal", str, Decimal),
}
"""Kinds written as text by both codecs. ``int`` is here for those beyond 64 bits."""

_PLAIN_BASES: Final[dict[type, str]] = {
    **{base: f"send {base.__name__}(x)" for base in (int, float, str, bytes, list, dict, tuple)},
    **{
        base: f"send a plain {base.__name__}"
        for base in (datetime, date, time, timedelta, UUID, Decimal)
    },
}
NOT_PLAIN: Final = object()
"""What ``plain_scalar`` answers when the value is no NumPy scalar."""


def plain_scalar(value: object) -> object:
    """The plain Python value of a NumPy scalar, or ``NOT_PLAIN`` if it is none.

    Numbers of up to 64 bits, booleans, ``str_`` and ``bytes_`` have one. NumPy is never imported
    for this: without it there are no such scalars. Raises ``ValueError`` for a scalar that has no
    exact plain value.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy" or not isinstance(value, numpy.generic):
        return NOT_PLAIN
    dtype = value.dtype
    if dtype.kind in "biuUS" or (dtype.kind == "f" and dtype.itemsize <= 8):
        return value.item()
    hints = {
        "M": "send str(x) or a datetime",
        "m": "send a timedelta",
        "c": "send [x.real, x.imag]",
        "f": "send float(x)",
    }
    hint = hints.get(dtype.kind, "send x.item() or an array")
    raise ValueError(f"{_name(value)} has no exact plain value; {hint}")


def refusal(value: object) -> str | None:
    """Why a value is outside the domain whatever ``export`` says, with what to do; None if it may
    be asked.

    A class derived from a plain one is refused and never sent as its base: the receiver would see
    another type than was sent.
    """
    kind = type(value)
    if isinstance(value, enum.Enum):
        return f"{_name(value)} is an Enum; send .value"
    if isinstance(value, (set, frozenset)):
        return f"{_name(value)} has no order; send sorted(x) or list(x)"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return f"{_name(value)} is a named tuple; send tuple(x) or x._asdict()"
    for base in _PLAIN_BASES:
        if isinstance(value, base) and kind is not base:
            return f"{_name(value)} is derived from {base.__name__}; {_PLAIN_BASES[base]}"
    return None


def hint_for(value: object) -> str:
    """Why a value that ``export`` did not take is outside the domain, and what to do."""
    kind = type(value)
    if isinstance(value, (bytearray, memoryview)):
        hint = "send bytes(x)"
    elif hasattr(kind, "__dataclass_fields__"):
        hint = "send dataclasses.asdict(x)"
    elif isinstance(value, complex):
        hint = "send [x.real, x.imag]"
    elif hasattr(kind, "model_dump"):
        hint = "send x.model_dump()"
    elif hasattr(kind, "__next__") or isinstance(value, range):
        hint = "send list(x)"
    elif kind.__module__ in ("array", "mmap"):
        hint = "send memoryview(x) or bytes(x)"
    elif callable(value):
        hint = "send a name that the receiver can look up"
    else:
        hint = "send a dict of its fields"
    return f"{_name(value)} is no payload value; {hint}"


def _name(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    plain = kind.__module__ in ("builtins", "__main__")
    name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    return f"class {name}" if isinstance(value, type) else name
