"""An engine that loses what it works with: its canary shows it, others do the work, and it is back
when it answers again.

Run it from anywhere: ``python examples/canary.py``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import Client, Cluster, Context, Engine, EngineSpec, NodeSpec, Settings

UPPER = "demo.upper.run"


class Upper(Engine[str, Any]):
    """Text in capitals, and the process that it comes from."""

    def __init__(self, folder: str) -> None:
        self.weights = Path(folder, str(os.getpid()))
        self.weights.touch()

    async def generate(self, request: str, ctx: Context) -> AsyncIterator[Any]:
        if not self.weights.exists():
            raise RuntimeError("the weights are gone")
        if "x-callhome-canary" in ctx.metadata:
            yield "here"  # it has come so far: there is no need to compute anything
        else:
            yield [request.upper(), os.getpid()]


async def until(client: Client, state: str, count: int) -> None:
    """Wait until the router sees so many workers in this state."""
    for _ in range(400):
        if [each.state for each in await client.workers(UPPER)].count(state) == count:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"no {count} workers are {state}")


def node(folder: str) -> NodeSpec:
    """Two workers, which are asked when they have given nothing for half a second (10 by default).

    ``callhome health`` tells of them from another shell.
    """
    engine = EngineSpec(UPPER, Upper, args={"folder": folder}, replicas=2, canary="are you there?")
    return NodeSpec(engines=[engine], settings=Settings.load(canary_wait=0.5))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(node(folder)) as cluster, cluster.client() as client:
            await until(client, "free", 2)
            pid = (await client.call(UPPER, "first"))[1]
            os.unlink(f"{folder}/{pid}")
            await until(client, "unready", 1)
            answers = [await client.call(UPPER, "more") for _ in range(10)]
            print(f"others: {sum(each[1] != pid for each in answers)} of 10 calls")
            os.close(os.open(f"{folder}/{pid}", os.O_CREAT))
            await until(client, "free", 2)
            print("both are back")


if __name__ == "__main__":
    asyncio.run(main())
