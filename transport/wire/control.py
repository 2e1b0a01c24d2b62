"""Small frames of a call-home socket that carry no data: handshake, prologue, stop, kill, sentinel.

All are HeaderOnly and JSON, whatever the payload codec. What is packed here is a whole frame; what
is read here is the header of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from transport.errors import CallHomeError, RemoteProtocolError
from transport.wire.failures import clean_text, error_fields, start_error
from transport.wire.framing import frame

MAX_CONTROL: Final = 128 * 1024
"""Bytes of the longest of these frames; an error prologue carries a text."""

STOP: Final = frame(b'"stop"')
"""Requester: stop generating; what is under way may come."""
KILL: Final = frame(b'"kill"')
"""Requester: abandon the stream now."""
SENTINEL: Final = frame(b'"sentinel"')
"""The sender's side of the socket ends here, and properly."""

_CONTROLS: Final = {b'"stop"': "stop", b'"kill"': "kill", b'"sentinel"': "sentinel"}
_encode: Final = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


class Handshake(NamedTuple):
    """The first frame on a call-home socket, from the worker that dials."""

    subject: str
    """The rendezvous key that the requester has made for this half of the stream."""
    stream_type: str
    """``response`` or ``request``; ``mux`` for a connection of many streams."""
    extra: dict[str, str]
    """Further texts of peers that say more, as ``incarnation``."""


def read_control(header: bytes) -> str:
    """``stop``, ``kill`` or ``sentinel``; raises RemoteProtocolError for anything else."""
    known = _CONTROLS.get(header)
    if known is not None:
        return known
    value = _json(header, "a control frame")
    if type(value) is not str or value not in _CONTROLS.values():
        raise RemoteProtocolError(f"a control frame that has no meaning: {header[:80]!r}")
    return value


def pack_handshake(subject: str, stream_type: str, **extra: str) -> bytes:
    """The handshake frame; ``extra`` is for peers of ours, others ignore it."""
    return frame(_encode({"subject": subject, "stream_type": stream_type, **extra}).encode())


def read_handshake(header: bytes) -> Handshake:
    """The handshake; raises RemoteProtocolError for anything else."""
    value = _json(header, "a handshake")
    if type(value) is not dict:
        raise RemoteProtocolError(f"a handshake that is no object: {header[:80]!r}")
    texts = {key: text for key, text in value.items() if type(text) is str}
    subject, stream_type = texts.pop("subject", ""), texts.pop("stream_type", "")
    if not subject or not stream_type:
        raise RemoteProtocolError(f"a handshake without subject or stream_type: {header[:80]!r}")
    return Handshake(subject, stream_type, texts)


def pack_prologue(
    error: CallHomeError | str | None = None, typed: Mapping[str, Any] | None = None
) -> bytes:
    """The prologue frame: the worker's word, before all data, on whether the stream has started.

    An error in words may have its typed form beside it; one of our classes has it of its own.
    """
    if isinstance(error, CallHomeError):
        typed = typed or error_fields(error)
        error = str(typed["message"])  # Dynamo shows these words and no others
    fields: dict[str, Any] = {"error": None if error is None else clean_text(error)}
    if typed is not None:
        fields["typed_error"] = typed
    return frame(_encode(fields).encode())


def read_prologue(header: bytes) -> CallHomeError | None:
    """None when the stream has started, else why it has not: ``failures.start_error``.

    Raises RemoteProtocolError for what is no prologue.
    """
    value = _json(header, "a prologue")
    if type(value) is not dict:
        raise RemoteProtocolError(f"a prologue that is no object: {header[:80]!r}")
    words = value.get("error")
    if words is None:
        return None
    if type(words) is not str:
        raise RemoteProtocolError(f"a prologue whose error is no text: {header[:80]!r}")
    return start_error(words, value.get("typed_error"))


def _json(header: bytes, what: str) -> Any:
    try:
        return json.loads(header)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{what} that is no JSON: {header[:80]!r}") from error
