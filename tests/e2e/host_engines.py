"""Engines of the nodes of several hosts: they say where they run, and how much they have given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from actors import BidirectionalEngine, Context, Engine, RequestStream


class There(Engine[dict[str, Any], Any]):
    """``{"n": 0}`` asks who serves: ``[host, pid]``. Else ``n`` items ``[number, array]`` of
    ``size`` bytes, or ``[number]`` where ``size`` is 0, ``pause`` seconds apart, and behind them
    ``["end", n]``: a stream that ends without it is short.
    """

    def __init__(self, host: str) -> None:
        self.host = host

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        count = request["n"]
        if not count:
            yield [self.host, os.getpid()]
            return
        for number in range(count):
            size = request.get("size", 1)
            yield [number, np.full(size, number % 251, "u1")] if size else [number]
            if request.get("pause"):
                await asyncio.sleep(request["pause"])
        yield ["end", count]


class Back(BidirectionalEngine[Any, Any]):
    """Every item back, and how many there were."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        count = 0
        async for item in requests:
            count += 1
            yield item
        yield ["end", count]
