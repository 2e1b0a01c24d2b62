"""Long lists of integers in one piece: token ids of a prompt, most of what large requests hold.

MessagePack writes and reads them number by number, twice 0.8 ms for 40,000 ids. Here they are
little-endian 32-bit words, which C code of the standard library makes and reads several times
faster. The reader gets a list of ``int`` as always.

``marshal`` serves as a packer that also tells the types: it writes a plain ``int`` of 32 bits as
``i`` and four bytes, and anything else, a ``bool`` among them, otherwise. Nothing is ever loaded
with it, and its bytes do not travel: if it wrote integers in another form one day, no list would
look like one of integers, and all would go number by number.
"""

from __future__ import annotations

import marshal
import re
import sys
from array import array
from typing import Any, Final

from msgpack import ExtType, packb, unpackb

from transport.errors import DecodeError

INTS: Final = 10
"""The code of their MessagePack extension."""

_SHORTEST: Final = 1_024
"""Items of a list from which it is worth a look."""
_HEADS: Final = re.compile(rb"\xc8..\x0a|\xc9....\x0a", re.DOTALL)
"""Where one may begin: an extension whose length takes 16 or 32 bits."""
_FEW: Final = 64
_HEAD: Final = 5
_WORD: Final = 5
_VERSION: Final = 2
"""Of marshal: the last without references among values."""


class Ints:
    """A list of integers as it travels, in the place of the list."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def with_ints(value: Any) -> Any:
    """``value`` with its long lists of integers replaced, looked for at the top and one level below
    it; the same object when there are none.
    """
    kind = type(value)
    if kind is list:
        return value if len(value) < _SHORTEST else _packed(value) or value
    if kind is not dict or len(value) > _FEW:
        return value
    found: dict[Any, Any] = {}
    for key, item in value.items():
        if type(item) is list and len(item) >= _SHORTEST:
            ints = _packed(item)
            if ints is not None:
                found[key] = ints
    return {**value, **found} if found else value


def _packed(items: list[Any]) -> Ints | None:
    """The list as words, or None when it holds anything but integers of 32 bits."""
    if type(items[0]) is not int or type(items[-1]) is not int:
        return None
    try:
        # A value that marshal cannot write, or one that is too deep for it.
        data = marshal.dumps(items, _VERSION)
    except ValueError:
        return None
    count = len(items)
    # By induction: the first item begins behind the head, and one that begins with "i" is five
    # bytes long. So there are no other items, and each is an exact int.
    if len(data) != _HEAD + _WORD * count or data[_HEAD::_WORD] != b"i" * count:
        return None
    words = bytearray(4 * count)
    for byte in range(4):
        words[byte::4] = data[_HEAD + 1 + byte :: _WORD]
    return Ints(bytes(words))


def read_ints(data: bytes) -> list[int]:
    """The list that was written. Raises DecodeError for bytes that are no whole words."""
    words = array("i")
    if words.itemsize != 4:  # no platform that Python runs on today
        raise DecodeError("integers in one piece need an int of 32 bits on this machine")
    if len(data) % 4:
        raise DecodeError(f"integers in one piece: {len(data)} bytes are no whole words")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()


def without_ints(data: bytes, codec: str) -> bytes:
    """A payload with every list number by number, for an adapter: it knows no extensions of ours.

    Bytes that hold no list in one piece, or are none of ours, come back as they are.
    """
    if codec != "msgpack" or len(data) < _SHORTEST or _HEADS.search(data) is None:
        return data
    opened = 0

    def extension(code: int, inner: bytes) -> object:
        nonlocal opened
        if code != INTS:
            return ExtType(code, inner)
        opened += 1
        return read_ints(inner)

    try:
        value = unpackb(data, ext_hook=extension, strict_map_key=False)
        spelt: bytes = packb(value)
    except Exception:
        return data
    return spelt if opened else data
