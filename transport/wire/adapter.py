"""Payloads that the user reads and writes: the seam towards peers with formats of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from transport.errors import LocalProtocolError


class PayloadAdapter(Protocol):
    """Speaks the payloads of peers that are not ours; ``EngineSpec(adapter=…)`` names one.

    An engine calls it instead of the codec. What its methods raise ends the stream as an error. It
    gets bytes and nothing that goes through shared memory: that is refused with Unsupported. Under
    a plain codec its bytes are the whole Annotated map of the item.
    """

    def decode(self, data: bytes) -> Any:
        """The request that ``data`` holds."""

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        """Bytes of an item, whether it is an error, and whether the stream ends with it."""


def load_adapter(target: str, find: Callable[[str], Any]) -> PayloadAdapter:
    """The adapter that ``find`` knows as ``"module:attribute"``; a class is instantiated without
    arguments.

    Raises LocalProtocolError naming what is wrong with the target.
    """
    module, _, path = target.rpartition(":")
    if not (module and path):
        raise LocalProtocolError(f"adapter {target!r} is not of the form 'module:attribute'")
    try:
        found = find(target)
        adapter = found() if isinstance(found, type) else found
    except Exception as error:
        raise LocalProtocolError(
            f"adapter {target!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    for method in ("decode", "encode"):
        if not callable(getattr(adapter, method, None)):
            raise LocalProtocolError(
                f"adapter {target!r} has no method {method!r}; it needs decode and encode"
            )
    loaded: PayloadAdapter = adapter
    return loaded
