"""User objects to bytes and shared-memory handles, and back: picks by size and by road.

Called by the runtime for every request and item. Values without buffers take the quick way through
the codec. Arrays and large buffers go into the arena when the peer reads our memory, in line when
it does not, when they are small, or when the arena is full. Where they went is not seen in their
type: ``docs/payloads.md`` lists what becomes of what.

numpy is imported when the first array is met, so that a process without arrays stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transport.errors import (
    DecodeError,
    FrameReleased,
    MemoryExhausted,
)
from transport.shm.beside import (
    ARRAY,
    BYTES,
    FAR,
    FRAME,
    INDEX,
    REFERENCE,
    VIEW,
    Restore,
    Table,
    in_line,
)
from transport.shm.frames import Frame
from transport.shm.inline import array_bytes, array_of
from transport.shm.kinds import dtype_text
from transport.shm.passing import received
from transport.wire.codec import (
    Annotated,
    Opaque,
    decode,
    encode,
    pack_careful,
    pack_plain,
    with_ints,
)
from transport.wire.handle import Handle
from transport.wire.plain import (
    PLAIN,
    decode_item,
    decode_value,
    encode_item,
    encode_value,
    transcode,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.shm.memory import Memory

_new: Final = tuple.__new__  # half the time of a NamedTuple's own
_FEW: Final = 64
_PLAIN: Final = frozenset({type(None), bool, int, float, str, list, dict, tuple})
_has_plain: Final = _PLAIN.issuperset
_BUFFERS: Final = frozenset({Frame, bytearray, memoryview})


class Encoded(NamedTuple):
    """One value as it travels."""

    data: bytes
    """Bytes of the codec."""
    handles: list[Any]
    """What the data refers to by index: handles, each held by us until it is lent or unexported, or
    ``[dtype, shape, bytes]`` after ``inline``."""
    size: int
    """Bytes of the data and of what stands behind the handles; this much credit it takes."""

    @property
    def carried(self) -> int:
        """Bytes in the message itself: data and contents in line, but no shared memory."""
        near = (each[2] for each in self.handles if type(each) is not Handle)
        return len(self.data) + sum(map(len, near))


class EncodedError(Encoded):
    """An error item that was encoded before it came to whoever sends it."""

    __slots__ = ()


PASS_FROM: Final = 256 << 10
"""What was received and has this many bytes goes on without a copy: below it, asking its owner for
a lease takes longer than copying."""

REQUEST: Final = "request"
"""The root of requests and request items, which stand bare where items stand in a map."""

NO_HANDLES: Final[list[Any]] = []
"""The table of values without handles; never changed."""


def encode_payload(
    value: object,
    *,
    codec: str = "msgpack",
    memory: Memory | None = None,
    native: bool = False,
    root: str = "item",
    packed: bytes | None = None,
) -> Encoded:
    """Encode one value; what it was made of may be changed afterwards, but for its frames.

    ``native``: the peer takes handles into ``memory``. ``packed``: what ``pack_plain`` has made of
    the value, if that was tried. Under a plain codec a value is an item, in its map, unless its
    ``root`` is ``REQUEST``; it takes neither arrays nor frames.

    Frames in it are handed on, which happens once in the life of a frame, whatever the road. Raises
    EncodeError with the path inside ``root``, FrameReleased for a frame that was handed on or
    released before or that stands in the value twice. An error leaves nothing in the arena and no
    frame handed on.
    """
    far = memory if native else None
    if root == REQUEST and codec == "msgpack":
        # Items are written in the loop of a worker, which has no time for a look; they are short.
        value = with_ints(value)
    if codec == "msgpack" and (
        # Most items are small dicts; the first line spares them the call.
        (type(value) is dict and len(value) <= _FEW and _has_plain(map(type, value.values())))
        or not _is_special(value, far)
    ):
        data = packed or pack_plain(value)
        if data is not None:
            return _new(Encoded, (data, NO_HANDLES, len(data)))
    if codec in PLAIN:
        plain = encode_value if root == REQUEST else encode_item
        data = plain(value, codec, root)
        return Encoded(data, NO_HANDLES, len(data))
    exporter = _Exporter(memory, far)
    try:
        if far is not None:
            value = _lifted(value, far.threshold)
        if codec == "msgpack":
            data = pack_careful(value, exporter.export, root)
        else:
            data = encode(value, codec=codec, export=exporter.export, root=root)
    except BaseException:
        exporter.undo()
        raise
    return exporter.finish(data)


def _is_special(value: Any, far: Memory | None) -> bool:
    """Whether an array or a large buffer is in sight, so that the quick way is not worth a try."""
    kind = type(value)
    if kind is dict:
        inner = value.values()
    elif kind is list or kind is tuple:
        inner = value
    elif kind is Annotated:
        return _is_special(value.data, far)
    else:
        return kind not in _PLAIN and (kind is not bytes or _is_large(value, far))
    if len(inner) > _FEW or _has_plain(map(type, inner)):
        return False
    return any(
        type(item) in _BUFFERS or (type(item) is bytes and _is_large(item, far)) for item in inner
    )


def _is_large(value: bytes, far: Memory | None) -> bool:
    return far is not None and len(value) >= far.threshold


class _Blob:
    """Large bytes that are to go into the arena, which the codec would write in line."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def _lifted(value: Any, threshold: int, depth: int = 1) -> Any:
    """``value`` with its large bytes marked, looked for at the top and one level below it."""
    kind = type(value)
    if kind is bytes:
        return _Blob(value) if len(value) >= threshold else value
    if kind is Annotated:
        data = _lifted(value.data, threshold, depth)
        fields = (value.id, value.event, value.comment, value.error)
        return value if data is value.data else Annotated(data, *fields)
    if not depth or kind not in (dict, list, tuple) or len(value) > _FEW:
        return value
    if kind is dict:
        if not any(type(item) is bytes and len(item) >= threshold for item in value.values()):
            return value
        return {key: _lifted(item, threshold, 0) for key, item in value.items()}
    if not any(type(item) is bytes and len(item) >= threshold for item in value):
        return value
    return kind(_lifted(item, threshold, 0) for item in value)


