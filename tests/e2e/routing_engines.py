"""Engines for the tests of routing: calls that are held until they are let go, and parts that end
in every way in which a stream can end.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from actors import BidirectionalEngine, Context, Engine, EngineSpec, RequestStream

Request = dict[str, Any]


class _Gates:
    """One event for each wave of held calls, so that a late one of an old wave is not kept."""

    def __init__(self) -> None:
        self._gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def play(self, request: Request) -> None:
        """Hold the call until its wave is let go; or let that wave go."""
        if "release" in request:
            self._gates[request["release"]].set()
        elif "hold" in request:
            await self._gates[request["hold"]].wait()


class Held(Engine[Request, int]):
    """Answers with its pid, at once or when the wave that the request names is let go."""

    def __init__(self) -> None:
        self.gates = _Gates()

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[int]:
        await self.gates.play(request)
        yield os.getpid()


class HeldTalk(BidirectionalEngine[Request, int]):
    """The same for each item that comes in."""

    def __init__(self) -> None:
        self.gates = _Gates()

    async def generate(self, requests: RequestStream[Request], ctx: Context) -> AsyncIterator[int]:
        async for request in requests:
            await self.gates.play(request)
            yield os.getpid()


class Ends(Engine[Request, Any]):
    """Ends as ``do`` says: ``ok``, ``raise``, ``connection`` (the handler's own ConnectionError),
    ``unencodable``, ``wait``; ``items`` come before, each, and what is behind them, once there
    is a file with its number in the folder ``gate``.
    """

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        for number in range(request.get("items", 0)):
            await self._passed(request, number)
            yield number
        await self._passed(request, request.get("items", 0))
        what = request.get("do", "ok")
        if what == "raise":
            raise ValueError("no luck")
        if what == "connection":
            raise ConnectionResetError("the handler's own")
        if what == "unencodable":
            yield object()
        if what == "wait":
            await asyncio.sleep(60.0)
        yield os.getpid()

    async def _passed(self, request: Request, number: int) -> None:
        gate = request.get("gate")
        while gate and not os.path.exists(f"{gate}/{number}"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.005)


HERE = "tests.e2e.routing_engines:"
HELD = "t.held.go"
TALK = "t.talk.go"
ENDS = "t.ends.go"


def held_workers(each: int = 2, capacity: int = 1024) -> list[EngineSpec]:
    """So many workers on a CPU and as many on an accelerator, for ``HELD`` and for ``TALK``."""
    return [
        EngineSpec(
            endpoint,
            HERE + engine,
            replicas=each,
            capacity=capacity,
            device=device,
            name=f"{engine.lower()}-{device}",
        )
        for endpoint, engine in ((HELD, "Held"), (TALK, "HeldTalk"))
        for device in ("cpu", "cuda")
    ]
