"""The engines and the actor of a chaos run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from actors import (
    Actor,
    BidirectionalEngine,
    Context,
    Engine,
    RequestStream,
    handles,
)
from perf.chaos.items import Wrong, check_value, data, item, last

Request = dict[str, Any]


async def unary(request: Request, ctx: Context) -> Request:
    """One value in, checked, the same out."""
    try:
        check_value(request["v"], request["s"], 0, request["size"], request["kind"])
    except Wrong as error:
        return {"wrong": f"in the request: {error}"}
    if request["slow"]:
        await asyncio.sleep(request["slow"] * 10)
    return item(request, 0, ctx.frames)


class Items(Engine[Request, Request]):
    """A stream of ``items`` items."""

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Request]:
        for number in range(request["items"]):
            if ctx.stopped:
                yield last(request["s"], number)
                return
            if request["slow"]:
                await asyncio.sleep(request["slow"])
            yield item(request, number, ctx.frames)
        yield last(request["s"], request["items"])


class Forward(Engine[Request, Request]):
    """Hands on what ``chaos.frames`` gives, as it comes."""

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Request]:
        async with ctx.stream("chaos.frames.generate", request) as items:
            async for each in items:
                yield each


def threads(request: Request, ctx: Context) -> Iterator[Request]:
    """A sync engine."""
    for number in range(request["items"]):
        if ctx.stopped:
            yield last(request["s"], number)
            return
        if request["slow"]:
            time.sleep(request["slow"])
        yield item(request, number, ctx.frames)
    yield last(request["s"], request["items"])


class Echo(BidirectionalEngine[Request, Request]):
    """Checks every item that comes and sends it back; says so when one is wrong."""

    async def generate(
        self, requests: RequestStream[Request], ctx: Context
    ) -> AsyncIterator[Request]:
        count, due = 0, 0
        stream: int | None = None  # who sends nothing does not say who he is
        async for each in requests:
            stream, due = each["s"], each["items"]
            if ctx.stopped:
                yield last(stream, count)
                return
            try:
                if each["n"] != count:
                    raise Wrong(f"request item {each['n']} came where {count} was due")
                check_value(each["v"], stream, count, each["size"], each["kind"])
            except Wrong as error:
                yield {"wrong": str(error)}
                return
            yield {"s": stream, "n": count, "v": each["v"]}
            count += 1
        if count != due and not ctx.stopped:
            yield {"wrong": f"the request ended cleanly after {count} of {due} items"}
        yield last(stream, count)


class Tokens(Engine[Request, Request]):
    """One token an item, its value its place behind the prompt: so it can be continued."""

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Request]:
        begin = len(request["token_ids"])
        for token in range(begin, begin + request["max_tokens"]):
            if ctx.stopped:
                return
            if request["slow"]:
                await asyncio.sleep(request["slow"])
            yield {
                "s": request["s"],
                "token_ids": [token],
                "v": data(request["s"], token, request["size"]),
            }


class Ask(NamedTuple):
    """To the keeper: give back item 0 of ``stream``."""

    stream: int
    size: int


class Keeper(Actor):
    """A user's actor."""

    @handles(Ask)
    async def answer(self, message: Ask) -> bytes:
        """The one item."""
        return data(message.stream, 0, message.size)
