"""Actors that fail in every way a child can fail; imported by exec'd children only."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from actors.kernel.actor import Actor


class Fine(Actor):
    """Comes up, and ends cleanly when asked."""


class BadConstructor(Actor):
    """Raises before it is anything."""

    def __init__(self) -> None:
        raise ValueError("no luck with this constructor")


class BadStart(Actor):
    """Raises in on_start."""

    async def on_start(self) -> None:
        raise RuntimeError("no luck at the start")


class SlowStart(Actor):
    """Is never ready."""

    async def on_start(self) -> None:
        await asyncio.Event().wait()


class ExitsAtOnce(Actor):
    """Leaves before it is ready."""

    async def on_start(self) -> None:
        os._exit(3)


class KilledAtOnce(Actor):
    """Is killed before it is ready."""

    async def on_start(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Deaf(Actor):
    """Does not hear SIGTERM."""

    async def on_start(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Crashes(Actor):
    """Is ready, then dies; ``file`` counts its starts, and after ``starts`` of them it stays up."""

    def __init__(self, file: str, starts: int) -> None:
        self.file = Path(file)
        self.starts = starts

    async def on_start(self) -> None:
        with self.file.open("a") as file:
            file.write("x")
        if len(self.file.read_text()) <= self.starts:
            asyncio.get_running_loop().call_later(0.01, os._exit, 7)


class StartsOnce(Actor):
    """Comes up the first time, and dies unless it ``lives``; every later start fails."""

    def __init__(self, file: str, lives: bool = False) -> None:
        self.file = Path(file)
        self.lives = lives

    async def on_start(self) -> None:
        if self.file.exists():
            raise RuntimeError("only once")
        self.file.touch()
        if not self.lives:
            asyncio.get_running_loop().call_later(0.01, os._exit, 7)


class ReadyOnce(Actor):
    """Comes up the first time, and is never ready after that."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def on_start(self) -> None:
        if self.file.exists():
            await asyncio.Event().wait()
        self.file.touch()


class ReadyUnless(Actor):
    """Is never ready if ``file`` is there when it starts, and notes in it that it has seen it."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def on_start(self) -> None:
        if self.file.exists():
            self.file.write_text("seen")
            await asyncio.Event().wait()


class Facts(Actor):
    """Writes what its process looks like into ``file``."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def on_start(self) -> None:
        self.file.write_text(
            repr(
                {
                    "cores": sorted(os.sched_getaffinity(0)),
                    "threads": os.environ.get("OMP_NUM_THREADS"),
                    "stdin": os.read(0, 1),
                    "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
                    "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in open_fds()),
                    "pythonpath": os.environ.get("PYTHONPATH"),
                    "extra": os.environ.get("EXTRA"),
                    "comm": comm(),
                    "numpy": "numpy" in sys.modules,
                }
            )
        )


def open_fds() -> list[str]:
    """Descriptors of this process that still exist."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def comm() -> str:
    """The name of this process."""
    return Path("/proc/self/comm").read_text().strip()
