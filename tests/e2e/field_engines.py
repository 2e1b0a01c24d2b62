"""Engines of the field reports between nodes; each writes down what happens to its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actors import BidirectionalEngine, Context, EngineSpec, RequestStream
from tests.e2e.cancel_engines import Pen
from tests.e2e.watching import Trace


class Talk(BidirectionalEngine[Any, Any]):
    """A stream each way whose first request item says how it goes.

    ``echo``: each item back, to the end. ``more``: three items once the input has ended. ``first``:
    ends after three items. ``wait``: waits for ever behind the input.
    """

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        how = await anext(requests)
        self.pen.write("started", how)
        try:
            count = 0
            async for item in requests:
                count += 1
                if how == "echo":
                    yield item
                if how == "first" and count == 3:
                    return
            self.pen.write(f"heard={count}", how)
            if how == "more":
                for number in range(3):
                    yield number
            if how == "wait":
                await asyncio.Event().wait()
        except Exception as error:
            self.pen.write(f"failed={type(error).__name__}", how)
            raise
        finally:
            self.pen.write("ended", how)


def talk(trace: Trace) -> EngineSpec:
    return EngineSpec("t.talk.go", f"{__name__}:Talk", args={"trace": trace.path}, name="talk")
