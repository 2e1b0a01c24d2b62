"""Every failure that can cross a wire, each with a stable code.

    CallHomeError
    ├── ProtocolError
    │   ├── LocalProtocolError   this program broke the rules: a bug, or a bad argument of ours
    │   └── RemoteProtocolError  the peer broke the rules
    ├── ConnectionLost           the road to the peer is gone: process died, socket cut
    │   ├── PeerLost             the process at the other end is gone; names signal or exit code
    │   └── CallBackFailed       the worker took the request and did not call home
    ├── DeadlineExceeded         a limit ran out: connect, first item, gap or the whole call
    ├── Cancelled                the stream was stopped or killed; carries the reason
    ├── EngineError              the handler raised; carries remote type, message and traceback
    ├── PayloadError
    │   ├── EncodeError          a value outside the domain; names the path of that value
    │   ├── DecodeError          bytes that are no value of the domain
    │   └── TooLarge             a payload over the limit of the road; names both sizes
    ├── MemoryExhausted          the shared-memory arena is full
    ├── FrameReleased            a frame was used after it was handed on or released
    ├── StaleHandle              a handle whose slot has been given to somebody else
    ├── AttachFailed             shared memory of the peer cannot be mapped here
    ├── OutboxFull               a peer does not read; its outbox is at its bound
    └── SpecError                a spec or setting is wrong; the text names the key

``actors.errors`` adds the failures of routing and of actors under the same root. An error crosses a
wire as ``to_wire(error)`` and comes back as the same class through ``from_wire``; a code that
nobody here knows becomes a plain ``CallHomeError`` that keeps the code.
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar

_MAX_TEXT = 16_384
_MAX_NAME = 100


class CallHomeError(Exception):
    """Root of all errors of callhome.

    ``code`` is stable and travels on wires; ``retry`` says whether the same request may succeed
    elsewhere or later; ``details`` are strings that travel with the error.
    """

    code: ClassVar[str] = "error"
    retry: ClassVar[bool] = False

    def __init__(self, message: str = "", **details: str) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message or type(self).__name__


class ProtocolError(CallHomeError):
    """The rules of a wire or of the API were broken."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This program broke the rules: a bug or a bad argument on our side."""

    code = "protocol.local"


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules: what it sent has no meaning here."""

    code = "protocol.remote"


class ConnectionLost(CallHomeError):
    """The road to the peer is gone before the stream had ended."""

    code = "connection.lost"
    retry = True


class PeerLost(ConnectionLost):
    """The process at the other end is gone; the text names signal or exit code."""

    code = "connection.peer"


class CallBackFailed(ConnectionLost):
    """The worker took the request and then did not call home; the text names it and the limit."""

    code = "connection.callback"


class DeadlineExceeded(CallHomeError):
    """A time limit ran out; the text says which one and how long it was, in seconds."""

    code = "deadline"


class Cancelled(CallHomeError):
    """The stream was stopped or killed before its end; the text carries the reason."""

    code = "cancelled"


class EngineError(CallHomeError):
    """The handler raised. ``details``: ``type`` (remote class), ``traceback`` (text)."""

    code = "engine"

    @property
    def remote_type(self) -> str:
        """Qualified class name of the exception that the handler raised."""
        return self.details.get("type", "")

    @property
    def remote_traceback(self) -> str:
        """Traceback text as formatted in the handler's process; may be empty."""
        return self.details.get("traceback", "")


class PayloadError(CallHomeError):
    """A payload could not be turned into bytes or back."""

    code = "payload"


class EncodeError(PayloadError):
    """A value outside the documented domain; the text names its path, as in ``request["a"][3]``."""

    code = "payload.encode"


class DecodeError(PayloadError):
    """Bytes that are no value of the domain: cut, malformed, too deep or too large."""

    code = "payload.decode"


class TooLarge(PayloadError):
    """A payload over the limit of the road that it was to take; the text names both sizes."""

    code = "payload.size"


class MemoryExhausted(CallHomeError):
    """The shared-memory arena has no room for a frame of this size."""

    code = "memory.exhausted"
    retry = True


class FrameReleased(CallHomeError):
    """A frame was used, yielded or sent after it had been handed on or released."""

    code = "frame.released"


class StaleHandle(CallHomeError):
    """A handle whose slot has been freed and perhaps given to somebody else."""

    code = "frame.stale"


class AttachFailed(CallHomeError):
    """A peer's shared-memory segment cannot be mapped in this process."""

    code = "frame.attach"
    retry = True


class OutboxFull(CallHomeError):
    """The peer does not read and its outbox is at its bound of messages or bytes."""

    code = "outbox.full"
    retry = True


class SpecError(CallHomeError):
    """A spec, a setting or an option is wrong; the text names the key and what is allowed."""

    code = "spec"


def _all_subclasses(cls: type[CallHomeError]) -> list[type[CallHomeError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _all_subclasses(child)
    return found


def error_classes() -> dict[str, type[CallHomeError]]:
    """Every error class that is loaded, by its code."""
    return {cls.code: cls for cls in reversed(_all_subclasses(CallHomeError))}


def to_wire(error: BaseException) -> list[object]:
    """``[code, message, details]`` of an error; a foreign exception becomes an ``engine`` error."""
    if isinstance(error, CallHomeError):
        code = error.details.get("code", error.code) if type(error) is CallHomeError else error.code
        details = {key: value[:_MAX_TEXT] for key, value in error.details.items()}
        return [code, error.message[:_MAX_TEXT], details]
    text = text_of(error)[:_MAX_TEXT]
    return [EngineError.code, text, {"type": qualified_name(type(error))}]


def from_wire(code: str, message: str, details: dict[str, str]) -> CallHomeError:
    """The error of ``to_wire``; an unknown code becomes a ``CallHomeError`` that keeps the code."""
    cls = error_classes().get(code)
    if cls is None:
        return CallHomeError(message, **{**details, "code": code})
    return cls(message, **details)


def read_error(values: list[Any]) -> CallHomeError:
    """The error that a peer ended a stream with; one that makes no sense is the peer's fault."""
    try:
        code, message, details = values
        details = {_word(key): _word(value) for key, value in details.items()}
        return from_wire(_word(code), _word(message), details)
    except (TypeError, ValueError, AttributeError):
        text = described(values)
        return RemoteProtocolError(f"a stream ended with an error that cannot be read: {text}")


def _word(value: object) -> str:
    return value if type(value) is str else described(value)


class _Described(reprlib.Repr):
    """Never deeper or longer than a person reads: a value of a peer may be nested so deep that
    ``repr`` has no stack left for it."""

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring])


_described = _Described()
_described.maxlevel = 4
_described.maxstring = _described.maxother = 100


def described(value: object, most: int = 200) -> str:
    """A value that a peer has sent, in at most ``most`` characters, for an error that refuses it;
    it never fails on a plain value.
    """
    return _described.repr(value)[:most]


def shown(name: str, most: int = _MAX_NAME) -> str:
    """A name that somebody else has chosen, as an error shows it: in quotes, and not all of it,
    ``most`` characters.
    """
    return repr(name if len(name) <= most else f"{name[:most]}…")


def text_of(error: BaseException) -> str:
    """An exception's words, or its class's name when it has none or raises when asked for them."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def qualified_name(cls: type) -> str:
    """``module.Class``, or the bare name of a builtin."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
