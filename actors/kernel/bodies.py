"""Large payloads between nodes: what of them travels in the message, what follows as its body.

The relays of router and ingress use this. On the way out nothing is joined or copied: the body is
made of views of the shared memory in which a value lies, and the lease ends with the last of them.
On the way in the bytes go straight into this process's own arena, from where they are lent on.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.kernel.links import MAX_HANDLES, read_handles
from actors.messages import ItemBody
from transport.errors import MemoryExhausted, RemoteProtocolError, TooLarge
from transport.payload import Encoded
from transport.shm.frames import Frame
from transport.shm.kinds import dtype_of
from transport.wire.handle import MAX_DIMENSIONS, MAX_DTYPE, handle_from_wire

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: A message of a stream carries up to this many bytes itself; more follow as a body.
LARGE = 128 << 10
#: Each part of a value up to this size travels in the message, as long as all of them fit.
_SMALL = 16 << 10
#: Beyond this size, in bytes, memory is taken page by page as it fills, whatever was announced.
_PAGED = 1 << 20
_MAX_SIZE = 2**48


class Outgoing(NamedTuple):
    """One value on its way to another node; ``payload`` and ``table`` are those of its ItemBody.

    ``parts`` follow as body ``body``, in order; without any the message is complete. Dropping them
    ends the leases. ``size`` counts against the credit.
    """

    payload: bytes | int
    table: list[Any]
    parts: list[memoryview]
    size: int
    body: int

    def message(self, stream: int, seq: int) -> ItemBody:
        """The message that goes before the body; ``seq`` -1 for a request."""
        return ItemBody(stream, seq, self.payload, self.table, self.size, self.body)


def outgoing(runtime: Runtime, payload: bytes, handles: list[Any], number: int) -> Outgoing | None:
    """How the payload and handles of a message from the bus go to another node, as body ``number``.

    None: they are small and lie in the message itself, which can be passed on as it is. The handles
    are used up, also by an error. Raises RemoteProtocolError for what are no handles, StaleHandle.
    """
    if not handles and len(payload) <= LARGE:
        return None
    shared = len(read_handles(handles))
    if not shared:
        carried = len(payload) + sum([len(_checked(each)[2]) for each in handles])
        if carried <= LARGE:
            return None
    sorter = _Sorter()
    first = sorter.put(payload)
    table: list[Any] = []
    memory = runtime.memory
    for index, each in enumerate(handles):
        try:
            if type(each) is list and len(each) == 3:
                dtype, shape, data = _checked(each)
            else:
                handle = handle_from_wire(each)
                dtype, shape = handle.dtype, list(handle.shape)
                # Small ones are copied without numpy.
                data = (
                    memory.read_bytes(handle)
                    if handle.size <= _SMALL
                    else memory.view_bytes(handle)
                )
        except BaseException:
            runtime.drop(handles[index + 1 :])
            raise
        table.append([dtype, shape, sorter.put(data)])
    return Outgoing(first, table, sorter.parts, sorter.size, number)


class _Sorter:
    """Decides for each part of a value, in order, whether it travels in the message."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.size = 0
        self._room = LARGE

    def put(self, data: bytes | memoryview) -> bytes | int:
        """The part itself, or its size when it follows in the body."""
        size = len(data)
        self.size += size
        if size <= _SMALL and size <= self._room:
            self._room -= size
            return bytes(data)
        self.parts.append(memoryview(data))
        return size


def _checked(entry: list[Any]) -> list[Any]:
    """``[dtype, shape, bytes]`` as it came from the bus."""
    dtype, shape, data = entry
    if type(dtype) is not str or type(shape) is not list or type(data) is not bytes:
        raise RemoteProtocolError("bytes in place of a handle are not [dtype, shape, bytes]")
    return entry


def in_line(handles: list[Any]) -> int:
    """The bytes of what stands in a message from another node in place of handles.

    Raises RemoteProtocolError unless each is ``[dtype, shape, bytes]``: a handle from there would
    name memory of this node, anybody's.
    """
    if len(handles) > MAX_HANDLES:
        raise _lie(f"has {len(handles)} parts, {MAX_HANDLES} are allowed")
    size = 0
    for each in handles:
        if type(each) is not list or len(each) != 3:
            raise _lie("refers to shared memory; handles never leave their node")
        size += len(_checked(each)[2])
    return size


