"""Engines and actors that write down what happens to them; used by the tests of cancels and deaths.

Each takes ``trace``, a file that gets one line an event: ``event tag time``. A line is written in
one step, so it survives a SIGKILL that comes right after it, and the clock is the same in all
processes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from actors import Actor, Context, Engine, handles

#: Seconds for which nobody lets a handler wait: whatever is to end it comes before.
WAIT = 120.0


async def left() -> None:
    """Wait until all that was yielded has left this process for a peer that had an answer of it
    before: the loop has had its turns, and ZeroMQ's threads, which a message wakes before it is
    theirs, sleep again.
    """
    await asyncio.sleep(0.02)
    while not all(map(_sleeps, os.listdir("/proc/self/task"))):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _sleeps(task: str) -> bool:
    """Whether a thread of this process is none of ZeroMQ's, or has nothing to do."""
    try:
        text = Path(f"/proc/self/task/{task}/stat").read_text()
    except OSError:  # it has ended
        return True
    name, _, rest = text.partition("(")[2].rpartition(")")
    return not name.startswith("ZMQ") or rest.split()[0] == "S"


class Pen:
    """Appends events to a trace file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, event: str, tag: object) -> None:
        os.write(self._fd, f"{event} {tag} {time.monotonic():.6f}\n".encode())


class Slow(Engine[dict[str, Any], Any]):
    """Yields ``items``, waits ``wait`` seconds, yields ``"late"``. While there is a file called as
    the trace with ``.hold`` behind it, none starts.

    ``frames``: items are arrays of that many bytes. ``polite``: a stop ends the wait, with
    ``"last"`` as the final item. ``ask`` = ``"leases"``: yields how many frames are lent.
    """

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)
        self.held = f"{trace}.hold"

    async def on_start(self) -> None:
        while os.path.exists(self.held):  # noqa: ASYNC110, ASYNC240 - the test has made it
            await asyncio.sleep(0.01)

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        if request.get("ask") == "leases":
            yield ctx._runtime.memory.statistics().lent  # what no user needs to see
            return
        tag = request.get("tag", "-")
        self.pen.write("started", tag)
        try:
            for number in range(request.get("items", 0)):
                yield self._item(number, request.get("frames", 0))
            if request.get("items"):
                await left()
                self.pen.write("sent", tag)
            if request.get("polite"):
                await ctx.wait_stopped()
                self.pen.write("stopped", tag)
                yield "last"
            else:
                await asyncio.sleep(request.get("wait", WAIT))
                yield "late"
            self.pen.write("completed", tag)
        except asyncio.CancelledError:
            self.pen.write("cancelled", tag)
            raise
        finally:
            self.pen.write("ended", tag)

    def _item(self, number: int, size: int) -> Any:
        if not size:
            return number
        import numpy as np

        return np.full(size, number % 256, "uint8")


class Brisk(Engine[dict[str, Any], Any]):
    """Yields ``items`` numbers and ends; with ``size`` each has that many bytes of text beside it,
    and the loop gets its turn after each.
    """

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        size = request.get("size", 0)
        for number in range(request["items"]):
            yield [number, "x" * size] if size else number
            if size:
                await asyncio.sleep(0)


class Inner(Engine[dict[str, Any], float]):
    """Writes down the time that it was left, then waits; ``fails`` once ``after`` have started."""

    def __init__(self, trace: str) -> None:
        self.trace = Path(trace)
        self.pen = Pen(trace)

    def _started(self) -> int:
        return self.trace.read_text().count("started")

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[float]:
        tag = request.get("tag", "inner")
        self.pen.write("started", tag)
        self.pen.write(f"remaining={ctx.remaining()}", tag)
        try:
            if request.get("fails"):
                # Not before its siblings run: one whose start is still queued would never start.
                while self._started() < request.get("after", 0):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                raise ValueError("no luck")
            await asyncio.sleep(request.get("wait", WAIT))
            yield 0.0
        finally:
            self.pen.write("ended", tag)


class Outer(Engine[dict[str, Any], Any]):
    """Calls ``t.inner.go`` once, or for each of the requests in ``fan``, all at the same time."""

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        self.pen.write("started", "outer")
        try:
            if "fan" in request:
                calls = [ctx.call("t.inner.go", each) for each in request["fan"]]
                yield await asyncio.gather(*calls)
            else:
                yield await ctx.call("t.inner.go", request.get("inner", {}))
        finally:
            self.pen.write("ended", "outer")


class Fragile(Engine[dict[str, Any], int]):
    """Ends its process in the way that it is asked to, after two items, once there is a file
    ``until``.
    """

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[int]:
        yield 0
        yield 1
        while not os.path.exists(request["until"]):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        os._exit(request["code"])


class Work(NamedTuple):
    """Ask for ``wait`` seconds of work."""

    tag: int
    wait: float


class Worker(Actor):
    """Does one piece of work after the other."""

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)

    @handles(Work)
    async def work(self, message: Work) -> int:
        self.pen.write("started", message.tag)
        try:
            await asyncio.sleep(message.wait)
        except asyncio.CancelledError:
            self.pen.write("cancelled", message.tag)
            raise
        return message.tag


class Through(Engine[dict[str, Any], Any]):
    """Passes on what ``t.inner.go`` says, by ``how``: call, stream, or tasks of a group."""

    def __init__(self, trace: str) -> None:
        self.pen = Pen(trace)

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        self.pen.write("through", request["how"])
        if request["how"] == "call":
            yield await ctx.call("t.inner.go", {})
        elif request["how"] == "group":
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(ctx.call("t.inner.go", {})) for _ in range(2)]
            yield [call.result() for call in calls]
        else:
            async with ctx.stream("t.inner.go", {}) as items:
                async for item in items:
                    yield item
