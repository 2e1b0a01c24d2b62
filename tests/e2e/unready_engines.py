"""An engine that answers its canary unless a file says otherwise, and one that blocks its loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors import Context, Engine

MARK = "x-callhome-canary"


def fault(folder: str, pid: int) -> Path:
    """While this file is there the engine with that pid fails."""
    return Path(folder, str(pid))


class Answers(Engine[dict[str, Any], Any]):
    """``pid`` and whether the request was a canary; with ``hold`` the stream goes on until a file
    of that name is there, and gives one item more.
    """

    def __init__(self, folder: str) -> None:
        self.fault = fault(folder, os.getpid())

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        if self.fault.exists():
            raise RuntimeError("the weights are gone")
        yield [os.getpid(), ctx.metadata.get(MARK, "")]
        if path := request.get("hold"):
            while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(0.02)
            yield "went on"


async def blocks(request: dict[str, Any]) -> AsyncIterator[Any]:
    """Block the loop for ``seconds``: asleep, or in NumPy."""
    import numpy as np

    until = time.monotonic() + request["seconds"]
    if request["how"] == "sleep":
        time.sleep(request["seconds"])  # noqa: ASYNC251 - the fault that is tried
    while time.monotonic() < until:
        np.sort(np.random.default_rng(1).random(200_000))
    yield os.getpid()
