"""Our engines that Dynamo's client calls; ``do`` in a request says which part one plays."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any

from actors import Annotated, BidirectionalEngine, Context, Engine, RequestStream

HERE = "tests.interop.engines:"


class Answers(Engine[dict[str, Any], Any]):
    """Streams of every kind, and how each has ended by the id of its request."""

    async def on_start(self) -> None:
        self.ended: dict[str, dict[str, Any]] = {}

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        note = self.ended[ctx.id] = {"ended": False}
        try:
            async for item in self.items(request, ctx):
                yield item
        finally:
            note.update(ended=True, stopped=ctx.stopped, killed=ctx.killed)

    async def items(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        """The items of one part."""
        do = request["do"]
        if do == "echo":
            yield request["value"]
        elif do == "pid":
            yield os.getpid()
        elif do == "ended":
            yield self.ended.get(request["of"], {"ended": False})
        elif do == "metadata":
            yield {"id": ctx.id, "metadata": dict(ctx.metadata)}
        elif do == "digest":
            value = request["value"]
            data = value.encode() if isinstance(value, str) else value
            yield {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        elif do == "fill":
            yield "x" * request["n"] if request.get("text") else bytes(request["n"])
        elif do == "annotated":
            yield Annotated(data={"number": 0}, id="7", event="progress", comment=["one", "two"])
            yield Annotated(event="note", comment=["no data"])
            yield {"number": 1}
        else:
            async for item in self.numbers(request, ctx):
                yield item

    async def numbers(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        """``n`` numbers, and then what ``do`` says."""
        do = request["do"]
        for number in range(request["n"]):
            if do == "slow":
                await asyncio.sleep(0.02)
                if ctx.stopped:
                    return
            yield {"number": number}
        if do == "hang":
            await ctx.wait_stopped()
        if do == "fail":
            raise ValueError("boom")
        if do == "unserialisable":
            yield {"number": {1, 2}}


class Converse(BidirectionalEngine[Any, Any]):
    """Speaks to a realtime frontend: one event back for each that came, and one at the end."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        count = 0
        async for event in requests:
            count += 1
            if event.get("type") == "input_audio_buffer.clear":
                raise ValueError("boom")
            yield delta(f"{count}:{event['type']}:{len(event.get('audio') or '')}")


def delta(text: str) -> dict[str, Any]:
    """A server event that such a frontend hands to its own caller."""
    return {
        "type": "response.output_text.delta",
        "event_id": "e",
        "response_id": "r",
        "item_id": "i",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
    }
