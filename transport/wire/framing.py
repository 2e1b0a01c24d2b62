"""Two-part frames: the envelope of a request, and all that travels on a call-home socket.

A frame is a head of 24 bytes (three big-endian u64: header length, body length, checksum), the
header and the body. Nothing in it states its kind: that follows from which of the two is empty.
The checksum is XXH3-64 over header and body; 0 means "do not check", and we write 0.

``Reader`` is the machine behind all readers of this package: bytes in as they come, frames out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from typing import Final, Generic, TypeVar

from transport.errors import RemoteProtocolError, SpecError

Buffer = bytes | bytearray | memoryview

HEADER: Final = 24
"""Bytes of the head of a frame."""
LIMIT: Final = 32 << 20
"""Default bound of a frame in bytes, head included; Dynamo's own for requests."""

_HEAD: Final = Struct(">QQQ")
#: Up to this size one copy of all that came in makes cheaper slices than a view of it.
_SMALL: Final = 65_536

_Frame = TypeVar("_Frame")


def pack_head(h: int, b: int, checksum: int = 0) -> bytes:
    """The head of a frame with ``h`` bytes of header and ``b`` bytes of body."""
    return _HEAD.pack(h, b, checksum)


def frame(header: bytes = b"", body: bytes = b"") -> bytes:
    """A whole frame, for what is small; larger bodies are written after ``pack_head`` instead."""
    return _HEAD.pack(len(header), len(body), 0) + header + body


def kind(header: bytes, body: bytes) -> str:
    """``header_only``, ``data_only``, ``header_and_data`` or ``empty``."""
    if header:
        return "header_and_data" if body else "header_only"
    return "data_only" if body else "empty"


class Reader(ABC, Generic[_Frame]):
    """Cuts a byte stream into frames, however it was cut before; one object serves one connection.

    Frames that are complete before a fault are never lost with it: ``feed`` returns them, ``fault``
    is set, and the next call raises it.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit: Final = limit
        """Bytes that one frame may have; a longer one is refused when its head is seen."""
        self.most = 0
        """Frames that one ``feed`` may return, the rest waiting; 0 is as many as there are."""
        self.fault: RemoteProtocolError | None = None
        """What the peer has done wrong, if it has; nothing is read after it."""
        self._pending = bytearray()
        self._need = 0

    def feed(self, data: Buffer) -> list[_Frame]:
        """The frames that are complete with ``data``, which is not kept.

        Raises RemoteProtocolError for a frame that breaks the rules, before memory is taken for it.
        """
        if self.fault is not None:
            raise self.fault
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._need:
                return []
            data = pending
        source = bytes(data) if len(data) <= _SMALL else memoryview(data)
        found: list[_Frame] = []
        try:
            used = self._parse(source, found)
        except RemoteProtocolError as error:
            self.fault = error
            self._pending = bytearray()
            if found:
                return found
            raise
        if used or data is not pending:
            self._pending = bytearray(source[used:])
        return found

    def rest(self) -> bytes:
        """What came in and belongs to no returned frame, for whoever reads on in another way."""
        return bytes(self._pending)

    def take(self, least: int) -> tuple[bytearray, int] | None:
        """A frame that has begun and lacks at least ``least`` bytes: what came of it, and the size
        that it will have at least.

        The caller gathers it and feeds it whole; nothing else may be fed before. None for less.
        """
        if not self._pending or self._need - len(self._pending) < least:
            return None
        begun, self._pending = self._pending, bytearray()
        return begun, self._need

    def eof(self) -> None:
        """The peer has ended its side; raises RemoteProtocolError in the middle of a frame."""
        if self.fault is not None:
            raise self.fault
        if self._pending:
            raise RemoteProtocolError(
                f"the peer has ended its side in the middle of a frame: {len(self._pending)} of "
                f"at least {self._need} bytes came"
            )

    @abstractmethod
    def _parse(self, source: bytes | memoryview, found: list[_Frame]) -> int:
        """Append the complete frames of ``source``, set ``_need`` to the bytes that the next one
        has at least, and return how many bytes were used."""

    def _refuse(self, size: int, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{what} of {size} bytes is over the limit of {self.limit} bytes here",
            limit=str(self.limit),
        )


class FrameReader(Reader[tuple[bytes, bytes]]):
    """Reads two-part frames as ``(header, body)``.

    ``check``: refuse a checksum that is neither 0 nor that of the contents. Raises SpecError when
    that is asked for and the package for it is missing.
    """

    def __init__(self, limit: int = LIMIT, check: bool = False) -> None:
        super().__init__(limit)
        self._checksum = load_checksum() if check else None

    def _parse(self, source: bytes | memoryview, found: list[tuple[bytes, bytes]]) -> int:
        unpack, limit, checksum_of = _HEAD.unpack_from, self.limit, self._checksum
        at, size, most = 0, len(source), self.most
        while size - at >= HEADER:
            h, b, checksum = unpack(source, at)
            middle = at + HEADER + h
            end = middle + b
            if end - at > limit:
                raise self._refuse(end - at, "a frame")
            if end > size:
                self._need = end - at
                return at
            header, body = bytes(source[at + HEADER : middle]), bytes(source[middle:end])
            if checksum and checksum_of is not None and checksum_of(header, body) != checksum:
                raise RemoteProtocolError(
                    f"checksum {checksum:016x} of a frame of {end - at} bytes is not that of its "
                    "contents"
                )
            found.append((header, body))
            at = end
            if len(found) == most:
                break
        self._need = HEADER
        return at


def read_frame(data: bytes, check: bool = False) -> tuple[bytes, bytes]:
    """``(header, body)`` of bytes that are exactly one frame, as the payload of a request is.

    Raises RemoteProtocolError when the frame is cut or followed by more, or when its checksum is
    wrong and ``check`` asks for it; SpecError as ``FrameReader``.
    """
    size = len(data)
    if size < HEADER:
        raise RemoteProtocolError(f"{size} bytes are no frame; its head alone has {HEADER}")
    h, b, checksum = _HEAD.unpack_from(data)
    if HEADER + h + b != size:
        raise RemoteProtocolError(
            f"a frame of {HEADER + h + b} bytes by its head stands in {size} bytes"
        )
    header, body = data[HEADER : HEADER + h], data[HEADER + h :]
    if check and checksum and load_checksum()(header, body) != checksum:
        raise RemoteProtocolError(
            f"checksum {checksum:016x} of a frame of {size} bytes is not that of its contents"
        )
    return header, body


def load_checksum() -> Callable[[bytes, bytes], int]:
    """XXH3-64 over header and body, from the package that is only needed for this.

    Raises SpecError when it is not installed.
    """
    try:
        from xxhash import xxh3_64
    except ImportError as error:
        raise SpecError(
            "checksums of frames are to be checked, but xxhash is not installed; "
            "pip install callhome[checksum], or turn the check off"
        ) from error

    def checksum(header: bytes, body: bytes) -> int:
        state = xxh3_64(header)
        state.update(body)
        return state.intdigest()

    return checksum
