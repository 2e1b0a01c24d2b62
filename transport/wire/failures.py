"""Errors in the form that Dynamo gives them, in error items and in prologues, and back.

Its readers know a fixed set of pairs of class and reason; a pair that they do not know becomes an
internal error there, whatever else it says. Older ones read ``error_type`` alone, so both are sent.

What the handler of a worker has raised is an ``EngineError``, whatever its class, so that nobody
takes it for a fault of the road; for the same reason a ``ConnectionError`` of a handler of ours is
sent as an internal error, since Dynamo shuns a worker for ``Disconnected``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from transport.errors import (
    CallHomeError,
    EngineError,
    RemoteProtocolError,
    described,
    from_wire,
)

_MAX_TEXT: Final = 16_384
_MAX_CHAIN: Final = 16


class _Told(NamedTuple):
    """How an error is told to Dynamo."""

    type: str | dict[str, str]
    cls: str
    reason: str


_INTERNAL: Final = _Told({"Backend": "Unknown"}, "Internal", "backend.unknown")
_WRONG: Final = _Told({"Backend": "InvalidArgument"}, "InvalidRequest", "backend.invalid_argument")
#: By the code of the error or of the nearest of its base classes.
_BY_CODE: Final = {
    "engine": _INTERNAL,
    "cancelled": _Told({"Backend": "Cancelled"}, "Cancelled", "backend.cancelled"),
    "deadline": _Told(
        {"Backend": "ResponseTimeout"}, "DeadlineExceeded", "backend.response_timeout"
    ),
    "connection.lost": _Told({"Backend": "Disconnected"}, "Unavailable", "backend.disconnected"),
    "worker.unavailable": _Told("WorkerUnavailable", "Unavailable", "backend.worker_unavailable"),
    "no_workers": _Told("WorkerUnavailable", "Unavailable", "backend.worker_unavailable"),
    "overloaded": _Told("ResourceExhausted", "CapacityExhausted", "capacity.worker_overloaded"),
    "memory.exhausted": _Told(
        "ResourceExhausted", "CapacityExhausted", "capacity.worker_overloaded"
    ),
    "outbox.full": _Told("ResourceExhausted", "CapacityExhausted", "capacity.worker_overloaded"),
    "payload.size": _Told("InvalidArgument", "PayloadTooLarge", "request.payload_too_large"),
    "payload.decode": _Told("InvalidArgument", "InvalidRequest", "request.invalid"),
    "protocol.remote": _Told("InvalidArgument", "InvalidRequest", "request.invalid"),
    "unsupported": _Told("InvalidArgument", "NotImplemented", "runtime.not_implemented"),
    "error": _Told("Unknown", "Internal", "runtime.unclassified"),
}
_INVALID_TYPES: Final = frozenset({"ValueError", "TypeError"})

#: Classes of Dynamo; those that are no EngineError here, with the code of ours.
_CLASSES: Final = {
    "Cancelled": "cancelled",
    "CapacityExhausted": "overloaded",
    "RateLimited": "overloaded",
    "PayloadTooLarge": "payload.size",
    "NotImplemented": "unsupported",
    "DeadlineExceeded": "engine",
    "Unavailable": "engine",
    "InvalidRequest": "engine",
    "Internal": "engine",
    "Unauthenticated": "engine",
    "PermissionDenied": "engine",
    "NotFound": "engine",
    "UnsupportedMedia": "engine",
    "BackendProtocol": "engine",
}
#: Reasons that tell of the worker and not of its handler.
_REASONS: Final = {
    "backend.unavailable": "worker.unavailable",
    "backend.worker_unavailable": "worker.unavailable",
    "backend.engine_shutdown": "worker.unavailable",
    "backend.stream_incomplete": "connection.lost",
}
#: Legacy types with their class; those of backends have the same names.
_TYPES: Final = {
    "Unknown": "Internal",
    "InvalidArgument": "InvalidRequest",
    "CannotConnect": "Unavailable",
    "Disconnected": "Unavailable",
    "Unavailable": "Unavailable",
    "WorkerUnavailable": "Unavailable",
    "EngineShutdown": "Unavailable",
    "StreamIncomplete": "Unavailable",
    "ConnectionTimeout": "DeadlineExceeded",
    "ResponseTimeout": "DeadlineExceeded",
    "Cancelled": "Cancelled",
    "ResourceExhausted": "CapacityExhausted",
}
_TYPE_REASONS: Final = {
    "Cancelled": "backend.cancelled",
    "ResourceExhausted": "capacity.exhausted",
    "WorkerUnavailable": "backend.worker_unavailable",
    "EngineShutdown": "backend.engine_shutdown",
    "StreamIncomplete": "backend.stream_incomplete",
}
#: What a requester must not try elsewhere: its reason is kept through a prologue.
_FINAL_REASONS: Final = frozenset(
    {"request.cancelled", "backend.cancelled", "capacity.exhausted", "capacity.pool_exhausted"}
)
#: Causes that a prologue may have and that say more than that the worker was not reached.
_KEPT: Final = frozenset({"overloaded", "worker.unavailable", "protocol.remote"})
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*): (.*)", re.DOTALL)


def error_fields(error: CallHomeError) -> dict[str, Any]:
    """The ``error`` of an error item, or the ``typed_error`` of a prologue, for this error."""
    told, text = _BY_CODE["error"], str(error)
    for cls in type(error).__mro__:
        found = _BY_CODE.get(getattr(cls, "code", ""))
        if found is not None:
            told = found
            break
    if isinstance(error, EngineError):
        name = error.remote_type
        if name in _INVALID_TYPES:
            told = _WRONG
        if _RAISED.fullmatch(f"{name}: "):
            text = f"{name}: {error.message}"
    return _fields(told, text)


def fields_of(error: Mapping[str, Any] | str) -> dict[str, Any]:
    """The ``error`` of an error item for what an engine has put there: Dynamo wants a map with a
    text in it."""
    if isinstance(error, str):
        return _fields(_INTERNAL, error)
    if type(error.get("message")) is str:
        return dict(error)
    try:
        text = json.dumps(error, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = "the engine sent an error item"
    return {**_fields(_INTERNAL, text), **error, "message": clean_text(text)}


def _fields(told: _Told, text: str) -> dict[str, Any]:
    text = clean_text(text)
    return {
        "error_type": told.type,
        "class": told.cls,
        "reason": told.reason,
        "message": text,
        "diagnostic": text,
    }


def clean_text(text: str) -> str:
    """A text of anybody's as it may travel: not endless, and without half surrogate pairs."""
    text = text[:_MAX_TEXT]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def error_from(fields: object, otherwise: str = "") -> CallHomeError:
    """The error that a foreign worker tells of, in an item of its stream.

    ``otherwise`` is the text when it has none. What makes no sense is a RemoteProtocolError.
    """
    if isinstance(fields, str):
        return EngineError(fields[:_MAX_TEXT] or otherwise, type="error item")
    if not isinstance(fields, Mapping):
        return EngineError(otherwise or "the worker sent an error item", type="error item")
    cls, reason = _class_and_reason(fields)
    texts = (fields.get(name) for name in ("message", "diagnostic", "reason"))
    text = next((each for each in texts if type(each) is str and each), "") or otherwise
    text = clean_text(text) or "the worker sent an error item"
    details = {"class": cls[:100], "reason": reason[:100]}
    code = _REASONS.get(reason) or _CLASSES.get(cls)
    if code is None:
        return RemoteProtocolError(f"an error of the unknown class {cls[:100]!r}: {text}")
    if code != EngineError.code:
        return from_wire(code, text, details)
    raised = _RAISED.fullmatch(text)
    name, text = raised.groups() if raised else ("error item", text)
    return EngineError(text, type=name, **details)


