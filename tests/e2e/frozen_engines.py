"""An engine that is busy, that blocks its loop, or that holds the interpreter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import Any

from actors import Context, Engine

Request = dict[str, Any]


class Counter(Engine[Request, Any]):
    """``n`` items, ``pause`` seconds apart; what else it is to do before stands in the request."""

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        if seconds := request.get("sleep"):
            time.sleep(seconds)  # noqa: ASYNC251 - the fault that is tried
        if seconds := request.get("hold"):
            await asyncio.to_thread(hold, seconds)
        until = time.monotonic() + request.get("burn", 0.0)
        while time.monotonic() < until:
            sum(range(5_000_000))  # 50 to 200 ms in which the loop does not turn
            await asyncio.sleep(0)
        for number in range(request.get("n", 1)):
            yield number
            if pause := request.get("pause"):
                await asyncio.sleep(pause)


def hold(seconds: float) -> None:
    """Compute for so long and keep the interpreter: in a loop in C nobody else has a turn."""
    until = time.monotonic() + seconds
    sum(takewhile(until.__gt__, iter(time.monotonic, None)))
