"""Engines that tests of the ingress stand behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actors import BidirectionalEngine, Context, Engine, RequestStream


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """``n`` items of a text."""
    for index in range(request["n"]):
        yield {"i": index, "text": request["text"]}


class Held(Engine[Any, Any]):
    """Yields ``before`` items, waits for ``gate`` or a stop, yields ``after`` more."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[Any] = []
        self.ended: list[str] = []

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        self.begun.append(request)
        try:
            for index in range(request.get("before", 0)):
                yield {"before": index}
            waits = [asyncio.ensure_future(each) for each in (self.gate.wait(), ctx.wait_stopped())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
            for index in range(request.get("after", 0)):
                yield {"after": index}
        finally:
            state = "killed" if ctx.killed else "stopped" if ctx.stopped else "live"
            self.ended.append(state)


class Chat(BidirectionalEngine[Any, Any]):
    """Echoes each request item, then says ``bye`` ``last`` times; remembers how it ended."""

    last = 1

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended: list[str] = []
        self.failed: list[str] = []

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        try:
            async for item in requests:
                self.heard.append(item)
                yield {"echo": item}
            for index in range(self.last):
                yield {"bye": index}
        except Exception as error:
            self.failed.append(type(error).__name__)
            raise
        finally:
            state = "killed" if ctx.killed else "stopped" if ctx.stopped else "live"
            self.ended.append(state)
