"""What travels beside the bytes of a value: handles into shared memory, or contents in line.

``transport.payload`` writes and reads values with it. A codec sees an opaque value of one of the
kinds here; where its contents went is not seen in their type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from transport.errors import DecodeError, RemoteProtocolError
from transport.shm.frames import private_frame
from transport.shm.inline import array_from, array_over
from transport.wire.bare import Far
from transport.wire.handle import Handle, handle_from_wire
from transport.wire.values import Opaque

if TYPE_CHECKING:
    from transport.shm.memory import Memory

# Kinds of opaque values with their contents in line. Those whose contents are in the table beside
# the data, named by their index in it, are ``FAR`` higher.
BYTES, VIEW, ARRAY, FRAME, FAR = 0, 1, 2, 3, 4
#: A reference to an actor, as ``actors.kernel.ref`` writes it; never in the table.
REFERENCE: Final = 8
INDEX: Final = struct.Struct(">I")
_NAMES: Final = {VIEW: "a bytearray or memoryview", ARRAY: "an array", FRAME: "a frame"}
Restore: TypeAlias = Callable[[Opaque], object]


class Table:
    """What came beside the data of one value; each entry is read once or dropped."""

    def __init__(self, memory: Memory | None, near: Restore | None = None) -> None:
        """``near`` reads what has its contents in line, where it is to be another than ours."""
        self._memory = memory
        self._near = near or in_line
        self._entries: list[Handle | list[Any] | None] = []

    def fill(self, values: Sequence[Any]) -> None:
        """Take the entries over; after an error those before the wrong one are to be dropped."""
        for value in values:
            if type(value) is list and len(value) == 3:
                self._entries.append(value)
            elif self._memory is None:
                raise RemoteProtocolError("a handle for a reader that has no shared memory")
            else:
                self._entries.append(handle_from_wire(value))

    def restore(self, opaque: Opaque) -> object:
        """The codec asks for what an opaque value stands for."""
        kind, data = opaque
        if kind < FAR or kind == REFERENCE:
            return self._near(opaque)
        index = INDEX.unpack(data)[0] if len(data) == INDEX.size else -1
        if not 0 <= index < len(self._entries) or kind > FAR + FRAME:
            raise DecodeError(f"opaque value of kind {kind} without a handle")
        entry, self._entries[index] = self._entries[index], None
        if entry is None:
            raise DecodeError(f"handle {index} is named twice")
        kind -= FAR
        if isinstance(entry, Handle):
            return self._read(kind, entry)
        dtype, shape, raw = entry
        if type(dtype) is not str or type(shape) is not list or type(raw) is not bytes:
            raise RemoteProtocolError("bytes in place of a handle are not [dtype, shape, bytes]")
        if kind < ARRAY:
            return raw if kind == BYTES else memoryview(raw)
        array = array_over(raw, 0, dtype, shape)
        return array if kind == ARRAY else private_frame(array)

    def restore_bytes(self, opaque: Opaque) -> object:
        """As ``restore``, but all that is not bytes stays where it is."""
        if opaque.kind == REFERENCE:
            return Far("a reference to an actor")
        kind = opaque.kind - FAR if opaque.kind >= FAR else opaque.kind
        return Far(_NAMES[kind]) if kind in _NAMES else self.restore(opaque)

    def _read(self, kind: int, handle: Handle) -> object:
        assert self._memory is not None  # fill has refused handles without it
        if kind == BYTES:
            return self._memory.read_bytes(handle)
        if kind == VIEW:
            return self._memory.view_bytes(handle)
        if kind == ARRAY:
            return self._memory.view_array(handle)
        return self._memory.open_frame(handle)

    def refuse(self, values: Sequence[Any]) -> None:
        """Give the entries back. Raises RemoteProtocolError: they have no place here."""
        try:
            self.fill(values)
        finally:
            self.drop_unread()
        raise RemoteProtocolError("handles beside a payload of a plain codec")

    def drop_unread(self) -> int:
        """Give back what was not read; how many entries that are."""
        unread = [entry for entry in self._entries if entry is not None]
        for entry in unread:
            if isinstance(entry, Handle) and self._memory is not None:
                self._memory.drop(entry)
        return len(unread)


def in_line(opaque: Opaque) -> object:
    """The value of contents in line. Raises DecodeError."""
    kind, data = opaque
    if kind == BYTES:
        return data
    if kind == VIEW:
        return memoryview(data)
    if kind == REFERENCE:
        raise DecodeError("a reference to an actor, for a reader that knows none")
    if kind not in (ARRAY, FRAME):
        raise DecodeError(f"opaque value of kind {kind} without a handle")
    array = array_from(data)
    return array if kind == ARRAY else private_frame(array)


def with_references(read: Callable[[bytes], object]) -> Restore:
    """As ``in_line``, for who knows actors: ``read`` makes a reference of what was written."""

    def near(opaque: Opaque) -> object:
        return read(opaque.data) if opaque.kind == REFERENCE else in_line(opaque)

    return near
