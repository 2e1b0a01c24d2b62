"""Dispatches for the suite of ``actors.testing``: two that hold, one that does not."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors import DispatchSeat, StreamingDispatch
from actors.testing.engines import ECHO, HANDLERS
from transport.context import Context

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))

from recording import Inside, Recording, record

__all__ = ["Inside", "inside", "record", "standard", "stutters"]


def standard(seat: DispatchSeat) -> StreamingDispatch:
    """What a router has without any of ours."""
    return seat.standard


def inside(seat: DispatchSeat) -> StreamingDispatch:
    """Serves all endpoints of the suite itself, recorded."""
    return Recording(seat, Inside(seat, HANDLERS))


async def _twice(request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
    for item in request.get("items", ()):
        yield item
        yield item


def stutters(seat: DispatchSeat) -> StreamingDispatch:
    """Brings every item of one endpoint twice."""
    return Inside(seat, HANDLERS | {ECHO: (False, _twice)})
