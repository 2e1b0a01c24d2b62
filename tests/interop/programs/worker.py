"""A worker of Dynamo's wheel: one unary and one two-way endpoint; says what its handlers saw."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dynamo.runtime import DistributedRuntime

from tests.interop.programs.lines import backend, obey, say

#: Whether its canaries fail.
unwell = False

ERRORS: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "RuntimeError": RuntimeError,
    "ConnectionError": ConnectionError,
    "TimeoutError": TimeoutError,
    "CancelledError": asyncio.CancelledError,
}


@asynccontextmanager
async def watched(context: Any) -> AsyncIterator[None]:
    """Says that a handler has started, and how its context stands once it is cancelled.

    The wheel leaves a generator of a cancelled stream suspended for a while, so the handler itself
    would tell too late.
    """
    name = context.id()
    say(event="start", id=name, metadata=dict(context.metadata.items()))

    async def watch() -> None:
        await context.async_killed_or_stopped()
        say(event="cancelled", id=name, stopped=context.is_stopped(), killed=context.is_killed())

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        if not context.is_stopped():
            watching.cancel()


async def generate(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """``do`` says what."""
    do = request["do"]
    async with watched(context):
        if do == "echo":
            yield request["value"]
        elif do == "pid":
            yield os.getpid()
        elif do == "size":
            yield len(request["value"])
        elif do == "bytes":
            yield bytes(request["n"])
        elif do == "text":
            yield "x" * request["n"]
        elif do == "unserialisable":
            yield object()
        else:
            for number in range(request["n"]):
                if do == "slow":
                    await asyncio.sleep(0.02)
                yield {"number": number}
            if do == "hang":
                await context.async_killed_or_stopped()
            if do == "fail":
                raise ERRORS[request["error"]]("boom")


async def guarded(request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
    """As ``generate``; canaries fail while they are told to."""
    if request["do"] == "canary":
        say(event="canary", request=request)
        if unwell:
            raise RuntimeError("unwell")
        yield "well"
        return
    async for item in generate(request, context):
        yield item


async def converse(stream: Any, context: Any) -> AsyncIterator[Any]:
    """Sends every item back, the count at the end; the item ``raise`` makes it fail."""
    count = 0
    async with watched(context):
        async for item in stream:
            if item == "raise":
                raise ValueError("boom")
            count += 1
            yield item
        yield {"count": count}


async def main(canary: bool) -> None:
    """Serve until stdin ends; with ``canary`` the unary endpoint has one."""
    more = {"health_check_payload": {"do": "canary"}} if canary else {}
    runtime = DistributedRuntime(asyncio.get_running_loop(), backend(), "tcp")
    names = "interop.theirs.generate", "interop.theirs.converse"
    plain, both = map(runtime.endpoint, names)

    async def serve() -> None:
        await asyncio.gather(
            plain.serve_endpoint(guarded, **more), both.serve_bidirectional_endpoint(converse)
        )

    serving = asyncio.create_task(serve(), name="serving")
    clients = [await endpoint.client() for endpoint in (plain, both)]
    for client in clients:
        await client.wait_for_instances()
    say(event="ready", pid=os.getpid())
    await obey(handle)
    serving.cancel()
    os._exit(0)  # its runtime would wait for streams that a test left open on purpose


async def handle(order: dict[str, Any]) -> None:
    """From now on its canaries fail, or no longer."""
    global unwell
    unwell = order["unwell"]


asyncio.run(main("canary" in sys.argv[1:]))
