"""Head of the frames on the one connection that carries all streams between two nodes of ours.

Eight bytes, big-endian: length of what follows (u32), kind (u8), body number (u24). The lengths are
bounded here by kind, so that a reader may take memory for what a head claims.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from transport.errors import RemoteProtocolError

HEAD: Final = 8
"""Bytes of a head."""

BATCH: Final = 1
"""A batch of messages, as on the bus: the sender's incarnation, then messages back to back."""
BODY: Final = 2
"""The next chunk of a body."""
ABORT: Final = 3
"""The body will not be completed; nothing follows the head."""
PING: Final = 4
"""Eight bytes that the peer sends back."""
PONG: Final = 5
"""The eight bytes of a ping."""

CHUNK: Final = 256 * 1024
"""Bytes of the largest chunk of a body."""
MAX_BATCH: Final = 8 << 20
"""Bytes of the largest batch: payloads beyond 128 KiB travel as bodies, so it is never full."""
MAX_NUMBER: Final = (1 << 24) - 1
"""Largest number of a body; the least is 1."""
PROBE: Final = 8
"""Bytes of a ping and of a pong."""

_HEAD: Final = Struct(">Q")
_BOUNDS: Final = {
    BATCH: (1, MAX_BATCH),
    BODY: (1, CHUNK),
    ABORT: (0, 0),
    PING: (PROBE, PROBE),
    PONG: (PROBE, PROBE),
}


def pack_mux(kind: int, length: int, number: int = 0) -> bytes:
    """The head of ``length`` bytes that follow; the caller keeps to the bounds of its kind."""
    return _HEAD.pack(length << 32 | kind << 24 | number)


def read_mux(head: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """``(length, kind, number)`` of the head that begins at ``at``.

    Raises RemoteProtocolError for an unknown kind, a length outside its bounds, and a body number
    where none belongs or none where one does.
    """
    (value,) = _HEAD.unpack_from(head, at)
    length, kind, number = value >> 32, value >> 24 & 0xFF, value & MAX_NUMBER
    bounds = _BOUNDS.get(kind)
    if bounds is None:
        raise RemoteProtocolError(f"a frame of kind {kind} between nodes has no meaning here")
    if not bounds[0] <= length <= bounds[1]:
        raise RemoteProtocolError(
            f"a frame of kind {kind} between nodes has {length} bytes; {bounds[0]} to {bounds[1]} "
            "are allowed"
        )
    if (number != 0) is not (kind in (BODY, ABORT)):
        raise RemoteProtocolError(f"a frame of kind {kind} between nodes has body number {number}")
    return length, kind, number
