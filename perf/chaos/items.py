"""Items whose every byte follows from stream and number, so that each can be checked whole."""

from __future__ import annotations

import functools
import random
import struct
from typing import TYPE_CHECKING, Any, Final

from perf.chaos.plan import LARGEST, MIB

if TYPE_CHECKING:
    from transport.shm.frames import Frames

_HEAD: Final = struct.Struct("<QQ")


class Wrong(Exception):
    """An item is not the one that was due, or not what it was; the text says how."""


@functools.cache
def _pattern() -> bytes:
    return random.Random(5).randbytes(MIB + LARGEST)


def data(stream: int, number: int, size: int) -> bytes:
    """The contents of one item: stream and number, then bytes that no other item is likely to
    have.
    """
    begin = (stream * 7_919 + number * 104_729) % MIB
    head = _HEAD.pack(stream, number)[:size]
    return head + _pattern()[begin : begin + size - len(head)]


def value(stream: int, number: int, size: int, kind: str, frames: Frames) -> Any:
    """``data`` as bytes, as an array, or in a frame that is written in place."""
    content = data(stream, number, size)
    if kind == "bytes":
        return content
    import numpy as np

    flat = np.frombuffer(content, np.uint8)
    if kind == "array":
        return flat
    frame = frames.new(size, np.uint8)
    frame.array[:] = flat
    return frame


def check_value(found: Any, stream: int, number: int, size: int, kind: str) -> Any:
    """Raises Wrong unless ``found`` is what ``value`` made; returns the array that holds it, if it
    is one.
    """
    content = data(stream, number, size)
    if kind == "bytes":
        if type(found) is not bytes or found != content:
            raise Wrong(f"item {number}: {_shown(found)} instead of {size} bytes")
        return None
    import numpy as np

    from transport.shm.frames import Frame

    if (type(found) is Frame) != (kind == "frame"):
        raise Wrong(f"item {number}: {type(found).__name__} instead of a value of kind {kind}")
    array = found.array if kind == "frame" else found
    if array.dtype != np.uint8 or not np.array_equal(array, np.frombuffer(content, np.uint8)):
        raise Wrong(f"item {number}: {_shown(array)} instead of {size} bytes in shared memory")
    return array


def _shown(found: Any) -> str:
    """Whose item it looks like."""
    try:
        head = bytes(found[: _HEAD.size])
        owner = _HEAD.unpack(head) if len(head) == _HEAD.size else "?"
        return f"{type(found).__name__} of {len(found)} bytes that says {owner}"
    except (TypeError, ValueError):
        return repr(found)[:80]


def item(play: dict[str, Any], number: int, frames: Frames) -> dict[str, Any]:
    """One item of the stream that ``play`` describes (a request, see ``request_of``)."""
    stream = play["s"]
    return {
        "s": stream,
        "n": number,
        "v": value(stream, number, play["size"], play["kind"], frames),
    }


def last(stream: int | None, count: int) -> dict[str, Any]:
    """What ends every stream: how many items there were. A clean end without it is a loss."""
    return {"s": stream, "end": count}