class _Exporter:
    """What one value puts beside its data. Nothing is final before ``finish``."""

    def __init__(self, memory: Memory | None, far: Memory | None) -> None:
        self._memory = memory
        self._far = far
        self._handles: list[Any] = []
        self._copies: list[Handle] = []
        self._frames: list[Frame] = []
        #: Frames of others that go on as they are, with the memory under them.
        self._passed: list[tuple[Handle, memoryview]] = []

    def export(self, value: Any) -> Opaque | None:
        """The codec asks what to do with an object that is no plain value."""
        kind = type(value)
        if kind is Frame:
            return self._frame(value)
        if kind is _Blob:
            return self._buffer(value.data, BYTES)
        if kind is memoryview:
            return self._passes(VIEW, value) or self._buffer(value, VIEW)
        if kind is bytearray:
            return self._buffer(value, VIEW)
        reference = getattr(kind, "__callhome_reference__", None)
        if reference is not None:
            return Opaque(REFERENCE, reference(value))
        array = array_of(value)
        if array is None:
            return None
        return self._passes(ARRAY, array) or self._array(array, ARRAY)

    def undo(self) -> None:
        """The value was not encoded: give back what was copied into the arena."""
        for handle in self._copies:
            self._memory.unexport(handle)  # type: ignore[union-attr]

    def finish(self, data: bytes) -> Encoded:
        """The value is encoded: its frames are handed on."""
        for frame in self._frames:
            self._hand_on(frame)
        for handle, base in self._passed:
            self._memory.passing.hold(handle, base)  # type: ignore[union-attr]
        if not self._handles:
            return Encoded(data, NO_HANDLES, len(data))
        size = len(data) + sum(handle.size for handle in self._handles)
        return Encoded(data, self._handles, size)

    def _hand_on(self, frame: Frame) -> None:
        handle = frame.handle
        if handle is None:
            frame.hand_on()
        elif self._memory is None or handle.owner != self._memory.owner:
            frame.release()  # of another arena: its memory is free when its last view is gone
        else:
            frame.hand_on()
            if self._far is None:
                self._memory.unexport(handle)

    def _placed(self, kind: int, handle: Handle) -> Opaque:
        self._handles.append(handle)
        return Opaque(kind + FAR, INDEX.pack(len(self._handles) - 1))

    def _copied(self, kind: int, handle: Handle) -> Opaque:
        self._copies.append(handle)
        return self._placed(kind, handle)

    def _passes(self, kind: int, value: NDArray[Any] | memoryview) -> Opaque | None:
        """What was received and is sent on whole needs no copy, while its owner lives."""
        far = self._far
        if far is None or value.nbytes < max(far.threshold, PASS_FROM):
            return None
        found = received(value)
        if found is None or not far.passable(found[0]):
            return None
        self._passed.append(found)
        return self._placed(kind, found[0])

    def _frame(self, frame: Frame) -> Opaque:
        if any(frame is other for other in self._frames):
            raise FrameReleased(
                "the same frame stands in this value twice; frames.copy() makes another"
            )
        handle = frame.handle
        self._frames.append(frame)
        if self._far is not None and handle is not None and handle.owner == self._far.owner:
            return self._placed(FRAME, handle)
        passed = self._passes(FRAME, frame.array) if handle is None else None
        return passed or self._array(frame.array, FRAME)

    def _buffer(self, value: bytes | bytearray | memoryview, kind: int) -> Opaque:
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if self._far is not None and size >= self._far.threshold:
            with suppress(MemoryExhausted):  # in line then
                return self._copied(kind, self._far.export_bytes(value))
        return Opaque(kind, bytes(value))

    def _array(self, array: NDArray[Any], kind: int) -> Opaque:
        text = dtype_text(array.dtype)  # refuses what cannot travel before anything is copied
        if self._far is not None and array.nbytes >= self._far.threshold:
            with suppress(MemoryExhausted):  # in line then
                return self._copied(kind, self._far.export_array(array))
        return Opaque(kind, array_bytes(array, text))