class Incoming:
    """One value on its way in from another node: where its body goes, and what it is then.

    Made for each ItemBody. Raises RemoteProtocolError when what the message says of itself cannot
    be, TooLarge beyond this node's limits, MemoryExhausted when there is no room for it even
    outside the arena.
    """

    __slots__ = ("_entries", "_message", "_payload", "targets")

    def __init__(self, runtime: Runtime, message: ItemBody) -> None:
        _check(runtime, message)
        self._message = message
        payload = message.payload
        self._payload: bytes | memoryview = payload if isinstance(payload, bytes) else b""
        self._entries: list[bytes | memoryview | Frame] = []
        #: Where the bytes of the body go, in its order. Who fills them lets go of them afterwards.
        self.targets: list[memoryview] = []
        self._find_places(runtime)

    def _find_places(self, runtime: Runtime) -> None:
        """A place for each part that is to come: in the arena, all others together outside it."""
        payload, table = self._message.payload, self._message.table
        frames: list[Frame | None] = [
            _frame(runtime, data) if type(data) is int else None for _, _, data in table
        ]
        outside = payload if isinstance(payload, int) else 0
        for (_, _, data), frame in zip(table, frames, strict=True):
            if frame is None and type(data) is int:
                outside += data
        heap, at = _heap(outside), 0
        if isinstance(payload, int):
            self._payload, at = heap[:payload], payload
            self.targets.append(self._payload)
        for (_, _, data), frame in zip(table, frames, strict=True):
            if frame is not None:
                self.targets.append(frame.array.data)
                self._entries.append(frame)
            elif type(data) is int:
                place = heap[at : at + data]
                at += data
                self.targets.append(place)
                self._entries.append(place)
            else:
                self._entries.append(data)

    def finish(self) -> Encoded:
        """The body is whole: the value as it goes on, its handles held by us until they are lent or
        unexported. Called once, instead of ``drop``.
        """
        table: list[Any] = []
        for (dtype, shape, _), entry in zip(self._message.table, self._entries, strict=True):
            handle = entry.hand_on() if isinstance(entry, Frame) else None
            if handle is not None:
                table.append(handle._replace(dtype=dtype, shape=tuple(shape)))
            else:
                assert not isinstance(entry, Frame)  # none of them is empty
                table.append([dtype, shape, bytes(entry)])
        encoded = Encoded(bytes(self._payload), table, self._message.size)
        self.drop()
        return encoded

    def drop(self) -> None:
        """Let go of the memory; it is free once nobody fills it any more."""
        self.targets = []
        self._entries = []
        self._payload = b""


def _frame(runtime: Runtime, size: int) -> Frame | None:
    """Room in the arena; None for what is not worth it, and when there is none."""
    if size >= runtime.memory.threshold:
        with suppress(MemoryExhausted):  # outside the arena then, and on in line
            return runtime.memory.frames.new(size, "uint8")
    return None


def _heap(size: int) -> memoryview:
    """Memory outside the arena. One place for all parts of a value: many small ones, announced and
    never sent, must not take memory page by page either.
    """
    try:
        return memoryview(bytearray(size) if size <= _PAGED else mmap.mmap(-1, size))
    except (OSError, MemoryError) as error:
        raise MemoryExhausted(f"no memory for a value of {size} bytes: {error}") from error


def _check(runtime: Runtime, message: ItemBody) -> None:
    """Before any memory is taken: does the message agree with itself and with our limits?"""
    if len(message.table) > MAX_HANDLES:
        raise _lie(f"has {len(message.table)} parts, {MAX_HANDLES} are allowed")
    payload = message.payload
    near = len(payload) if isinstance(payload, bytes) else payload
    if near < (0 if isinstance(payload, bytes) else 1):
        raise _lie(f"has a payload of {near} bytes")
    far = sum([_part(entry) for entry in message.table])
    if near + far != message.size:
        raise _lie(f"counts as {message.size} bytes and has {near + far}")
    settings = runtime.settings
    # What is too small for the arena goes on in line, as the payload does.
    threshold = runtime.memory.threshold
    small = sum([data for _, _, data in message.table if type(data) is int and data < threshold])
    if near + small > settings.payload_limit or far > settings.arena_limit:
        raise TooLarge(
            f"a value from another node has a payload of {near} bytes and arrays of {far}, {small} "
            f"of them in small ones; this node takes {settings.payload_limit} (small ones "
            f"included) and {settings.arena_limit}: send less at once, or raise its payload_limit "
            "or arena_limit"
        )


def _part(entry: Any) -> int:
    """The size of one entry of the table, which must be that of its dtype and shape."""
    if type(entry) is not list or len(entry) != 3:
        raise _lie("has a part that is not [dtype, shape, bytes]")
    dtype, shape, data = entry
    if type(dtype) is not str or len(dtype) > MAX_DTYPE:
        raise _lie(f"has a part whose dtype is no text of at most {MAX_DTYPE} characters")
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise _lie(f"has a part whose shape is no list of at most {MAX_DIMENSIONS} lengths")
    if any(type(length) is not int or not 0 <= length <= _MAX_SIZE for length in shape):
        raise _lie("has a part whose shape has a length that is none")
    if type(data) is bytes:
        size = len(data)
    elif type(data) is int and 0 < data <= _MAX_SIZE:
        size = data
    else:
        raise _lie("has a part that is neither bytes nor a number of them")
    if math.prod(shape) * (dtype_of(dtype).itemsize if dtype else 1) != size:
        raise _lie(f"has a part of {size} bytes that is {dtype[:100]!r} of shape {shape}")
    return size


def _lie(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a value from another node {what}"[:500])
