"""Payloads that any other reader takes: no extensions, no tags, and the frames that Dynamo wraps.

Engines encode with it when their peer is no node of ours, routers and clients decode what such a
worker sends. The domain is JSON's, with bytes under MessagePack; what is outside it is refused with
its path, never bent into shape, but for tuples, which become lists, and NumPy scalars.

An item is an ``Annotated`` map: ``{"data": …}`` and the fields that are set. In a response it is in
a wrapper, ``{"data": item, "complete_final": false}``, which an ingress puts around the bytes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from msgpack import Unpacker

from transport.errors import (
    CallHomeError,
    DecodeError,
    EncodeError,
    LocalProtocolError,
    RemoteProtocolError,
)
from transport.wire import packed, tagged
from transport.wire.bare import Far, write_bare
from transport.wire.codec import decode, encode
from transport.wire.failures import error_fields, error_from, fields_of
from transport.wire.packed import Restore
from transport.wire.values import FIELDS, Annotated, Opaque, annotated_fault

PLAIN: Final = frozenset({"plain.msgpack", "plain.json"})
"""Names of the plain codecs, as an ``Open`` carries them."""

_BASES: Final = {
    "msgpack": "msgpack",
    "json": "json",
    "plain.msgpack": "msgpack",
    "plain.json": "json",
}
_PACK_WRAP: Final = (b"\x82\xa4data", b"\xaecomplete_final\xc2")
_JSON_WRAP: Final = (b'{"data":', b',"complete_final":false}')
_AROUND: Final = {
    codec: _PACK_WRAP if base == "msgpack" else _JSON_WRAP for codec, base in _BASES.items()
}
_FINAL: Final = {
    "msgpack": b"\x81\xaecomplete_final\xc3",
    "json": b'{"complete_final":true}',
}
_dump: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
#: Without it no item is an error; and where every one of it is nothing, none either.
_ERROR: Final = {
    "msgpack": (b"\xa5error", b"\xa5error\xc0"),
    "json": (b'"error"', b'"error":null'),
}
#: How an item under MessagePack begins that has nothing but data.
_BARE: Final = b"\x81\xa4data"
_ITEM: Final = {"msgpack": (_BARE, b""), "json": (b'{"data":', b"}")}


def plain_of(codec: str) -> str:
    """The plain codec with the bytes of this one, which may be plain itself."""
    return f"plain.{base_of(codec)}"


def base_of(codec: str) -> str:
    """``msgpack`` or ``json``; raises LocalProtocolError for a codec that nobody knows."""
    base = _BASES.get(codec)
    if base is None:
        raise LocalProtocolError(f"codec {codec!r} is unknown; use one of {', '.join(_BASES)}")
    return base


# Values.


def encode_value(value: object, codec: str, root: str = "request") -> bytes:
    """The bytes of a bare value, as requests and request items travel.

    Raises EncodeError naming the path inside ``root`` of what the peer cannot take.
    """
    return write_bare(value, base_of(codec) == "json", root)


def decode_value(data: bytes, codec: str) -> Any:
    """The value of bytes that a foreign peer has sent; raises DecodeError when they are none."""
    return tagged.load_bare(data) if base_of(codec) == "json" else packed.unpack_bare(data)


# Items: the Annotated map.


def encode_item(item: object, codec: str, root: str = "item") -> bytes:
    """The Annotated map of an item, which may be an ``Annotated``; fields that are None are left
    out. An error gets the event and the shape without which Dynamo does not see it.

    Raises EncodeError as ``encode_value``, with the path inside the item itself.
    """
    base = base_of(codec)
    if type(item) is not Annotated:
        before, after = _ITEM[base]
        return before + encode_value(item, codec, root) + after
    fault = annotated_fault(item)
    if fault is not None:
        raise EncodeError(f"{root}.{fault[0]}: {fault[1]}")
    if item.error is not None:
        fields = fields_of(item.error)
        item = Annotated(item.data, item.id, "error", item.comment, fields)
    return _join(item, base, root)


def _join(item: Annotated, base: str, root: str) -> bytes:
    fields = [
        (name, encode_value(value, base, f"{root}.{name}"))
        for name in FIELDS
        if (value := getattr(item, name)) is not None
    ]
    if base == "json":
        return (
            b"{" + b",".join([b'"%b":%b' % (name.encode(), data) for name, data in fields]) + b"}"
        )
    heads = [(bytes([0xA0 | len(name)]) + name.encode(), data) for name, data in fields]
    return bytes([0x80 | len(heads)]) + b"".join([head + data for head, data in heads])


def decode_item(data: bytes, codec: str) -> Any | Annotated:
    """The item of an Annotated map: its bare data when no other field is set.

    A field that is None counts as missing, one that nobody knows is ignored. Raises DecodeError.
    """
    found = decode_value(data, codec)
    if type(found) is not dict:
        raise DecodeError(f"an item that is {type(found).__name__} and no Annotated map")
    if len(found) == 1 and "data" in found:
        return found["data"]
    fields = [found.get(name) for name in FIELDS]
    if fields[1:] == [None] * 4:
        return fields[0]
    item = Annotated(*fields)
    fault = annotated_fault(item)
    if fault is not None:
        raise DecodeError(f"an Annotated map whose {fault[0]} is {fault[1]}")
    return item


def error_item(error: CallHomeError, codec: str) -> bytes:
    """The Annotated map that tells a foreign requester of an error; it never fails."""
    item = Annotated(event="error", error=error_fields(error))
    return _join(item, base_of(codec), "item")


def error_of(annotated: Annotated) -> CallHomeError | None:
    """What an error item tells of, None for another item. A handler's failure is an EngineError,
    with its class in ``type``; what the worker itself says of its state has the class of that."""
    if not annotated.is_error:
        return None
    return error_from(annotated.error, ", ".join(annotated.comment or ()))


def is_error_item(data: bytes, codec: str) -> bool:
    """Whether the bytes of an Annotated map are an error item; what is malformed is none.

    Almost every item is cleared without being decoded.
    """
    if data.startswith(_BARE):
        return False
    sign, nothing = _ERROR[base_of(codec)]
    if sign not in data or data.count(sign) == data.count(nothing):
        return False
    try:
        item = decode_item(data, codec)
    except DecodeError:
        return False
    return type(item) is Annotated and item.is_error


# The wrapper around items in a response.


def around(codec: str) -> tuple[bytes, bytes]:
    """What ``wrap`` puts before and after an item, for who writes it without a copy."""
    return _AROUND[codec]


def wrap(item_bytes: bytes, codec: str) -> bytes:
    """The body of a response frame with this item."""
    before, after = _AROUND[codec]
    return before + item_bytes + after


def final(codec: str) -> bytes:
    """The body of the frame that ends a response cleanly."""
    return _FINAL[base_of(codec)]


def unwrap(body: bytes, codec: str) -> bytes | None:
    """The item in the body of a response frame; None when it is the clean end.

    In the usual order of keys the item is cut out unseen: it may turn out to be malformed when it
    is decoded. Raises DecodeError for a body that is no wrapper, RemoteProtocolError for one that
    has neither an item nor the end, or both.
    """
    before, after = _AROUND[codec]
    if body.startswith(before) and body.endswith(after):
        item = body[len(before) : -len(after)]
        # In JSON a key may hide behind the item, which is a map.
        if item and (item[-1] == 0x7D or base_of(codec) == "msgpack"):
            return item
    base = base_of(codec)
    if body == _FINAL[base]:
        return None
    found, ends = _unwrap_json(body) if base == "json" else _unwrap_packed(body)
    if ends is (found is None):
        return found
    told = "both an item and" if ends else "neither an item nor"
    raise RemoteProtocolError(f"a response frame that has {told} the end of the stream")


def _unwrap_json(body: bytes) -> tuple[bytes | None, bool]:
    found = tagged.load_bare(body)
    if type(found) is not dict:
        raise DecodeError(f"a response frame that is {type(found).__name__} and no map")
    data, ends = found.get("data"), found.get("complete_final")
    if type(ends) is not bool:
        raise DecodeError("a response frame whose complete_final is no bool")
    return None if data is None else _dump(data).encode(), ends


def _unwrap_packed(body: bytes) -> tuple[bytes | None, bool]:
    """Cuts the item out without decoding it."""
    packed.unpack_bare(body)  # whole, bounded in depth and memory, and nothing behind it
    reader = Unpacker(max_buffer_size=len(body), strict_map_key=False)
    reader.feed(body)
    item: bytes | None = None
    ends: object = None
    try:
        for _ in range(reader.read_map_header()):
            key = reader.unpack()
            start = reader.tell()
            if key == "complete_final":
                ends = reader.unpack()
                continue
            reader.skip()
            if key == "data":
                item = body[start : reader.tell()]
    except Exception as error:
        raise DecodeError(f"a response frame that is no map: {error}") from error
    if type(ends) is not bool:
        raise DecodeError("a response frame whose complete_final is no bool")
    return None if item == b"\xc0" else item, ends


# From one codec to another.


def transcode(
    payload: bytes, codec: str, to: str, *, root: str = "request", restore: Restore | None = None
) -> bytes:
    """A bare value in another codec, ours or plain, for a peer that does not take the first.

    ``restore`` reads what stands opaque in a value of ours; without it a plain codec refuses that
    by its path. Raises DecodeError for bytes of the first that are none, EncodeError for a value
    that the second does not have.
    """
    if codec == to:
        return payload
    if codec in PLAIN:
        value = decode_value(payload, codec)
    else:
        value = decode(payload, codec=codec, restore=restore or _far)
    return encode_value(value, to, root) if to in PLAIN else encode(value, codec=to, root=root)


def _far(opaque: Opaque) -> object:
    return Far()
