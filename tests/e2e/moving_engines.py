"""Engines whose requests move from one worker to another; used by the tests of retry and migration.

``hold`` in a request names a file: the first stream that gets so far makes it and then waits for
ever, so that a test may kill its worker at a known place; all later ones go on. Each stream's start
is a line of the trace, with the worker's pid and the request id behind the request's tag.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from actors import BidirectionalEngine, Context, Engine, Frame, RequestStream
from tests.e2e.cancel_engines import Pen


async def hold(path: str) -> None:
    """Wait for ever, but only the first time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    os.write(fd := os.open(path, os.O_WRONLY), f"{os.getpid()}\n".encode())
    os.close(fd)
    await asyncio.Event().wait()


class Once(Engine[dict[str, Any], Any]):
    """Answers with the sum of ``array`` (or of a Frame); ``answers`` says how often, and
    ``late`` after how many of them it holds.
    """

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        self.pen.write("started", f"{request.get('tag', '-')}.{os.getpid()}.{ctx.id}")
        late = request.get("late", 0)
        for number in range(request.get("answers", 1)):
            if number == late and "hold" in request:
                await hold(request["hold"])
            value = request.get("array")
            array = value.array if isinstance(value, Frame) else value
            yield {"pid": os.getpid(), "sum": 0 if array is None else int(array.sum())}
        if late == request.get("answers", 1) and "hold" in request:
            await hold(request["hold"])


class Tokens(Engine[dict[str, Any], Any]):
    """One token an item: its value is its place behind the prompt. ``hold_at``: the token before
    which it holds; ``pace``: seconds between two. ``holds``: several of ``[token, file]``.
    No worker starts while there is a file ``shut``.
    """

    def __init__(self, shut: str = "") -> None:
        self.shut = shut

    async def on_start(self) -> None:
        while self.shut and os.path.exists(self.shut):  # noqa: ASYNC110, ASYNC240 - a test's file
            await asyncio.sleep(0.01)

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        prompt = request["token_ids"]
        limits = request.get("stop_conditions", request)
        holds = dict(request.get("holds", ()))
        for number in range(len(prompt), len(prompt) + limits["max_tokens"]):
            if number == request.get("hold_at"):
                await hold(request["hold"])
            if number in holds:
                await hold(holds[number])
            if request.get("pace"):
                await asyncio.sleep(request["pace"])
            item: dict[str, Any] = {"token_ids": [number], "pid": os.getpid()}
            if request.get("frames"):
                item["frame"] = np.full(50_000, number % 256, "u1")
            yield item
        if request.get("hold_at") == "end":
            await hold(request["hold"])


class Plain(Engine[dict[str, Any], Any]):
    """Numbers ``first`` to ``last``; nothing that anybody could guess how to continue."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        for number in range(request["first"], request["last"]):
            if number == request.get("hold_at"):
                await hold(request["hold"])
            yield number


class Via(Engine[dict[str, Any], Any]):
    """What ``t.plain.go`` says, which goes on elsewhere when its worker dies."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        def resume(request: dict[str, Any], delivered: list[int]) -> dict[str, Any]:
            return {**request, "first": len(delivered)}

        stream = ctx.stream("t.plain.go", request, migration_limit=3, priority=1, resume=resume)
        async with stream as items:
            async for item in items:
                yield item
        yield [items.attempts, await ctx.call("t.plain.go", {"first": 7, "last": 8})]


class Talk(BidirectionalEngine[Any, Any]):
    """Says after each line which it was, counted by this worker; holds before that line.

    The first line is ``{"hold": file, "hold_at": number}``; lines may be arrays.
    """

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        first: dict[str, Any] = {}
        count = 0
        async for line in requests:
            if isinstance(line, dict):
                first = line
                continue
            if count == first.get("hold_at"):
                await hold(first["hold"])
            count += 1
            yield [count, line if isinstance(line, str) else int(line.sum())]
        yield [count, "goodbye"]
