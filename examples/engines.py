"""Engines for the examples: what user code looks like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from actors import BidirectionalEngine, Context, Engine, Frame, RequestStream


class Shout(Engine[dict[str, Any], str]):
    """One request in, one word out at a time."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[str]:
        for word in request["text"].split():
            if ctx.stopped:
                return
            yield word.upper()


async def length(request: dict[str, Any], ctx: Context) -> int:
    """A coroutine function is a unary engine: one request, one answer."""
    return len(request["text"])


class Chat(BidirectionalEngine[str, str]):
    """Answers every line; says goodbye when the client has said its last."""

    async def generate(self, requests: RequestStream[str], ctx: Context) -> AsyncIterator[str]:
        async for line in requests:  # ends when the client ends; that is no cancel
            yield f"you said {line}"
        yield "goodbye"


class Halve(Engine[Frame, Frame]):
    """Numpy in, numpy out; no copy inside a node."""

    async def generate(self, request: Frame, ctx: Context) -> AsyncIterator[Frame]:
        out = ctx.frames.new(request.array.shape, request.array.dtype)
        np.floor_divide(request.array, 2, out=out.array)  # request.array is read-only
        yield out  # yielding hands the lease on
