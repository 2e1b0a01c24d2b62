"""A worker that is stopped and goes on: its stream waits, its caller is told, others do the work.

Run it from anywhere: ``python examples/frozen.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import (
    Client,
    Cluster,
    Context,
    EngineSpec,
    NodeSpec,
    RouterSpec,
    Settings,
    StreamWarning,
)

COUNT = "demo.count.up"


async def count(request: int, ctx: Context) -> AsyncIterator[list[int]]:
    """Numbers, and the process that they come from."""
    for number in range(request):
        yield [number, os.getpid()]
        await asyncio.sleep(0.02)


async def frozen(client: Client) -> None:
    """Wait until the router has seen it, too."""
    for _ in range(400):
        if any(each.state == "frozen" for each in await client.workers(COUNT)):
            return
        await asyncio.sleep(0.05)


NODE = NodeSpec(
    engines=[EngineSpec(COUNT, count, replicas=2)],
    routers=[RouterSpec()],
    settings=Settings.load(frozen_after=2.0),  # the default is 3 seconds
)


async def main() -> None:
    async with Cluster(NODE) as cluster, cluster.client() as client:
        told: asyncio.Queue[StreamWarning] = asyncio.Queue()
        async with client.stream(COUNT, 50, on_warning=told.put_nowait) as items:
            found = [await anext(items)]
            pid = found[0][1]
            os.kill(pid, signal.SIGSTOP)
            try:
                warning = await asyncio.wait_for(told.get(), 30)
                print(f"{warning.code}: {warning.text.replace(str(pid), 'PID')}")
                await frozen(client)
                others = [await client.call(COUNT, 1, timeout=30) for _ in range(10)]
                print(f"others: {sum(each[1] != pid for each in others)} of 10 calls")
            finally:
                os.kill(pid, signal.SIGCONT)
            found += [item async for item in items]
        whole = [number for number, _ in found] == list(range(50))
        print(f"stream: {len(found)} numbers, each once: {whole}")
        print(f"told: {', '.join(each.code for each in items.warnings)}")


if __name__ == "__main__":
    asyncio.run(main())
