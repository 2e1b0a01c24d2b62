"""The engines of ``perf.engines`` once more, as handlers of Dynamo's wheel; arrays become bytes.

``perf.peers.wheel`` runs ``python -m perf.peers.wheel_engines LOOP CORE ENDPOINT=ATTRIBUTE...``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from perf.plan import pin_to, runner


async def answer(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """Unary: one small dict back."""
    yield {"token_ids": [len(request["token_ids"])], "text": "tok"}


async def wait(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """Unary: who it was, and from when to when it waited; seconds of CLOCK_MONOTONIC."""
    begin = time.monotonic()
    await asyncio.sleep(request["seconds"])
    yield [os.getpid(), begin, time.monotonic()]


async def tokens(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """Streams ``items`` small dicts, a fresh one each."""
    for index in range(request["items"]):
        yield {"token_ids": [index], "text": "tok"}


async def agent(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """Reads a long prompt and answers with ``items`` small dicts, a fresh one each."""
    prompt = request["token_ids"]
    check = [len(prompt), int(prompt[-1])]
    for index in range(request["items"]):
        yield {"token_ids": [index], "text": "tok", "prompt": check}


async def frames(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """Streams ``count`` pieces of bytes, stamped as the arrays of ``perf.engines.Frames``."""
    rows, row = request["shape"]
    rest = bytes(rows * row - 9)
    for index in range(request["count"]):
        stamp = time.monotonic_ns() if request["timed"] else index
        yield stamp.to_bytes(8, "little") + rest + bytes([stamp & 0xFF])


class Silent:
    """What the cancel suite talks to; see ``perf.engines.Silent``."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Event] = {}
        self.seen: dict[int, asyncio.Future[int]] = {}

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
        """One part of the suite."""
        if request["do"] == "flood":
            while not context.is_stopped():
                yield {"token_ids": [1], "text": "tok"}
            return
        number = request["id"]
        waiting = self.waiting.setdefault(number, asyncio.Event())
        seen = self.seen.setdefault(number, asyncio.get_running_loop().create_future())
        if request["do"] == "wait":
            waiting.set()
            try:
                await context.async_killed_or_stopped()
            finally:
                seen.set_result(time.monotonic_ns())
            yield seen.result()
        elif request["do"] == "ready":
            await waiting.wait()
            yield True
        else:
            yield await asyncio.shield(seen)
            del self.waiting[number], self.seen[number]


HANDLERS = {
    "answer": answer,
    "wait": wait,
    "Tokens": tokens,
    "Agent": agent,
    "Frames": frames,
    "Silent": Silent().generate,
}


async def main(served: list[str]) -> None:
    """Serve until the process is ended."""
    from dynamo.runtime import DistributedRuntime

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    async with asyncio.TaskGroup() as group:
        for endpoint, _, attribute in (each.partition("=") for each in served):
            serving = runtime.endpoint(endpoint).serve_endpoint(HANDLERS[attribute])
            group.create_task(_finish(serving))


async def _finish(serving: Any) -> None:
    await serving


if __name__ == "__main__":
    pin_to(int(sys.argv[2]))
    runner(sys.argv[1])(main(sys.argv[3:]))
