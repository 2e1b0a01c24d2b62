"""Payload codecs: any value of the domain to bytes and back, in MessagePack or in JSON.

Called by ``transport.payload`` for requests and items, and by whoever needs a value of a user on a
wire. The domain is the same under both codecs and at any size; ``docs/payloads.md`` lists it.
Nothing is pickled.
"""

from __future__ import annotations

from typing import Final, Literal

from transport.errors import LocalProtocolError
from transport.wire import packed, tagged
from transport.wire.ints import with_ints
from transport.wire.packed import Restore, pack_careful, pack_plain
from transport.wire.values import MAX_DEPTH, MAX_INT_BITS, MAX_OPAQUE_KIND, Annotated, Opaque
from transport.wire.walk import Export

__all__ = [
    "CODECS",
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_OPAQUE_KIND",
    "Annotated",
    "CodecName",
    "Export",
    "Opaque",
    "Restore",
    "check_codec",
    "decode",
    "encode",
    "pack_careful",
    "pack_plain",
    "with_ints",
]

CodecName = Literal["msgpack", "json"]
CODECS: Final = ("msgpack", "json")
"""Names of the codecs as they travel in requests; the first is the default."""


def check_codec(name: str) -> CodecName:
    """The codec of this name; raises ``LocalProtocolError`` when there is none."""
    if name == "msgpack":
        return "msgpack"
    if name == "json":
        return "json"
    raise LocalProtocolError(f"codec {name!r} is unknown; use one of {', '.join(CODECS)}")


def encode(
    value: object, *, codec: str = "msgpack", export: Export | None = None, root: str = "item"
) -> bytes:
    """The bytes of ``value``.

    ``export`` is asked for every object that is no plain value (arrays, frames, ``bytearray``,
    ``memoryview`` and others), in the order in which they stand in the value, and answers an
    ``Opaque`` or None to refuse. It may raise ``EncodeError(reason)``; the path is put before the
    reason.

    Raises ``EncodeError`` for a value outside the domain; the text begins with the path of the
    offending value, where ``root`` is the name of the whole, then says what is wrong and what to
    send instead. Errors of ours that ``export`` raises otherwise pass unchanged. What was encoded
    no longer depends on ``value``.
    """
    if codec == "msgpack":
        return packed.pack(value, export, root)
    check_codec(codec)
    return tagged.dump(value, export, root)


def decode(
    data: bytes | memoryview, *, codec: str = "msgpack", restore: Restore | None = None
) -> object:
    """The value of ``encode``.

    ``restore`` turns each ``Opaque`` back, in the order of the data; without it an ``Opaque`` is an
    error. Memory taken is bounded by the length of ``data``, whatever its headers claim.

    Raises ``DecodeError`` for data that is cut, malformed, followed by more, too deep or outside
    the domain. Errors of ours that ``restore`` raises pass unchanged.
    """
    if type(data) is not bytes:
        data = bytes(data)
    if codec == "msgpack":
        return packed.unpack(data, restore)
    check_codec(codec)
    return tagged.load(data, restore)
