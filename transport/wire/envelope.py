"""The control message of a request: the header of its envelope, always JSON.

A requester packs it, an ingress reads it. Fields that nobody here knows are ignored, so that later
additions do no harm; an absent codec means JSON, since its sender predates the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from transport.errors import DecodeError, LocalProtocolError, RemoteProtocolError, TooLarge
from transport.wire.request import json_object

MAX_ENVELOPE: Final = 128 * 1024
"""Bytes of the longest control message."""
TCP: Final = "tcp_server"
"""Transport of a stream that has a socket for each of its halves: what Dynamo speaks."""
MUX: Final = "callhome_mux_v1"
"""Transport of a stream on the one connection between two nodes of ours."""

_CODECS: Final = frozenset({"json", "msgpack"})
_REQUESTS: Final = frozenset({"single_in", "many_in"})
_RESPONSES: Final = frozenset({"single_out", "many_out"})
_quoted: Final = json.encoder.encode_basestring_ascii
_encode: Final = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_TEXT: Final = frozenset({str})


class Info(NamedTuple):
    """Where to dial for one half of a stream."""

    transport: str
    """``TCP``, ``MUX`` or what somebody else has."""
    info: Mapping[str, Any]
    """``address``, ``subject``, ``context``, ``stream_type`` and what the transport adds."""

    def text(self, field: str) -> str:
        """A field that has to be there; raises RemoteProtocolError when it is not, or no text."""
        value = self.info.get(field)
        if type(value) is not str or not value:
            raise RemoteProtocolError(f"connection info without {field}")
        return value

    def number(self, field: str) -> int:
        """As ``text``, for a number of at most 64 bits that is not negative."""
        value = self.info.get(field)
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise RemoteProtocolError(f"connection info without the number {field}")
        return value


class Envelope(NamedTuple):
    """What a request says about itself, beside its payload."""

    id: str
    request_type: str
    """``single_in`` or ``many_in``."""
    response_type: str
    codec: str
    """``json`` or ``msgpack``: of the request, of its items and of the response."""
    connection: Info
    request_connection: Info | None = None
    """Where request items come from; required for ``many_in``."""
    metadata: Mapping[str, str] = {}
    """Of the user, and keys of ours beside."""
    frontend_send_ts_ns: int | None = None


def pack_envelope(e: Envelope) -> bytes:
    """The control message.

    Raises TooLarge when it is over ``MAX_ENVELOPE``, LocalProtocolError when it holds what is no
    Unicode text.
    """
    parts = [
        f'{{"id":{_quoted(e.id)},"request_type":"{e.request_type}",'
        f'"response_type":"{e.response_type}","payload_codec":"{e.codec}",'
        f'"connection_info":{_pack_info(e.connection)}'
    ]
    if e.metadata:
        metadata = e.metadata
        if len(metadata) > 1:
            metadata = dict(sorted(metadata.items()))
        parts.append(f',"metadata":{json_object(metadata)}')
    if e.frontend_send_ts_ns is not None:
        parts.append(f',"frontend_send_ts_ns":{e.frontend_send_ts_ns}')
    if e.request_connection is not None:
        parts.append(f',"request_stream_connection_info":{_pack_info(e.request_connection)}')
    parts.append("}")
    text = "".join(parts)
    if "\\ud" in text:
        _check_unicode(e)
    data = text.encode()
    if len(data) > MAX_ENVELOPE:
        raise TooLarge(
            f"a request's control message of {len(data)} bytes; {MAX_ENVELOPE} are allowed: "
            "send less metadata"
        )
    return data


def _check_unicode(e: Envelope) -> None:
    """Half of a surrogate pair passes our encoder and no strict reader, who would not answer."""
    for text in (e.id, *e.metadata, *e.metadata.values()):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise LocalProtocolError(
                f"{text[:40]!a} in the id or the metadata of a request has a lone surrogate, which "
                "is no Unicode text"
            ) from None


def _pack_info(info: Info) -> str:
    # JSON in JSON: the transport's name selects who parses the inner one.
    return f'{{"transport":{_quoted(info.transport)},"info":{_quoted(_encode(info.info))}}}'


def read_envelope(header: bytes) -> Envelope:
    """The control message of a request.

    Raises DecodeError for what is no JSON or too long, RemoteProtocolError for JSON of the wrong
    shape; Dynamo counts the one as ``deserialization`` and the other as ``invalid_message``.
    """
    if len(header) > MAX_ENVELOPE:
        raise DecodeError(
            f"a request's control message of {len(header)} bytes; {MAX_ENVELOPE} are allowed"
        )
    fields = _object(_json(header, "a request's control message"), "a request's control message")
    request_type = _one_of(fields, "request_type", _REQUESTS)
    connection = _read_info(fields, "connection_info")
    if connection is None:
        raise RemoteProtocolError("a request without connection_info: there is nobody to call home")
    request_connection = _read_info(fields, "request_stream_connection_info")
    if request_type == "many_in" and request_connection is None:
        raise RemoteProtocolError("a many_in request without request_stream_connection_info")
    sent = fields.get("frontend_send_ts_ns")
    return Envelope(
        _text(fields.get("id"), "id"),
        request_type,
        _one_of(fields, "response_type", _RESPONSES),
        "json"
        if fields.get("payload_codec") is None
        else _one_of(fields, "payload_codec", _CODECS),
        connection,
        request_connection,
        _metadata(fields.get("metadata")),
        sent if type(sent) is int and 0 <= sent < 1 << 64 else None,
    )


def _json(data: bytes | str, what: str) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise DecodeError(f"{what} is nested too deep") from None
    except ValueError as error:
        raise DecodeError(f"{what} is no JSON: {str(error)[:200]}") from error


def _object(value: object, what: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise RemoteProtocolError(f"{what} is {type(value).__name__} and no object")
    return value


def _text(value: object, field: str) -> str:
    if type(value) is not str:
        raise RemoteProtocolError(f"a request whose {field} is no text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RemoteProtocolError(f"a request whose {field} is no Unicode text") from None
    return value


def _one_of(fields: dict[str, Any], field: str, allowed: frozenset[str]) -> str:
    value = _text(fields.get(field), field)
    if value not in allowed:
        raise RemoteProtocolError(
            f"a request whose {field} is {value[:40]!r}; {' or '.join(sorted(allowed))} is wanted"
        )
    return value


def _read_info(fields: dict[str, Any], field: str) -> Info | None:
    value = fields.get(field)
    if value is None:
        return None
    outer = _object(value, field)
    inner = _text(outer.get("info"), f"{field}.info")
    return Info(
        _text(outer.get("transport"), f"{field}.transport"),
        _object(_json(inner, f"{field}.info"), f"{field}.info"),
    )


def maps_text(metadata: Mapping[Any, Any]) -> bool:
    """Whether metadata maps text to text; a look at each type, for what comes over the bus."""
    return _TEXT.issuperset(map(type, (*metadata, *metadata.values())))


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    found = _object(value, "metadata")
    for key, text in found.items():
        _text(key, "metadata key")
        _text(text, f"metadata {key[:40]!r}")
    return found
