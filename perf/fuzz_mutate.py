"""Changes that make wrong bytes out of right ones, as the fuzzer needs them. Pure.

A change is chosen so that it gets past the first check of a decoder more often than noise would: a
length that claims too much, a head of another type, a word of JSON in the place of another, two
inputs sewn together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

MAX_SIZE: Final = 32_768
"""Bytes of the longest input that is made."""

_HEADS: Final = bytes((*range(0xC0, 0xE0), 0x80, 0x81, 0x8F, 0x90, 0x91, 0x9F, 0xA0, 0xA1, 0xBF))
_EDGES: Final = bytes((0, 1, 0x0A, 0x20, 0x7F, 0x80, 0xFE, 0xFF))
_WORDS: Final = (
    b"null", b"true", b"false", b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"[]", b"{}", b'""',
    b'"a"',     b"18446744073709551616", b'"\\ud800"', b'"\\u0000"', b"[[]]", b'{"a":1}', b'"\xff"',
    b"9" * 5000, b'{"$callhome":"tuple","v":[]}', b'{"$callhome":"bytes","v":"?"}',
    b'{"$callhome":"opaque","kind":0,"v":""}',
)  # fmt: skip
_WORD: Final = re.compile(rb'"(?:[^"\\]|\\.){0,64}"|-?\d+(?:\.\d+)?|true|false|null|\[\]|\{\}')
_OPENINGS: Final = (
    (b"\x91", b""), (b"\x81\xa1a", b""), (b"\x92\xc7\x00\x01", b""), (b"\xdc\x00\x01", b""),
    (b"\xdd\x00\x00\x00\x01", b""), (b"\x81", b"\xc0"), (b"[", b"]"), (b'{"a":', b"}"),
    (b'{"$callhome":"tuple","v":[', b"]}"), (b"\xdd\x00\xff\xff\xff", b""),
)  # fmt: skip
_DEPTHS: Final = (1, 2, 16, 127, 128, 129, 1000, 1025, 3000)


def mutate(data: bytes, other: bytes, random: Random) -> bytes:
    """``data`` with one to four changes; ``other`` is what it may be sewn together with."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(_CHANGES)(data, other, random)
    return data[:MAX_SIZE]


def pieces(data: bytes, random: Random) -> list[bytes]:
    """The same bytes cut anywhere, as a socket would bring them; empty pieces among them."""
    if len(data) <= 64 and random.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randint(1, 8)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def smaller(data: bytes, fails: Callable[[bytes], bool], tries: int = 1500) -> bytes:
    """The shortest input that was found to fail in the same way, after at most ``tries`` looks."""
    size = max(1, len(data) // 2)
    while tries > 0:
        at, shrunk = 0, False
        while at < len(data) and tries > 0:
            tries -= 1
            less = data[:at] + data[at + size :]
            if less != data and fails(less):
                data, shrunk = less, True
            else:
                at += size
        if size == 1 and not shrunk:
            break
        size = max(1, size // 2)
    return data


def _flip(data: bytes, other: bytes, random: Random) -> bytes:
    if not data:
        return b"\x00"
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _edge(data: bytes, other: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes((random.choice(_EDGES),)) + data[at + 1 :]


def _type(data: bytes, other: bytes, random: Random) -> bytes:
    """Another MessagePack head in the place of one, if there is one."""
    heads = [at for at, byte in enumerate(data[:512]) if byte >= 0x80]
    at = random.choice(heads) if heads else random.randint(0, len(data))
    return data[:at] + bytes((random.choice(_HEADS),)) + data[at + 1 :]


def _cut(data: bytes, other: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.choice((1, 1, 2, 4, 8, 64)) :]


def _end(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _insert(data: bytes, other: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.randbytes(random.choice((1, 2, 4, 16))) + data[at:]


def _again(data: bytes, other: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    part = data[start : start + random.choice((1, 4, 16, 256))]
    return data[:start] + part * random.choice((2, 2, 3, 20)) + data[start:]


def _sew(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _behind(data: bytes, other: bytes, random: Random) -> bytes:
    return data + other


def _length(data: bytes, other: bytes, random: Random) -> bytes:
    """A number that claims something, where one may stand."""
    width = random.choice((1, 2, 2, 4, 4, 8))
    top = 1 << 8 * width
    value = random.choice(
        (0, 1, len(data), len(data) + 1, top // 2 - 1, top // 2, top - 1, 1 << 20)
    )
    at = random.randint(0, max(0, min(len(data), 256) - width))
    return data[:at] + (value % top).to_bytes(width, "big") + data[at + width :]


def _claim(data: bytes, other: bytes, random: Random) -> bytes:
    """A MessagePack head that claims more than there is."""
    head = random.choice(b"\xdd\xdf\xdb\xc6\xc9\xdc\xde\xda\xc5\xc8")
    width = 4 if head in b"\xdd\xdf\xdb\xc6\xc9" else 2
    claimed = random.choice((len(data), 0xFFFF, 0xFFFF_FFFF, 0x0FFF_FFFF))
    at = random.randint(0, len(data))
    told = bytes((head,)) + (claimed % (1 << 8 * width)).to_bytes(width, "big")
    return data[:at] + told + data[at:]


def _nest(data: bytes, other: bytes, random: Random) -> bytes:
    before, after = random.choice(_OPENINGS)
    depth = random.choice(_DEPTHS)
    at = random.choice((0, random.randint(0, len(data))))
    return data[:at] + before * depth + data[at:] + after * depth


def _word(data: bytes, other: bytes, random: Random) -> bytes:
    """Another word of JSON in the place of one."""
    words = list(_WORD.finditer(data[:4096]))
    if not words:
        return _insert(data, other, random)
    found = random.choice(words)
    return data[: found.start()] + random.choice(_WORDS) + data[found.end() :]


_CHANGES: Final[Sequence[Callable[[bytes, bytes, Random], bytes]]] = (
    _flip, _flip, _edge, _type, _type, _cut, _end, _insert, _again, _sew, _behind, _length,
    _length, _claim, _nest, _word, _word,
)  # fmt: skip
