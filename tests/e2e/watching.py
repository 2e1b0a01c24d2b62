"""What the tests of cancels and deaths look at: traces of handlers, and what routers and engines
carry.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from actors.client import Client
from actors.cluster.launcher import Cluster
from actors.errors import CallHomeError
from actors.kernel.ref import Ref
from actors.messages import Inspect
from tests.waiting import DEADLINE, LONG, wait_until, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]


class Event(NamedTuple):
    """One line of a trace."""

    what: str
    tag: str
    time: float


class Trace:
    """A trace file, as ``tests.e2e.cancel_engines`` writes it."""

    def __init__(self, folder: Path, name: str = "trace") -> None:
        self.path = str(folder / name)
        Path(self.path).touch()

    def clear(self) -> None:
        """Forget what earlier tests did; those who write append."""
        Path(self.path).write_text("")

    def events(self, what: str | None = None) -> list[Event]:
        """All events so far, or those called ``what``."""
        lines = Path(self.path).read_text().splitlines()
        found = [Event(a, b, float(c)) for a, b, c in (line.split(" ") for line in lines)]
        return [event for event in found if what is None or event.what == what]

    def tags(self, what: str) -> set[str]:
        """The tags of all events called ``what``."""
        return {event.tag for event in self.events(what)}

    def count(self, what: str) -> int:
        return len(self.events(what))

    async def until(self, what: str, count: int = 1, within: float = DEADLINE) -> None:
        """Wait until ``what`` has happened ``count`` times."""
        await wait_until(
            lambda: self.count(what) >= count, within, f"{count} times {what!r} in the trace"
        )


async def inspect(client: Client | Cluster, name: str) -> dict[str, Any]:
    """What an actor carries; empty while it does not live."""
    try:
        ref: Ref = client.ref(name)
        async with ref.stream(Inspect(), timeout=DEADLINE) as answers:
            async for answer in answers:
                found: dict[str, Any] = answer
                return found
    except CallHomeError:
        return {}
    return {}


async def idle(client: Client | Cluster, *engines: str, router: str = "router") -> bool:
    """Whether the router has all permits back, and no engine has a stream or waits to start one."""
    found = await inspect(client, router)
    if found.get("in_flight") != 0 or any(each["load"] for each in found["workers"]):
        return False
    for name in engines:
        carried = await inspect(client, name)
        if carried.get("in_flight") != 0 or carried["queued"] != 0:
            return False
    return True


async def wait_idle(
    client: Client | Cluster, *engines: str, router: str = "router", within: float = LONG
) -> None:
    """Wait until permits, places and queue places are back."""

    async def check() -> bool:
        return await idle(client, *engines, router=router)

    await wait_until(check, within, "permits and places are back")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process."""
    os.kill(pid, number)


def stop(pid: int) -> None:
    """Have a process stand: it does nothing more from when this returns."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in tasks)

    wait_until_sync(stands, what="all threads have stopped")


@contextlib.contextmanager
def program(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program of its own, its standard output to be read; killed at the block's end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
