"""Engines with a canary in this process, and handlers that answer it well or badly."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Annotated, Context, RequestStream, Settings, bidirectional
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.kernel.runtime import Runtime
from actors.kernel.verdicts import Verdict
from actors.messages import Kill
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import wait_until

ENDPOINT = "t.canary.go"
MARK = "x-callhome-canary"
#: Short, so that a test waits little; what is waited for has the patience of a busy machine.
WAIT, LIMIT = 0.1, 0.3
QUICK: dict[str, Any] = {"canary_wait": WAIT, "canary_timeout": LIMIT}


class Rig:
    """An engine with a canary, its runtime, and a hand-made home that opens streams of it."""

    def __init__(self, actor: EngineActor, runtime: Runtime, home: RawHome) -> None:
        self.actor = actor
        self.runtime = runtime
        self.home = home
        self._stream = 0

    def verdict(self) -> Verdict:
        """What whoever looks at the engine thinks of it now."""
        self.runtime.vigil.close()  # the next look is the first
        return self.runtime.vigil.of(self.actor.address, time.monotonic())

    async def until(self, code: str, *why: str) -> Verdict:
        def so() -> bool:
            found = self.verdict()
            return found.code == code and all(each in found.why for each in why)

        await wait_until(so, what=f"{code} because of {why}, not {self.verdict()}")
        return self.verdict()

    async def sent(self, more: int = 1) -> None:
        """Wait until this many canaries more have been sent."""
        goal = self.actor.canary.sent + more
        await wait_until(lambda: self.actor.canary.sent >= goal, what="another canary")

    def open(self, request: Any) -> int:
        self._stream += 1
        self.home.open(self.actor.address, self._stream, ENDPOINT, request)
        return self._stream

    def kill(self, stream: int) -> None:
        self.home.send(self.actor.address, Kill(self.home.address.incarnation, stream, "killed"))


@asynccontextmanager
async def rig(
    tmp_path: Path,
    handler: Any,
    request: Any = "canary",
    *,
    capacity: int = 2,
    queue: int = 0,
    adapter: Any = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    spec = {
        "run": str(tmp_path),
        "name": "engine",
        "role": "engine",
        "settings": Settings(**QUICK | settings).to_dict(),
    }
    actor = EngineActor(handler, {}, ENDPOINT, capacity, queue, adapter)
    actor.canary_request = request
    with raw_home(str(tmp_path)) as home:  # open for the engine's good-bye
        async with running(spec, actor) as (_, runtime):
            try:
                yield Rig(actor, runtime, home)
            finally:
                Behaviour.release.set()  # else the engine waits for its thread


class Behaviour:
    """How the handlers below answer, and what they were asked; reset by ``clean``."""

    how = "well"
    asked: list[tuple[Any, str]] = []  # noqa: RUF012 - reset by each test
    now = 0
    most = 0
    release = threading.Event()


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    Behaviour.how, Behaviour.asked, Behaviour.now, Behaviour.most = "well", [], 0, 0
    Behaviour.release = threading.Event()
    yield
    Behaviour.release.set()


def answer(request: Any, ctx: Context) -> Any:
    """What is to be given as the one item; raises, where that is asked for."""
    how = Behaviour.how
    Behaviour.asked.append((request, ctx.metadata.get(MARK, "")))
    if how == "raise":
        raise ValueError("out of order")
    if how == "error":
        return Annotated(event="error", comment=["no more tokens"])
    if how == "odd":
        return object()
    if how == "frame":
        return np.zeros(200_000, "u1")
    return request


async def hang() -> None:
    await wait_until(lambda: Behaviour.how != "hang", 60)


async def generates(request: Any, ctx: Context) -> AsyncIterator[Any]:
    Behaviour.now += 1
    Behaviour.most = max(Behaviour.most, Behaviour.now)
    try:
        if Behaviour.how == "hang":
            await hang()
        if Behaviour.how != "nothing":
            yield answer(request, ctx)
            await ctx.wait_killed()  # a canary is over with its first item
    finally:
        Behaviour.now -= 1


async def answers(request: Any, ctx: Context) -> Any:
    if Behaviour.how == "hang":
        await hang()
    return answer(request, ctx)


def in_a_thread(request: Any, ctx: Context) -> Iterator[Any]:
    Behaviour.now += 1
    Behaviour.most = max(Behaviour.most, Behaviour.now)
    try:
        if Behaviour.how == "hang":
            Behaviour.release.wait()
        if Behaviour.how != "nothing":
            yield answer(request, ctx)
    finally:
        Behaviour.now -= 1


@bidirectional
async def reads(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
    if Behaviour.how == "hang":
        await hang()
    async for request in requests:  # ends: a canary is one item, and the end
        if Behaviour.how != "nothing":
            yield answer(request, ctx)


SHAPES = [generates, answers, in_a_thread, reads]
