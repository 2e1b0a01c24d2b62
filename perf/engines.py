"""The engines that the suites call, one endpoint each.

Imported in engine processes, whose idle memory is measured: numpy is loaded only when used.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from actors import BidirectionalEngine, Context, Engine, RequestStream

if TYPE_CHECKING:
    import numpy as np


def _profile_this_process() -> None:
    """Dump cProfile statistics of the importing thread, the loop's, when the process ends."""
    prefix = os.environ.get("CALLHOME_PERF_PROFILE")
    if not prefix:
        return
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    atexit.register(profile.dump_stats, f"{prefix}.engine.{os.getpid()}.pstats")


_profile_this_process()


async def answer(request: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Unary: one small dict back."""
    return {"token_ids": [len(request["token_ids"])], "text": "tok"}


async def wait(request: dict[str, Any], ctx: Context) -> list[Any]:
    """Unary: who it was, and from when to when it waited; seconds of CLOCK_MONOTONIC."""
    begin = time.monotonic()
    await asyncio.sleep(request["seconds"])
    return [os.getpid(), begin, time.monotonic()]


class Tokens(Engine[dict[str, Any], dict[str, Any]]):
    """Streams ``items`` small dicts, a fresh one each."""

    async def generate(
        self, request: dict[str, Any], ctx: Context
    ) -> AsyncIterator[dict[str, Any]]:
        for index in range(request["items"]):
            yield {"token_ids": [index], "text": "tok"}


class Agent(Engine[dict[str, Any], dict[str, Any]]):
    """Reads a long prompt, a list or an array, and answers with ``items`` small dicts."""

    async def generate(
        self, request: dict[str, Any], ctx: Context
    ) -> AsyncIterator[dict[str, Any]]:
        prompt = request["token_ids"]
        check = [len(prompt), int(prompt[-1])]
        for index in range(request["items"]):
            yield {"token_ids": [index], "text": "tok", "prompt": check}


class EchoItems(BidirectionalEngine[Any, Any]):
    """Sends back every item of the request stream."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        async for item in requests:
            yield item


def stamp(array: np.ndarray[Any, Any], value: int) -> None:
    """Write ``value`` into the first 8 bytes of a uint8 array, its low byte into the last."""
    import numpy as np

    flat = array.reshape(-1)
    flat[:8].view(np.uint64)[0] = value
    flat[-1] = value & 0xFF


class Frames(Engine[dict[str, Any], Any]):
    """Streams ``count`` uint8 arrays of ``shape``.

    They are stamped with their index, or with the time when ``timed``. ``how`` is ``copy`` (a warm
    array of our own is yielded and copied by the runtime) or ``inplace`` (the frame is leased from
    the arena and only stamped).
    """

    async def on_start(self) -> None:
        self.sources: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        shape, timed = tuple(request["shape"]), request["timed"]
        for index in range(request["count"]):
            if request["how"] == "inplace":
                frame = ctx.frames.new(shape, "uint8")
                stamp(frame.array, time.monotonic_ns() if timed else index)
                yield frame
            else:
                source = self._source(shape)
                stamp(source, time.monotonic_ns() if timed else index)
                yield source

    def _source(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The one array of this shape; written over once, so that its pages are there."""
        import numpy as np

        if shape not in self.sources:
            self.sources[shape] = np.full(shape, 1, np.uint8)
        return self.sources[shape]


class Silent(Engine[dict[str, Any], Any]):
    """What the cancel and memory suites talk to; ``do`` says which part a stream plays.

    ``wait``: yields nothing until its context shows the cancel, notes the time, and yields the
    time in case somebody still listens. ``ready``: answers once the waiting stream ``id`` waits.
    ``seen``: answers with the CLOCK_MONOTONIC nanoseconds at which stream ``id`` knew. ``flood``:
    yields flat out until it is cancelled. ``hold``: yields one item and stays open.
    """

    async def on_start(self) -> None:
        self.waiting: dict[int, asyncio.Event] = {}
        self.seen: dict[int, asyncio.Future[int]] = {}

    def _note(self, number: int) -> tuple[asyncio.Event, asyncio.Future[int]]:
        waiting = self.waiting.setdefault(number, asyncio.Event())
        seen = self.seen.setdefault(number, asyncio.get_running_loop().create_future())
        return waiting, seen

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        if request["do"] == "flood":
            while not ctx.stopped:
                yield {"token_ids": [1], "text": "tok"}
            return
        if request["do"] == "hold":
            yield True
            await ctx.wait_stopped()
            return
        number = request["id"]
        waiting, seen = self._note(number)
        if request["do"] == "wait":
            waiting.set()
            try:
                await ctx.wait_stopped()
            finally:
                # Also when the kill came as a cancellation of this task: then this is the
                # handler's wake-up.
                seen.set_result(time.monotonic_ns())
            yield seen.result()
        elif request["do"] == "ready":
            async with asyncio.timeout(30):
                await waiting.wait()
            yield True
        else:
            async with asyncio.timeout(30):
                yield await asyncio.shield(seen)
            del self.waiting[number], self.seen[number]


class Member(Engine[None, list[float]]):
    """Unary: its pid, when it was ready and when its first request came, for the membership suite.

    Seconds of CLOCK_MONOTONIC, which all processes of a machine share.
    """

    async def on_start(self) -> None:
        self.first = 0.0
        self.ready = time.monotonic()

    async def generate(self, request: None, ctx: Context) -> AsyncIterator[list[float]]:
        self.first = self.first or time.monotonic()
        yield [os.getpid(), self.ready, self.first]


async def identify(request: dict[str, Any], ctx: Context) -> int:
    """Unary: the pid of the engine's process; the startup suite reads its memory from outside."""
    return os.getpid()
