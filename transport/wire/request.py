"""Frames of the request plane: path, headers and payload one way, short replies the other way.

Both ends are pooled TCP connections on which requests are pipelined; the k-th reply belongs to the
k-th request. An empty reply means "dispatched or queued".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.wire.framing import LIMIT, Buffer, Reader

MAX_PATH: Final = 1024
"""Bytes of the longest path that a reader takes."""
MAX_HEADERS: Final = 65_535
"""Bytes of the headers as JSON."""
MAX_REPLY: Final = 65_536
"""Bytes of the longest reply that a requester takes."""
OVERLOADED: Final = "Server overloaded:"
UNAVAILABLE: Final = "Server unavailable:"
"""How the two replies begin that Dynamo's requesters do not take for an acknowledgement."""

_LENGTH: Final = Struct(">H")
_LONG: Final = Struct(">I")
_MAX_PAYLOAD: Final = 0xFFFF_FFFF
#: Bytes of what is no reply that an error shows.
_SHOWN: Final = 16
#: What speaks first, or answers a request of ours, by its first bytes.
_OTHERS: Final = (
    (b"HTTP/", "HTTP"),
    (b"SSH-", "SSH"),
    (b"\x15\x03", "TLS"),
    (b"\x16\x03", "TLS"),
    (b"220 ", "SMTP or FTP"),
)
_quoted: Final = json.encoder.encode_basestring_ascii


class RequestFrame(NamedTuple):
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    payload: bytes
    """One two-part frame: ``framing.read_frame`` takes it apart."""


def json_object(values: Mapping[str, str]) -> str:
    """A map of texts as compact JSON; several times quicker than the general encoder."""
    return "{" + ",".join([f"{_quoted(key)}:{_quoted(text)}" for key, text in values.items()]) + "}"


def pack_request(
    path: str, headers: Mapping[str, str], payload_parts: Sequence[Buffer]
) -> list[Buffer]:
    """A whole request in parts for one ``sendmsg``; the payload's are the caller's, not copied.

    Raises LocalProtocolError when path, headers or payload do not fit into the frame. Whether the
    peer takes so much is for the caller to ask: ``request_size`` of the result.
    """
    name = path.encode()
    if not 0 < len(name) <= MAX_PATH:
        raise LocalProtocolError(
            f"a request path has 1 to {MAX_PATH} bytes, and this one has {len(name)}"
        )
    told = json_object(headers).encode()
    if len(told) > MAX_HEADERS:
        raise LocalProtocolError(
            f"headers of {len(told)} bytes as JSON; {MAX_HEADERS} fit into a request"
        )
    size = request_size(payload_parts)
    if size > _MAX_PAYLOAD:
        raise LocalProtocolError(f"a payload of {size} bytes; {_MAX_PAYLOAD} fit into a request")
    lengths = _LENGTH.pack(len(name)), _LENGTH.pack(len(told))
    return [
        b"".join((lengths[0], name, lengths[1], told, _LONG.pack(size))),
        *payload_parts,
    ]


def request_size(parts: Sequence[Buffer]) -> int:
    """Bytes of parts together."""
    return sum(part.nbytes if type(part) is memoryview else len(part) for part in parts)


def pack_reply(data: bytes) -> bytes:
    """A reply; empty ``data`` is the acceptance of a request."""
    return _LONG.pack(len(data)) + data


class RequestReader(Reader[RequestFrame]):
    """Reads requests: what a listener for them feeds with all that comes in.

    Headers that are empty or no JSON map of texts count as none. Raises RemoteProtocolError for a
    path that is empty, too long or no UTF-8, and for a frame over the limit.
    """

    def _parse(self, source: bytes | memoryview, found: list[RequestFrame]) -> int:
        at, size, most = 0, len(source), self.most
        while at < size:
            end = self._end(source, at, size)
            if end < 0:
                return at
            path = at + 2
            headers = path + _LENGTH.unpack_from(source, at)[0] + 2
            payload = headers + _LENGTH.unpack_from(source, headers - 2)[0] + 4
            found.append(
                RequestFrame(
                    _path(bytes(source[path : headers - 2])),
                    _headers(bytes(source[headers : payload - 4])),
                    bytes(source[payload:end]),
                )
            )
            at = end
            if len(found) == most:
                break
        return at

    def _end(self, source: bytes | memoryview, at: int, size: int) -> int:
        """Where the frame ends, or -1 when it is not whole; its lengths are checked as they
        come."""
        self._need = need = 2
        if size - at < need:
            return -1
        path = _LENGTH.unpack_from(source, at)[0]
        if not 0 < path <= MAX_PATH:
            raise RemoteProtocolError(
                f"a request path has 1 to {MAX_PATH} bytes, and the peer's has {path}"
            )
        self._need = need = 4 + path
        if size - at < need:
            return -1
        headers = _LENGTH.unpack_from(source, at + need - 2)[0]
        self._need = need = 8 + path + headers
        if size - at < need:
            return -1
        payload = _LONG.unpack_from(source, at + need - 4)[0]
        self._need = need = need + payload
        if need > self.limit:
            raise self._refuse(need, "a request")
        return at + need if size - at >= need else -1


def _path(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a request path that is no UTF-8: {raw[:80]!r}") from error


def _headers(raw: bytes) -> dict[str, str]:
    if raw == b"{}":
        return {}
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    if type(found) is not dict or {*map(type, found.values())} - {str}:
        return {}
    return found


def speaks(first: bytes) -> str:
    """What a peer that is none of ours has answered with, by the first bytes that came of it."""
    for beginning, name in _OTHERS:
        if first.startswith(beginning):
            return f"it speaks {name}"
    return f"it answers with {first!r}"


class ReplyReader(Reader[bytes]):
    """Reads replies: what a requester feeds with all that comes back."""

    def __init__(self, limit: int = MAX_REPLY) -> None:
        super().__init__(limit)

    def _parse(self, source: bytes | memoryview, found: list[bytes]) -> int:
        at, size, most = 0, len(source), self.most
        while size - at >= 4:
            end = at + 4 + _LONG.unpack_from(source, at)[0]
            if end - at > self.limit:
                first = bytes(source[at : at + _SHOWN])
                raise RemoteProtocolError(f"{speaks(first)}, which is no reply to a request")
            if end > size:
                self._need = end - at
                return at
            found.append(bytes(source[at + 4 : end]))
            at = end
            if len(found) == most:
                break
        self._need = 4
        return at


__all__ = [
    "LIMIT",
    "MAX_HEADERS",
    "MAX_PATH",
    "MAX_REPLY",
    "ReplyReader",
    "RequestFrame",
    "RequestReader",
    "json_object",
    "pack_reply",
    "pack_request",
    "request_size",
]
