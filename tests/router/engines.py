"""Engines for streams between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actors import BidirectionalEngine, Context, Engine, RequestStream

#: What has happened to handlers, newest last; a test clears it first.
SEEN: list[str] = []


class Count(Engine[dict[str, Any], Any]):
    """Yields ``n`` items, or does what ``do`` says."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        SEEN.append("began")
        try:
            for number in range(request.get("n", 0)):
                yield request.get("item", number)
            what = request.get("do")
            if what == "raise":
                raise ValueError("no such luck")
            if what == "wait":
                await asyncio.Event().wait()
            if what == "stopped":
                await ctx.wait_stopped()
                for number in range(3):
                    yield f"last {number}"
            if what == "metadata":
                yield {"id": ctx.id, "metadata": dict(ctx.metadata), "left": ctx.remaining()}
        finally:
            SEEN.append("killed" if ctx.killed else "stopped" if ctx.stopped else "ended")


class Mirror(Engine[Any, Any]):
    """Yields its request."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


class Chat(BidirectionalEngine[Any, Any]):
    """Yields each request item, then "end" when the input has ended."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        SEEN.append("began")
        try:
            async for item in requests:
                if isinstance(item, str) and item == "enough":
                    return
                yield item
            for number in range(3):
                yield f"end {number}"
        finally:
            SEEN.append("killed" if ctx.killed else "stopped" if ctx.stopped else "ended")
