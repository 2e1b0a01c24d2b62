"""Tagged NamedTuples <-> batches of MessagePack objects.

A message is a NamedTuple registered under a small integer tag. On the bus it is the array ``[tag,
field, field, …]``; a batch is the sender's incarnation followed by such arrays, back to back. What
comes from another process is checked here for tag, number of fields and type of each field, so that
nothing behind this border meets a surprise. A field added later has a default and may be missing.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from transport.errors import LocalProtocolError, RemoteProtocolError, described

Message = tuple[Any, ...]
_T = TypeVar("_T", bound=type)

#: One batch may hold this many bytes; a stream's window and a payload's limit keep it far below.
MAX_BATCH = 2**31 - 1

_builders: dict[int, Callable[[list[Any]], Message]] = {}
_tags: dict[type, int] = {}
_NONE = type(None)
_NIL = b"\xc0"
#: Up to this size a copy of a batch is cheaper than a second call.
_LARGE = 16_384
#: A packer or unpacker that had to grow beyond this, in bytes, is not kept: it would never shrink.
_KEPT = 16 << 20
_BYTES = frozenset([bytes])
_INT = frozenset([int])
#: Faults after which a batch is noise: an error for each of its bytes would take 700 times its size
#: and hold up the loop for as long.
_MOST_FAULTS = 1000
#: How arrays begin that could claim more than 15. Few of them, 80 KiB each, may stand in one
#: another; in batches below this size, in bytes, counting them costs less than skimming.
_HEADS = (b"\xdd", b"\xdc")
_FEW = 12
_SHORT = 2048


def message(tag: int) -> Callable[[_T], _T]:
    """Register a NamedTuple class under ``tag``; raises LocalProtocolError when the tag is
    taken.
    """

    def register(cls: _T) -> _T:
        if tag in _builders:
            raise LocalProtocolError(f"message tag {tag} is taken; give {cls.__name__} another")
        # The builder is made at the first use: annotations may name classes that come later.
        _builders[tag] = lambda values: _first_use(tag, cls)(values)
        _tags[cls] = tag
        return cls

    return register


def tag_of(cls: type) -> int:
    """The tag that a message class is registered under; 0 when it is not."""
    return _tags.get(cls, 0)


def _first_use(tag: int, cls: type) -> Callable[[list[Any]], Message]:
    builder = _builders[tag] = _builder(cls)
    return builder


def _builder(cls: Any) -> Callable[[list[Any]], Message]:
    """A function from a list of fields, as unpacked, to a checked instance of ``cls``."""
    hints = get_type_hints(cls)
    names: tuple[str, ...] = cls._fields
    allowed = tuple(_plain_types(hints[name]) for name in names)
    nested = tuple(
        (index, inner)
        for index, name in enumerate(names)
        if (inner := _inner(hints[name])) is not None
    )
    least = len(names) - len(cls._field_defaults)
    most = len(names)
    defaults = tuple(cls._field_defaults.values())
    new = tuple.__new__

    #: Combinations of types that have passed; looking one up is cheaper than checking each field.
    passed: set[tuple[type, ...]] = set()

    def check(values: list[Any]) -> None:
        size = len(values)
        if size < least or size > most:
            raise RemoteProtocolError(
                f"message {cls.__name__} has {size} fields, {least} to {most} are allowed"
            )
        values.extend(defaults[len(defaults) - (most - size) :])
        for name, value, kinds in zip(names, values, allowed, strict=True):
            if type(value) not in kinds:
                raise RemoteProtocolError(
                    f"field {name!r} of message {cls.__name__} is of type {type(value).__name__}"
                )
        passed.add((*map(type, values),))

    def build(values: list[Any]) -> Message:
        if (*map(type, values),) not in passed:
            check(values)
        for index, convert in nested:
            if values[index] is not None:
                values[index] = convert(values[index])
        result: Message = new(cls, values)
        return result

    return build


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _plain_types(hint: Any) -> frozenset[type]:
    """The exact types that may stand in a field, as MessagePack delivers them."""
    found: set[type] = set()
    for member in _members(hint):
        origin = get_origin(member) or member
        if _is_record(origin) or origin in (list, tuple):
            found.add(list)
        elif origin is float:
            found |= {float, int}
        elif origin in (int, str, bytes, bool, dict, _NONE):
            found.add(origin)
        else:
            raise LocalProtocolError(f"a message field cannot be of type {hint!r}")
    return frozenset(found)


def _inner(hint: Any) -> Callable[[Any], Any] | None:
    """How a field that holds a record, or a list of them, is rebuilt; None for plain fields."""
    for member in _members(hint):
        if _is_record(member):
            return _builder(member)
        if get_origin(member) is list and get_args(member)[0] is bytes:
            return _all_bytes
        if get_origin(member) is list and get_args(member)[0] is int:
            return _all_ints
        if get_origin(member) is list and _is_record(get_args(member)[0]):
            build = _builder(get_args(member)[0])
            return lambda values: [build(_as_list(value)) for value in values]
        if get_origin(member) is tuple:
            return tuple
    return None


def _all_ints(values: list[Any]) -> list[Any]:
    if not _INT.issuperset(map(type, values)):
        raise RemoteProtocolError("a number among several is none")
    return values


def _all_bytes(values: list[Any]) -> list[Any]:
    if not _BYTES.issuperset(map(type, values)):
        raise RemoteProtocolError("a payload among several is no bytes")
    return values


def _as_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise RemoteProtocolError(
            f"a record was expected, not a value of type {type(value).__name__}"
        )
    return value


class BatchWriter:
    """Packs messages for one sender; owned by a port, used on its loop only."""

    def __init__(self, sender: int) -> None:
        self._packer = self._fresh()
        self._sender = sender

    @staticmethod
    def _fresh() -> msgpack.Packer:
        return msgpack.Packer(autoreset=False, use_bin_type=True)

    def pack(self, messages: Sequence[Message]) -> bytes:
        """One batch; raises LocalProtocolError when a message is not registered or a field is
        foreign.
        """
        return self._pack(self._packer, messages)

    def salvage(self, messages: Sequence[Message]) -> bytes:
        """A batch that ``pack`` refused, without the messages at fault.

        Text that is no Unicode (in a reason, in the words of an error) is no reason to lose a
        message: it gets question marks.
        """
        lenient = msgpack.Packer(autoreset=False, use_bin_type=True, unicode_errors="replace")
        good = []
        for each in messages:
            with contextlib.suppress(LocalProtocolError):
                self._pack(lenient, [each])
                good.append(each)
        return self._pack(lenient, good)

    def _pack(self, packer: msgpack.Packer, messages: Sequence[Message]) -> bytes:
        try:
            packer.pack(self._sender)
            for each in messages:
                packer.pack((_tags[type(each)], *each))
            batch: bytes = packer.bytes()
            if len(batch) > _KEPT and packer is self._packer:
                self._packer = self._fresh()
            return batch
        except KeyError as error:
            raise LocalProtocolError(f"{error.args[0]!r} is no registered message") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"a message cannot be packed: {error}") from error
        finally:
            packer.reset()


class BatchReader:
    """Unpacks batches; owned by a port, used on its loop only."""

    def __init__(self) -> None:
        self._unpacker = self._fresh()

    @staticmethod
    def _fresh() -> msgpack.Unpacker:
        return msgpack.Unpacker(
            raw=False, strict_map_key=False, use_list=True, max_buffer_size=MAX_BATCH
        )

    def unpack(self, batch: bytes) -> tuple[int, list[Message]]:
        """The sender's incarnation and the messages.

        Raises RemoteProtocolError when anything in it is wrong; ``read`` takes the rest.
        """
        objects = self._objects(batch)
        return objects[0], [_build(values) for values in objects[1:]]

    def read(self, batch: bytes) -> tuple[int, list[Message], list[RemoteProtocolError]]:
        """The sender, the messages that mean something, and what is wrong with the rest.

        One bad message does not take with it what its batch carries for other streams.
        """
        try:
            return *self.unpack(batch), []
        except RemoteProtocolError as fault:
            try:
                objects = self._objects(batch)
            except RemoteProtocolError:
                return 0, [], [fault]
        return objects[0], *_readable(objects[1:])

    def portions(self, batch: bytes) -> Portions:
        """A large batch, to be read bit by bit.

        Raises RemoteProtocolError when it does not begin with its sender.
        """
        _check_claims(batch)
        return Portions(self._fresh(), batch)

    def _objects(self, batch: bytes) -> list[Any]:
        unpacker = self._unpacker
        _check_claims(batch)
        try:
            # msgpack waits for more when bytes are cut off; a nil behind the batch tells a cut from
            # an end.
            if len(batch) < _LARGE:
                unpacker.feed(batch + _NIL)
            else:
                unpacker.feed(batch)
                unpacker.feed(_NIL)
            objects = list(unpacker)
            if len(batch) > _KEPT:
                self._unpacker = self._fresh()
            if not objects or objects.pop() is not None:
                raise RemoteProtocolError("a batch ends inside a message")
            if not objects or type(objects[0]) is not int:
                raise RemoteProtocolError("a batch does not begin with its sender's incarnation")
            return objects
        except RemoteProtocolError:
            self._unpacker = self._fresh()
            raise
        except Exception as error:  # msgpack raises many classes; all mean foreign bytes
            self._unpacker = self._fresh()
            raise RemoteProtocolError(
                f"a batch cannot be read: {error or type(error).__name__}"
            ) from error


def _check_claims(batch: bytes) -> None:
    """Refuse a batch whose arrays claim more than there is, before memory is taken for them.

    A parser takes 80 KiB at once for an array that claims much, and they may stand in one another a
    thousand times: 85 MB for five bytes each. Skimming costs less than half of reading; payloads
    are bytes, which it steps over.
    """
    whole, size = 0, len(batch)
    for head in _HEADS:
        if head in batch and (size >= _SHORT or batch.count(head) > _FEW):
            break
    else:
        return
    skimmer = msgpack.Unpacker(max_buffer_size=size)
    skimmer.feed(batch)
    try:
        while whole < size:
            skimmer.skip()
            whole = skimmer.tell()
    except Exception as error:  # as in BatchReader
        raise RemoteProtocolError(
            f"a batch ends inside a message, or is nested too deep: {type(error).__name__}"
        ) from error


class Portions:
    """One batch, unpacked a number of messages at a time; made by ``BatchReader.portions``.

    ``sender`` is the incarnation that it comes from, ``more`` tells whether anything is left.
    """

    __slots__ = ("_last", "_unpacker", "more", "sender")

    def __init__(self, unpacker: msgpack.Unpacker, batch: bytes) -> None:
        self._unpacker = unpacker
        unpacker.feed(batch)
        unpacker.feed(_NIL)  # tells a cut from an end
        self.more = True
        #: What was unpacked last: the mark of the end, once nothing follows it.
        self._last: list[Any] = []
        sender = self._next(1)
        if not sender or type(sender[0]) is not int:
            raise RemoteProtocolError("a batch does not begin with its sender's incarnation")
        self.sender: int = sender[0]

    def take(self, most: int) -> tuple[list[Message], list[RemoteProtocolError]]:
        """Up to ``most`` messages, and what is wrong with others among the next ``most``.

        Raises RemoteProtocolError when the batch cannot be read any further.
        """
        objects = self._last + self._next(most + 1 - len(self._last))
        self.more = len(objects) > most
        last = objects.pop() if objects else 0
        if self.more:
            self._last = [last]
        elif last is not None:
            raise RemoteProtocolError("a batch ends inside a message")
        return _readable(objects)

    def _next(self, most: int) -> list[Any]:
        try:
            return list(islice(self._unpacker, most))
        except Exception as error:  # msgpack raises many classes; all mean foreign bytes
            raise RemoteProtocolError(
                f"a batch cannot be read: {error or type(error).__name__}"
            ) from error


def _readable(objects: list[Any]) -> tuple[list[Message], list[RemoteProtocolError]]:
    """The messages among unpacked objects, and what is wrong with the others."""
    messages: list[Message] = []
    faults: list[RemoteProtocolError] = []
    for index, values in enumerate(objects, 1):
        try:
            messages.append(_build(values))
        except RemoteProtocolError as fault:
            faults.append(fault)
            if len(faults) == _MOST_FAULTS and index < len(objects):
                faults.append(
                    RemoteProtocolError(
                        f"{len(objects) - index} further messages of a batch are dropped: "
                        f"{_MOST_FAULTS} before them have no meaning"
                    )
                )
                break
    return messages, faults


def _build(values: Any) -> Message:
    if type(values) is not list or not values:
        raise RemoteProtocolError("a message is not an array with a tag")
    build = _builders.get(values[0]) if type(values[0]) is int else None
    if build is None:
        raise RemoteProtocolError(f"unknown message tag {described(values[0], 40)}")
    return build(values[1:])
