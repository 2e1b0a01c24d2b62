"""Dispatches for the suite of ``actors.testing``: two that hold, one that does not."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors import DispatchSeat, StreamingDispatch
from actors.messages import Open, Record
from actors.testing.engines import ECHO, HANDLERS
from transport.bus.address import Address
from transport.context import Context

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))

from recording import Inside, Recording, record

__all__ = [
    "Inside",
    "Missing",
    "fails",
    "inside",
    "loses",
    "nobody",
    "record",
    "standard",
    "stutters",
]


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


def nobody(seat: DispatchSeat) -> None:
    """Forgets to return it."""


def fails(seat: DispatchSeat) -> StreamingDispatch:
    """Cannot be made."""
    raise ValueError("no luck")


class Missing:
    """Has only half of what it must."""

    def __init__(self, seat: DispatchSeat) -> None:
        self.generate = self.generate_bidirectional = seat.standard.generate


class _Losing(Recording):
    """Loses the first request of all, with its permit."""

    lost = 0

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        _Losing.lost += 1
        if _Losing.lost > 1:
            self.inner.generate(open, worker, home)


def loses(seat: DispatchSeat) -> StreamingDispatch:
    """Loses one request."""
    return _Losing(seat, Inside(seat, HANDLERS))
