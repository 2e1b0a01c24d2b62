"""Engines that the tests of the command line talk to."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from typing import Any

from actors.engine.api import Engine, EngineContext, bidirectional
from actors.kernel.requests import RequestStream


async def words(request: dict[str, Any], ctx: EngineContext) -> AsyncIterator[str]:
    """Words of a text."""
    for word in request["text"].split():
        yield word.upper()


async def same(request: Any, ctx: EngineContext) -> Any:
    """The request."""
    return request


async def odd(request: Any, ctx: EngineContext) -> AsyncIterator[Any]:
    """Values that JSON does not have."""
    import numpy as np

    yield {"bytes": b"abc", "nan": float("nan"), 7: (1, None)}
    yield datetime.date(2026, 1, 2)
    yield [np.zeros((2, 3), "float32")]
    yield ctx.frames.new((4,), "uint8")


async def patient(request: Any, ctx: EngineContext) -> AsyncIterator[str]:
    """One item, and a last word when it is asked to stop."""
    yield "waiting"
    await ctx.wait_stopped()
    yield f"stopped: {ctx.reason}"


async def stubborn(request: Any, ctx: EngineContext) -> AsyncIterator[int]:
    """Does not listen to a stop, only to a kill."""
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(0.02)


async def broken(request: Any, ctx: EngineContext) -> AsyncIterator[int]:
    """One item, then an error."""
    yield 1
    raise ValueError("no second item\nin this engine")


@bidirectional
async def echo(requests: RequestStream[Any], ctx: EngineContext) -> AsyncIterator[Any]:
    """Every item, and a goodbye."""
    async for item in requests:
        yield item
    yield "goodbye"


@bidirectional
async def once(requests: RequestStream[Any], ctx: EngineContext) -> AsyncIterator[Any]:
    """Hangs up after the first item."""
    async for item in requests:
        yield item
        return


class Lasting(Engine[Any, Any]):
    """Takes longer to end than it gets."""

    async def generate(self, request: Any, ctx: EngineContext) -> AsyncIterator[Any]:
        yield request

    async def on_stop(self) -> None:
        await asyncio.sleep(1000)
