"""What a router was told about how to choose: the routing fields of its ``RouterSpec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.errors import SpecError


def _no_target(target: str) -> Any:
    raise SpecError(f"{target}: this router was made without a way to load it")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Made by ``RouterActor`` from its keywords; see ``RouterSpec`` for what each means."""

    policy: str = "least_loaded"
    sticky_key: str = "session"
    device_ratio: float = 8.0
    busy_streams: int | None = None
    busy_fraction: float | None = None
    queue: int = 0
    queue_timeout: float = 10.0
    dispatch: str | None = None
    #: Resolves ``module:attribute``; raises SpecError, or what the import raises.
    load: Callable[[str], Any] = _no_target
