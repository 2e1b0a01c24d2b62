"""Engines for the examples: what user code looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from actors import (
    Annotated,
    BidirectionalEngine,
    Context,
    Engine,
    Frame,
    RequestStream,
    bidirectional,
)


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


@bidirectional
async def total(requests: RequestStream[int], ctx: Context) -> AsyncIterator[int]:
    """A function can take a stream too, when it says so: the running total of numbers."""
    found = 0
    async for number in requests:
        found += number
        yield found


class Halve(Engine[Frame, Frame]):
    """Numpy in, numpy out; no copy inside a node."""

    async def generate(self, request: Frame, ctx: Context) -> AsyncIterator[Frame]:
        out = ctx.frames.new(request.array.shape, request.array.dtype)
        np.floor_divide(request.array, 2, out=out.array)  # request.array is read-only
        yield out  # yielding hands the lease on


class Darken(BidirectionalEngine[Frame, Frame]):
    """A pipeline of pictures: each frame that comes in goes out at half its brightness."""

    async def generate(self, requests: RequestStream[Frame], ctx: Context) -> AsyncIterator[Frame]:
        async for picture in requests:
            with picture:  # its memory goes back to the sender after the block
                out = ctx.frames.new(picture.shape, picture.dtype)
                np.right_shift(picture.array, 1, out=out.array)
            yield out  # a frame is handed on once: make a new one for every item


class Tokens(Engine[dict[str, Any], dict[str, Any]]):
    """A token stream as a language model gives it; an endless one unless ``count`` says otherwise.

    ``pace`` (an argument of its EngineSpec) is the time between tokens in seconds.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace

    async def generate(
        self, request: dict[str, Any], ctx: Context
    ) -> AsyncIterator[dict[str, Any]]:
        count = request.get("count")
        index = 0
        while not ctx.stopped and index != count:
            yield {"index": index, "text": f"token{index} "}
            index += 1
            if self.pace:
                await asyncio.sleep(self.pace)


class Proxy(Engine[dict[str, Any], Any]):
    """An engine that calls an endpoint: the child stream shares its cancels and its deadline."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        async with ctx.stream("demo.shout.generate", request) as items:
            async for item in items:
                yield Annotated(data=item, comment=["through the proxy"])
