"""Engines and actors of the field reports on processes; imported by exec'd children."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors import Actor, Context, Engine, handles


async def wait_for_file(path: str) -> None:
    """Wait until somebody has made it; not at all for ""."""
    while path and not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - another process does
        await asyncio.sleep(0.02)


class Counts(Engine[Any, Any]):
    """Yields ``items`` numbers, one each ``pause`` seconds; without ``items`` it never ends. The
    last one is not given before there is a file ``until``.
    """

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        number = 0
        while number != request.get("items", -1):
            if number == request.get("items", -1) - 1:
                await wait_for_file(request.get("until", ""))
            yield number
            number += 1
            await asyncio.sleep(request.get("pause", 0.05))


class Keeper(Engine[Any, Any]):
    """Has a process of its own, which it never ends; answers with its pid and its child's.

    ``own``: what that process leads beside, a ``group`` or a ``session``.
    """

    def __init__(self, own: str = "") -> None:
        group = 0 if own == "group" else None
        self.child = subprocess.Popen(
            ["sleep", "1000"], process_group=group, start_new_session=own == "session"
        )

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield [os.getpid(), self.child.pid]


class Slow(Actor):
    """Takes its time to start."""

    async def on_start(self) -> None:
        await asyncio.sleep(1000)


class Deaf(Actor):
    """Hears no SIGTERM, and sits in a call that blocks as soon as there is a file ``sits``."""

    def __init__(self, sits: str) -> None:
        self.sits = Path(sits)

    async def on_start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loop.call_later(0.3, self._sit)

    def _sit(self) -> None:
        self.sits.touch()
        time.sleep(1000)


class Breaks(Actor):
    """Ends with ``code`` after ``life`` seconds; each start is a line of ``file``."""

    def __init__(self, file: str, life: float, code: int) -> None:
        self.file, self.life, self.code = Path(file), life, code

    async def on_start(self) -> None:
        with self.file.open("a") as file:
            file.write(f"{time.monotonic()}\n")
        asyncio.get_running_loop().call_later(self.life, os._exit, self.code)


class Hurt(NamedTuple):
    """End the process: ``exit 3`` for the exit code, ``signal 11`` for the signal."""

    how: str


def end(how: str) -> None:
    """End this process so."""
    what, number = how.split()
    if what == "exit":
        os._exit(int(number))
    os.kill(os.getpid(), int(number))


class Victim(Actor):
    """Ends as it is told to."""

    @handles(Hurt)
    async def hurt(self, message: Hurt) -> None:
        end(message.how)


async def ends(request: str, ctx: Context) -> None:
    """As ``Victim``, in a stream."""
    end(request)


async def draws(request: Any, ctx: Context) -> list[float]:
    """A number of each generator that user code draws from; with a seed the same ones."""
    if request is not None:
        np.random.seed(request)
        random.seed(request)
    return [float(np.random.rand()), random.random(), float(np.random.default_rng().random())]


class NoModel(Actor):
    """Fails in its constructor by ``how``."""

    def __init__(self, how: str) -> None:
        if how == "raise":
            raise ValueError("no such model")
        if how == "exit":
            os._exit(3)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)


class Shot(Actor):
    """Ends its process as ``Victim`` does, a moment after its node is up: not while it starts."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def on_start(self) -> None:
        asyncio.get_running_loop().call_later(0.1, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if os.path.exists(f"{self.runtime.run}/node.json"):
            loop.call_later(0.3, end, self.how)
        else:
            loop.call_later(0.05, self._look)
