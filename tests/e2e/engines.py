"""Engines that the streaming tests call; ``do`` in a request says which part one plays.

Few processes and many parts: starting a process is what costs time in a test.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np

from actors import (
    Annotated,
    BidirectionalEngine,
    Context,
    Engine,
    EngineSpec,
    Frame,
    RequestStream,
    bidirectional,
)

Request = dict[str, Any]


class Part(Engine[Request, Any]):
    """Dispatches to the method ``do_NAME`` and keeps count of what each stream did."""

    async def on_start(self) -> None:
        self.seen: dict[str, dict[str, Any]] = {}
        self.gate = asyncio.Event()

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        if isinstance(request, Frame):
            yield int(request.array.astype("int64").sum())
            return
        part: Callable[[Request, Context], AsyncIterator[Any]]
        part = getattr(self, "do_" + request["do"])
        note = self.seen[request.get("id", "")] = {"yielded": 0, "ended": False}
        try:
            async with aclosing(part(request, ctx)) as items:  # type: ignore[type-var]
                async for item in items:
                    note["yielded"] += 1
                    yield item
        finally:
            note["ended"] = True

    async def do_look(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What the stream with this name has done so far."""
        yield self.seen.get(request["of"], {"yielded": 0, "ended": False})

    async def do_memory(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What the worker's arena holds, its releases settled."""
        ctx._runtime.links.send_releases()
        found = ctx._runtime.memory.statistics()
        yield {name: getattr(found, name) for name in ("segments", "in_use", "slots", "lent")}

    async def do_road(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """How the worker has reached somebody's shared memory."""
        yield ctx._runtime.memory.reading.roads.taken(request["owner"])

    async def do_pid(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        yield os.getpid()

    async def do_echo(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        yield request["value"]

    async def do_numbers(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        for number in range(request["n"]):
            yield number

    async def do_hang_after(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """``n`` items, and then nothing, until it is cancelled."""
        for number in range(request["n"]):
            yield number
        await asyncio.Event().wait()

    async def do_forever(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(0)

    async def do_die_after(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """``n`` items that are on their way for certain, then the end of the process."""
        for number in range(request["n"]):
            yield [os.getpid(), number]
        await self.gate.wait()
        os._exit(9)

    async def do_sized(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Items of the given sizes, numbered: arrays, bytes or text."""
        for number, size in enumerate(request["sizes"]):
            yield [number, make(request["kind"], number, size)]

    async def do_blocks(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """``n`` items of ``size`` bytes."""
        block = make(request["kind"], 1, request["size"])
        for _ in range(request["n"]):
            yield block

    async def do_gated(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Waits for the gate, so that many streams run at once."""
        await self.gate.wait()
        for number in range(request["n"]):
            yield number

    async def do_open_gate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        self.gate.set()
        yield True

    async def do_mutated(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        item: dict[str, Any] = {"deep": [0]}
        array = np.zeros(request.get("size", 1), "u1")
        for number in range(request["n"]):
            item["deep"][0] = number
            item["array"] = array
            array[:] = number
            yield item

    async def do_values(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """The values under this name, one after the other."""
        for value in VALUES[request["of"]]():
            yield value

    async def do_frame_twice(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        frame = ctx.frames.new(request["size"], "u1")
        frame.array[:] = 1
        yield frame
        yield frame

    async def do_frames(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        for number in range(request["n"]):
            frame = ctx.frames.new((2, request["size"]), "u1")
            frame.array[:] = number
            yield frame

    async def do_frames_and_hang(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        async for frame in self.do_frames(request, ctx):
            yield frame
        await asyncio.Event().wait()

    async def do_raise(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Fails with a view of the request's frame in its hands."""
        view = request["frame"].array[1:]
        if view.size:
            raise ValueError("boom")
        yield view

    async def do_hold(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Fill the arena up to ``n`` slots of ``size`` and give an array that finds no room."""
        held = [ctx.frames.new(request["size"], "u1") for _ in range(request["n"])]
        yield np.full(request["size"], 7, "u1")
        del held

    async def do_call(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """Another endpoint's one answer."""
        yield await ctx.call(request["endpoint"], request["request"])

    async def do_stream(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        async with ctx.stream(request["endpoint"], request["request"]) as items:
            async for item in items:
                yield Annotated(data=item, comment=["through"])

    async def do_open(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        async with ctx.open(request["endpoint"]) as chat:
            for item in request["items"]:
                await chat.send(item)
            await chat.end()
            async for answer in chat:
                yield answer

    async def do_context(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        """What this stream knows of its limits and of its caller."""
        yield {"remaining": ctx.remaining(), "metadata": dict(ctx.metadata)}


def make(kind: str, number: int, size: int) -> Any:
    """An item of ``size`` bytes that shows its number."""
    if kind == "array":
        return np.full(size, number % 251, "u1")
    if kind == "text":
        return chr(97 + number % 26) * size
    return bytes([number % 251]) * size


def check(kind: str, number: int, size: int, found: Any) -> None:
    """That ``found`` is what ``make`` made, the type included."""
    if kind == "array":
        assert type(found) is np.ndarray
        assert not found.flags.writeable
        assert found.shape == (size,)
        assert not size or (found == number % 251).all()
    else:
        assert found == make(kind, number, size)


VALUES: dict[str, Callable[[], Iterator[Any]]] = {
    "surrogate": lambda: iter(["ok", "\ud800", "ok2"]),
    "unencodable": lambda: iter([1, {"a": [1, object()]}, 3]),
    "huge integer": lambda: iter([2**200, 2**9000]),
}


async def one_at_a_time(request: Request, ctx: Context) -> Any:
    """A unary engine, served with capacity 1."""
    return {"n": request["n"], "text": "tok"}


def in_a_thread(request: Request, ctx: Context) -> Iterator[Any]:
    """A generator that blocks its thread between items, and says where it ran."""
    import threading

    for number in range(request["n"]):
        time.sleep(request["pause"])
        yield [number, threading.current_thread() is threading.main_thread()]


def arrays_in_a_thread(request: Request, ctx: Context) -> Iterator[Any]:
    """Arrays and frames out of a thread, many more than are taken."""
    for number in range(request["n"]):
        if number == request.get("raise_at"):
            view = request["frame"].array[1:]
            raise ValueError(f"boom {view.size}")
        if number % 2:
            frame = ctx.frames.new(request["size"], "u1")
            frame.array[:] = number % 251
            yield frame
        else:
            yield np.full(request["size"], number % 251, "u1")


async def returns_a_generator(request: Request, ctx: Context) -> AsyncIterator[int]:
    """A coroutine function whose answer is an async generator."""

    async def items() -> AsyncIterator[int]:
        for number in range(request["n"]):
            yield number

    return items()


class Echo(BidirectionalEngine[Any, Any]):
    """Every request item back, and how many there were at the end."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        count = 0
        async for item in requests:
            count += 1
            if isinstance(item, Frame):
                with item:
                    out = ctx.frames.new(item.array.shape, item.array.dtype)
                    np.add(item.array, 1, out=out.array)
                    item = out
            yield item
        yield {"count": count}


@bidirectional
async def total(requests: RequestStream[int], ctx: Context) -> int:
    """A stream in, one answer out."""
    return sum([number async for number in requests])


class Bracketed:
    """A payload adapter: requests are text in brackets, ``!`` is an error, ``.`` the last item."""

    def decode(self, data: bytes) -> str:
        text = data.decode("ascii")
        if not (text.startswith("<") and text.endswith(">")):
            raise ValueError(f"no brackets around {text!r}")
        return text[1:-1]

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        return f"<{item}>".encode("ascii"), item == "!", item == "."


async def letters(request: str, ctx: Context) -> AsyncIterator[str]:
    """The letters of a request, for the adapter."""
    for letter in request:
        yield letter


@bidirectional
async def spelled(requests: RequestStream[str], ctx: Context) -> AsyncIterator[str]:
    """The letters of each request item, for the adapter."""
    async for word in requests:
        for letter in word:
            yield letter


def letters_in_a_thread(request: str, ctx: Context) -> Iterator[Any]:
    """The same out of a thread, in one list that changes."""
    item = [""]
    for letter in request:
        item[0] = letter
        yield item if letter.islower() else letter


_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(dumpable: bool) -> None:
    """Whether other processes may look into this one, through /proc too."""
    if _libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def set_powers(effective: tuple[int, int] | None = None) -> tuple[int, int]:
    """Drop root's powers over other processes in this thread, or take them back; what they were."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    before = data[0], data[3]
    data[0], data[3] = effective or (0, 0)
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
    return before


class Hidden(Part):
    """An engine whose memory nobody without powers can map, and that has none itself."""

    async def on_start(self) -> None:
        await super().on_start()
        set_dumpable(False)
        set_powers()


HERE = "tests.e2e.engines:"
PART = EngineSpec(endpoint="t.part.go", engine=HERE + "Part", capacity=512, name="part")
UNARY = EngineSpec(
    endpoint="t.unary.go", engine=HERE + "one_at_a_time", capacity=1, queue=0, name="unary"
)
THREAD = EngineSpec(endpoint="t.thread.go", engine=HERE + "in_a_thread", capacity=4, name="thread")
ARRAYS = EngineSpec(
    endpoint="t.arrays.go", engine=HERE + "arrays_in_a_thread", capacity=4, name="arrays"
)
GENERATOR = EngineSpec(
    endpoint="t.generator.go", engine=HERE + "returns_a_generator", name="generator"
)
ECHO = EngineSpec(endpoint="t.echo.go", engine=HERE + "Echo", name="echo")
TOTAL = EngineSpec(endpoint="t.total.go", engine=HERE + "total", name="total")
MORE_LETTERS = EngineSpec(
    endpoint="t.letters.sync",
    engine=HERE + "letters_in_a_thread",
    adapter=HERE + "Bracketed",
    name="more-letters",
)
LETTERS = EngineSpec(
    endpoint="t.letters.go", engine=HERE + "letters", adapter=HERE + "Bracketed", name="letters"
)
SPELLED = EngineSpec(
    endpoint="t.letters.both", engine=HERE + "spelled", adapter=HERE + "Bracketed", name="spelled"
)
HIDDEN = EngineSpec(endpoint="t.hidden.go", engine=HERE + "Hidden", name="hidden")
