"""The careful pass over a value: it knows at every step the path that led there.

MessagePack takes it only when the quick pass met something that is no plain value; JSON takes it
always. The path of an error reads as the user would write it: ``request["a"][3]``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, NoReturn

from transport.errors import CallHomeError, EncodeError
from transport.wire.values import (
    FIELDS,
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_OPAQUE_KIND,
    NOT_PLAIN,
    TEXT_KINDS,
    Annotated,
    Opaque,
    TextKind,
    annotated_fault,
    hint_for,
    plain_scalar,
    refusal,
)

Export = Callable[[object], Opaque | None]

_LONG: Final = 64
_KEY_SHOWN: Final = 60


class _Field(str):
    """A step of a path into a field of an envelope."""

    __slots__ = ()


class Key:
    """A step of a path into a key itself, not into what it leads to."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


class Walk(ABC):
    """Goes over one value and writes it anew through the methods that a codec adds.

    ``root`` names the value at the start of paths. One object serves one value: after an error it
    is of no use. Every method raises ``EncodeError`` naming the path; other errors of ``export``
    pass unchanged.
    """

    #: By class and unbound: methods bound to the object would tie it into a cycle, and what it has
    #: seen, frames among it, would live until the collector comes by.
    _handlers: ClassVar[dict[type, Callable[..., object]]]

    def __init_subclass__(cls) -> None:
        cls._handlers = {
            type(None): _same,
            bool: _same,
            int: cls._int,
            float: cls.write_float,
            str: cls._str,
            bytes: cls.write_bytes,
            list: cls._list,
            tuple: cls._tuple,
            dict: cls._dict,
            Annotated: cls._annotated,
        }

    def __init__(self, export: Export | None, root: str) -> None:
        self._export = export
        self._root = root
        self._path: list[object] = []
        self._depth = 0
        self._in_key = False

    def value(self, value: object) -> object:
        """Write one value of any kind."""
        handler = self._handlers.get(type(value))
        return handler(self, value) if handler is not None else self._other(value)

    # What a codec adds.

    @abstractmethod
    def write_float(self, value: float) -> object:
        """Write a float, NaN and infinities included."""

    @abstractmethod
    def write_bytes(self, value: bytes) -> object:
        """Write bytes."""

    @abstractmethod
    def write_text_kind(self, value: object, kind: TextKind, text: str) -> object:
        """Write a value that has an exact text."""

    @abstractmethod
    def write_opaque(self, value: Opaque) -> object:
        """Write what ``export`` made of a value."""

    @abstractmethod
    def write_tuple(self, items: list[object]) -> object:
        """Write a tuple of written items."""

    @abstractmethod
    def write_dict(
        self, source: dict[object, object], written: list[tuple[object, object]]
    ) -> object:
        """Write a dict; ``written`` are its written keys and values, in the order of ``source``."""

    @abstractmethod
    def write_annotated(self, fields: list[object]) -> object:
        """Write an envelope of written fields, in the order of ``FIELDS``."""

    # What every codec shares.

    def fail(self, reason: str) -> NoReturn:
        """Raise the ``EncodeError`` of the place where the walk stands."""
        raise EncodeError(f"{self._where()}: {reason}")

    def _where(self) -> str:
        text = self._root
        for step in self._path:
            if isinstance(step, _Field):
                text += f".{step}"
            elif isinstance(step, Key):
                text += f", key {_shown(step.key)}"
            else:
                text += f"[{_shown(step)}]"
        return text

    def _int(self, value: int) -> object:
        if -(1 << 63) <= value < 1 << 64:
            return value
        return self._text_kind(value, TEXT_KINDS[int])

    def _str(self, value: str) -> object:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                self.fail(
                    f"str with a lone surrogate at index {error.start} is no Unicode text; "
                    'send x.encode("utf-8", "surrogatepass") or replace it'
                )
        return value

    def _text_kind(self, value: object, kind: TextKind) -> object:
        try:
            text = kind.dump(value)
        except CallHomeError:
            raise
        except Exception as error:
            self.fail(str(error) or type(error).__name__)
        return self.write_text_kind(value, kind, text)

    def _enter(self) -> None:
        if self._depth == MAX_DEPTH:
            self._path = self._path[:4]
            self.fail(
                f"nested deeper than {MAX_DEPTH} containers, or it contains itself; send it flatter"
            )
        self._depth += 1

    def _items(self, value: list[object] | tuple[object, ...]) -> list[object]:
        self._enter()
        path, write = self._path, self.value
        written: list[object] = []
        for index, item in enumerate(value):
            path.append(index)
            written.append(write(item))
            path.pop()
        self._depth -= 1
        return written

    def _list(self, value: list[object]) -> object:
        if len(value) >= _LONG and _all_small_ints(value):
            self._enter()
            self._depth -= 1
            return value
        return self._items(value)

    def _tuple(self, value: tuple[object, ...]) -> object:
        return self.write_tuple(self._items(value))

    def _dict(self, value: dict[object, object]) -> object:
        self._enter()
        path, write = self._path, self.value
        written: list[tuple[object, object]] = []
        for key, item in value.items():
            written_key = key if type(key) is str and key.isascii() else self._key(key)
            path.append(key)
            written.append((written_key, write(item)))
            path.pop()
        self._depth -= 1
        return self.write_dict(value, written)

    def _key(self, key: object) -> object:
        outer, self._in_key = self._in_key, True
        self._path.append(Key(key))
        written = self.value(key)
        self._path.pop()
        self._in_key = outer
        return written

    def _annotated(self, value: Annotated) -> object:
        fault = annotated_fault(value)
        if fault is not None:
            self._path.append(_Field(fault[0]))
            self.fail(fault[1])
        self._enter()
        written = []
        for name in FIELDS:
            self._path.append(_Field(name))
            written.append(self.value(getattr(value, name)))
            self._path.pop()
        self._depth -= 1
        return self.write_annotated(written)

    def _other(self, value: object) -> object:
        kind = TEXT_KINDS.get(type(value))
        if kind is not None:
            return self._text_kind(value, kind)
        try:
            scalar = plain_scalar(value)
        except ValueError as error:
            self.fail(str(error))
        if scalar is not NOT_PLAIN:
            return self.value(scalar)
        reason = refusal(value)
        if reason is not None:
            self.fail(reason)
        if self._in_key:
            self.fail(f"{hint_for(value)}, or use a plain key")
        opaque = self._exported(value)
        if opaque is None:
            self.fail(hint_for(value))
        return self.write_opaque(opaque)

    def _exported(self, value: object) -> Opaque | None:
        if self._export is None:
            return None
        try:
            opaque = self._export(value)
        except EncodeError as error:
            self.fail(error.message)
        except CallHomeError:
            raise
        except Exception as error:
            raise EncodeError(f"{self._where()}: {type(error).__name__}: {error}") from error
        if opaque is not None and not 0 <= opaque.kind <= MAX_OPAQUE_KIND:
            self.fail(f"exported with kind {opaque.kind}; 0 to {MAX_OPAQUE_KIND} are allowed")
        return opaque


def _same(walk: Walk, value: object) -> object:
    return value


def _all_small_ints(value: list[object]) -> bool:
    """Whether a list holds nothing but exact integers of 64 bits; told at the speed of C."""
    if type(value[0]) is not int or {*map(type, value)} != {int}:
        return False
    numbers: list[int] = value  # type: ignore[assignment]
    return min(numbers) >= -(1 << 63) and max(numbers) < 1 << 64


def _shown(key: object) -> str:
    """A key as one would write it, cut to a readable length; never a character that cannot
    travel."""
    if type(key) is int and key.bit_length() > MAX_INT_BITS:
        return f"int of {key.bit_length()} bits"
    try:
        text = json.dumps(key) if isinstance(key, str) else ascii(key)
    except Exception:
        text = f"<{type(key).__name__}>"
    return text if len(text) <= _KEY_SHOWN else f"{text[:_KEY_SHOWN]}…"
