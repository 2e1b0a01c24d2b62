"""An actor of your own: tell, ask, a stream, and a crash that it survives.

Run it from anywhere: ``python examples/counter.py``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import Actor, ActorSpec, CallHomeError, Cluster, NodeSpec, Ref, connect, handles


class Add(NamedTuple):
    """Add ``amount``; the answer is the total."""

    amount: int


class CountTo(NamedTuple):
    """Count from the total up to ``limit``; a stream."""

    limit: int


class Crash(NamedTuple):
    """End the process as a bug in native code would."""


class Counter(Actor):
    """Counts; answers the running total."""

    async def on_start(self) -> None:
        self.total = 0

    @handles(Add)
    async def add(self, message: Add) -> int:
        self.total += message.amount
        return self.total

    @handles(CountTo)
    async def count_to(self, message: CountTo) -> AsyncIterator[int]:
        for number in range(self.total, message.limit + 1):
            yield number

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        os._exit(3)


NODE = NodeSpec(actors=[ActorSpec("counter", actor=Counter, restart="on-failure")])


async def ask_again(counter: Ref, message: Add) -> int:
    """Ask until the actor is back; only errors that may pass are tried again."""
    async with asyncio.timeout(30):
        while True:
            try:
                answer: int = await counter.ask(message, timeout=10.0)
            except CallHomeError as error:
                if not error.retry:
                    raise
                await asyncio.sleep(0.05)
            else:
                return answer


async def main() -> None:
    async with Cluster(NODE) as cluster:
        counter = cluster.ref("counter")
        await counter.tell(Add(1))  # goes on at once; nobody answers
        print("told 1, asked 2, total:", await counter.ask(Add(2), timeout=10.0))
        async with counter.stream(CountTo(6)) as numbers:
            print("counted:", [number async for number in numbers])

        async with connect(cluster.name) as other:  # as any other program of this user would
            print("from another client:", await other.ref("counter").ask(Add(10)))

        before = counter.address.pid
        await counter.tell(Crash())
        try:
            await counter.ask(Add(1), timeout=10.0)
        except CallHomeError as error:
            print(f"behind the crash: {type(error).__name__}: {error}")
        print("after its restart it counts anew:", await ask_again(counter, Add(5)))
        print("in another process:", counter.address.pid != before)


if __name__ == "__main__":
    asyncio.run(main())
