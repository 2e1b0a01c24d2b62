"""When a callback of one part of an actor fails, that is logged and the others go on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

log = logging.getLogger("callhome.bus")

#: Seconds between two lines about the same callback: it may be called, and fail, at each tick.
_QUIET = 5.0


class Guard:
    """Takes the failures of callbacks which several parts of the actor ``name`` have registered.

    For whoever calls them: a port its collectors, a runtime its timers and those who want to hear
    of deaths.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[str, float] = {}

    def failed(self, callback: Callable[..., object], error: Exception) -> None:
        """Log the failure, unless one of the same callback was logged a moment ago."""
        what = getattr(callback, "__qualname__", type(callback).__name__)
        now = time.monotonic()
        if now - self._told.get(what, -math.inf) >= _QUIET:
            self._told[what] = now
            log.error("%s: %s failed; the others go on", self._name, what, exc_info=error)
