"""Engines that hand on what they have received; ``do`` in a request says how.

``LEAF`` looks at what comes; ``RELAYS`` pass frames on, back and forth, and may call each other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from actors import (
    BidirectionalEngine,
    Context,
    Engine,
    EngineSpec,
    Frame,
    RequestStream,
)

Request = dict[str, Any]


def stamped(frame: Frame, number: int) -> Frame:
    """Fill a frame so that ``number_of`` can tell whether it is whole."""
    flat = frame.array.reshape(-1).view("u4")
    flat[:] = np.arange(flat.size, dtype="u4")
    flat += np.uint32(number * 7919)
    return frame


def number_of(array: np.ndarray[Any, Any]) -> int:
    """The number of a stamped array; -1 for one that is not whole."""
    flat = array.reshape(-1).view("u4")
    number, rest = divmod(int(flat[0]), 7919)
    whole = np.array_equal(flat, np.arange(flat.size, dtype="u4") + np.uint32(number * 7919))
    return number if whole and not rest else -1


def anonymous() -> int:
    """Bytes of this process's own memory: what it maps of others does not count."""
    with open("/proc/self/status", encoding="ascii") as status:
        rows = dict(line.split(":", 1) for line in status if ":" in line)
    return int(rows["RssAnon"].split()[0]) << 10


class Memory:
    """What all these engines tell of themselves."""

    @staticmethod
    async def tell(ctx: Context) -> dict[str, Any]:
        runtime = ctx._runtime
        runtime.links.send_releases()
        memory = runtime.memory
        held = memory.statistics()
        return {
            "slots": held.slots,
            "lent": held.lent,
            "passed": len(memory.passing),
            "borrowed": sum(each.frames + each.expected for each in memory.reading.borrowed()),
            "allocated": held.segments,
            "pid": os.getpid(),
            "anonymous": anonymous(),
        }


class Leaf(Engine[Any, Any]):
    """Tells the number of each frame in a request, and whose memory it is in."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        do = request.get("do")
        if do == "memory":
            yield await Memory.tell(ctx)
            return
        if do == "hold":
            await asyncio.Event().wait()
        if do == "fail":
            raise ValueError("no")
        frames = [each.array if isinstance(each, Frame) else each for each in request["frames"]]
        yield {"numbers": [number_of(np.asarray(each)) for each in frames]}


class Relay(Engine[Any, Any]):
    """Makes frames, hands on those that it is sent, or that others have made for it."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        async for item in getattr(self, "do_" + request["do"])(request, ctx):
            yield item

    async def do_memory(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        yield await Memory.tell(ctx)

    async def do_make(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """``n`` frames of ``size`` bytes."""
        for number in range(request["n"]):
            frame = await ctx.frames.wait_new(request["size"], "u1")
            yield stamped(frame, number)
            del frame

    async def do_pass(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What the endpoint at the head of ``by`` yields for the rest, as it is."""
        head, *rest = request["by"]
        inner = request | {"by": rest, "do": "pass" if rest else "make"}
        async with ctx.stream(head, inner) as items:
            async for item in items:
                yield item
                del item
                if request.get("crash"):
                    os.kill(os.getpid(), 9)

    async def do_twice(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Each array twice, and once more in a value with others."""
        async with ctx.stream(request["by"][0], request | {"do": "make"}) as items:
            async for item in items:
                array = item.array
                yield array
                yield [array, {"again": array}, array[1:]]
                del item, array

    async def do_return(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Each frame that ``by`` makes, to its maker again, as a request; its answers."""
        maker = request["by"][0]
        async with ctx.stream(maker, request | {"do": "make"}) as items:
            async for item in items:
                yield await ctx.call(maker, {"do": "look", "frame": item})
                del item

    async def do_look(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """The number of a frame; whether it is in memory of this process."""
        array = request["frame"].array
        yield [number_of(array), not ctx._runtime.memory.reading.mapped]

    async def do_echo(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What came, back to where it came from."""
        yield request["value"]

    async def do_send(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What came, on to ``to`` as a request."""
        yield await ctx.call(request["to"], {"frames": request["frames"]})

    async def do_ask(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """A request with what came to ``to``, which is left after ``after`` seconds."""
        inner = {"do": request["part"], "frames": request["frames"]}
        async with ctx.stream(request["to"], inner) as items:
            try:
                async with asyncio.timeout(request["after"]):
                    async for _ in items:
                        pass
            except TimeoutError:
                yield "left"

    async def do_feed(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What ``by`` makes, as request items of ``to``; its answers."""
        async with ctx.open(request["to"]) as feeding:
            async with ctx.stream(request["by"][0], request | {"do": "make"}) as items:
                async for item in items:
                    await feeding.send(item)
                    yield await feeding.recv()
                    del item
            await feeding.end()


class Counting(BidirectionalEngine[Any, Any]):
    """The number of each frame that comes in."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        async for item in requests:
            yield number_of(item.array)
            del item


HERE = "tests.e2e.forwarding_engines:"
MAKER = EngineSpec(endpoint="f.maker.go", engine=HERE + "Relay", capacity=64, name="maker")
RELAY = EngineSpec(endpoint="f.relay.go", engine=HERE + "Relay", capacity=64, name="relay")
SECOND = EngineSpec(endpoint="f.second.go", engine=HERE + "Relay", capacity=64, name="second")
LEAF = EngineSpec(endpoint="f.leaf.go", engine=HERE + "Leaf", capacity=64, name="leaf")
COUNT = EngineSpec(endpoint="f.count.go", engine=HERE + "Counting", capacity=64, name="count")
FOUR = [MAKER, RELAY, SECOND, LEAF]
ALL = [*FOUR, COUNT]