def inline(encoded: Encoded, memory: Memory) -> Encoded:
    """The same value with bytes in place of its handles, for a peer that cannot read our memory.

    The handles stay held: the caller unexports them. Raises StaleHandle when one was freed.
    """
    table = [
        [each.dtype, list(each.shape), memory.copy_out(each)] if type(each) is Handle else each
        for each in encoded.handles
    ]
    return Encoded(encoded.data, table, encoded.size)


def inline_kept(encoded: Encoded, memory: Memory) -> Encoded:
    """As ``inline``, for a request that came back: its handles are given up."""
    try:
        return inline(encoded, memory)
    finally:
        for each in encoded.handles:
            if type(each) is Handle:
                memory.unexport(each)


def decode_payload(
    data: bytes | memoryview,
    handles: Sequence[Any] = (),
    *,
    codec: str = "msgpack",
    memory: Memory | None = None,
    item: bool = False,
    near: Restore = in_line,
) -> Any:
    """The value of ``encode_payload``; ``handles`` are as they came from the bus. ``item``: it is
    none of a request. ``near`` is ``with_references`` for a reader who knows actors.

    A lease lasts until the last view of its array is gone. After an error all of them are given
    back. Raises DecodeError, RemoteProtocolError for handles that are none, StaleHandle.
    """
    if codec != "msgpack" and codec in PLAIN:
        if handles:
            Table(memory).refuse(handles)
        plain = decode_item if item else decode_value
        return plain(bytes(data), codec)
    if not handles:
        return decode(data, codec=codec, restore=near)
    table = Table(memory, near)
    try:
        table.fill(handles)
        value = decode(data, codec=codec, restore=table.restore)
    finally:
        unread = table.drop_unread()
    if unread:
        raise DecodeError(f"{unread} of {len(handles)} handles are not named by the data")
    return value


def transcode_request(
    data: bytes, handles: Sequence[Any], codec: str, to: str, memory: Memory | None
) -> bytes:
    """A request of ours in the plain codec ``to``; bytes in shared memory are read from there.

    Raises what ``decode_payload`` and ``transcode`` raise: EncodeError with the path of an array, a
    frame or a buffer. Afterwards no lease is held, whatever comes of it.
    """
    table = Table(memory)
    try:
        table.fill(handles)
        return transcode(data, codec, to, restore=table.restore_bytes)
    finally:
        table.drop_unread()
