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


class Counts(Engine[Any, Any]):
    """Yields ``items`` numbers, one each ``pause`` seconds; without ``items`` it never ends."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        number = 0
        while number != request.get("items", -1):
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
    """Hears no SIGTERM, and sits in a call that blocks."""

    async def on_start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        loop.call_later(0.3, time.sleep, 1000)


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


class Victim(Actor):
    """Ends as it is told to."""

    @handles(Hurt)
    async def hurt(self, message: Hurt) -> None:
        what, number = message.how.split()
        if what == "exit":
            os._exit(int(number))
        os.kill(os.getpid(), int(number))


async def ends(request: str, ctx: Context) -> None:
    """As ``Victim``, in a stream."""
    await Victim().hurt(Hurt(request))


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
    """Dies of a signal a moment after its start."""

    async def on_start(self) -> None:
        asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGSEGV)
