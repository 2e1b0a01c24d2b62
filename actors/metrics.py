"""Plain counters of one actor: integers on the hot path, read as a dict when somebody asks."""

from __future__ import annotations

from transport.errors import CallHomeError, Cancelled, EngineError, PayloadError, qualified_name

#: Kinds of errors that are counted apart; a handler that raises new classes all the time must not
#: fill memory.
_KINDS = 256


class Counters:
    """What one actor has done since it started; written by the kernel, read by ``callhome ps
    --counters``.
    """

    __slots__ = ("bytes", "cancelled", "errors", "items", "refused", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.items = 0
        #: Payload bytes and array bytes of items sent.
        self.bytes = 0
        self.cancelled = 0
        self.refused = 0
        self.errors: dict[str, int] = {}

    def failed(self, error: BaseException) -> None:
        """Count a stream that ended with ``error``, by its kind."""
        if isinstance(error, Cancelled):
            return  # counted where the cancel arrived
        kind = _kind(error)
        if kind not in self.errors and len(self.errors) >= _KINDS:
            kind = "other"
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def to_dict(self) -> dict[str, int]:
        """Counter by name; errors as ``errors.KIND``, with payload errors as
        ``errors.serialization``.
        """
        plain = {
            "requests": self.requests,
            "items": self.items,
            "bytes": self.bytes,
            "cancelled": self.cancelled,
            "refused": self.refused,
        }
        return plain | {f"errors.{kind}": count for kind, count in sorted(self.errors.items())}


def _kind(error: BaseException) -> str:
    if isinstance(error, PayloadError):
        return "serialization"
    if isinstance(error, EngineError) and error.remote_type:
        return f"engine.{error.remote_type}"
    if isinstance(error, CallHomeError):
        return error.code
    return f"engine.{qualified_name(type(error))}"