def _class_and_reason(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The newer pair if it is there, or what the legacy type says; neither means internal."""
    cls, reason = fields.get("class"), fields.get("reason")
    if cls is not None:
        return cls if type(cls) is str else described(cls), reason if type(reason) is str else ""
    kind = _legacy_type(fields)
    return _TYPES.get(kind, "Internal"), _TYPE_REASONS.get(kind, "")


def _legacy_type(fields: Mapping[str, Any]) -> str:
    kind = fields.get("error_type")
    if isinstance(kind, Mapping):
        kind = kind.get("Backend")
    return kind if type(kind) is str else ""


def start_error(words: str, typed: object) -> CallHomeError:
    """The error of a prologue that says that the worker has not started the stream.

    It counts as a worker that was not reached, which may be tried elsewhere, with the typed cause
    in its details. A cause is kept that says that the request is wrong in itself or not to be tried
    again, or what state the worker is in. A class that nobody knows is a RemoteProtocolError.
    """
    cause, reason, details = _cause_of(typed)
    if cause is not None:
        wrong = details.get("class") == "InvalidRequest"
        if wrong or reason in _FINAL_REASONS or cause.code in _KEPT:
            return cause
    text = clean_text(words)
    return from_wire(
        "worker.unavailable",
        f"the worker has not started the stream: {text or 'it does not say why'}",
        details,
    )


def _cause_of(typed: object) -> tuple[CallHomeError | None, str, dict[str, str]]:
    """The error that decides, out of a chain of causes; its reason; and details of the first."""
    first: CallHomeError | None = None
    details: dict[str, str] = {}
    for _ in range(_MAX_CHAIN):
        if not isinstance(typed, Mapping):
            break
        known = "class" in typed or _legacy_type(typed) in _TYPES
        if known:
            error = error_from(typed)
            _, reason = _class_and_reason(typed)
            if reason in _FINAL_REASONS:
                return error, reason, error.details
            if first is None:
                first = error
                details = {**error.details, "cause": error.message[:_MAX_TEXT]}
        typed = typed.get("caused_by")
    return first, "", details
