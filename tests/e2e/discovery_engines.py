"""Engines of the tests on discovery; imported by exec'd children."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from actors import Context, Engine


class Who(Engine[Any, Any]):
    """Says who answers, and whether it had ended its warm-up of ``warm`` seconds; ``wait`` seconds
    of the request go by between two answers.
    """

    def __init__(self, name: str = "", warm: float = 0.0) -> None:
        self.name, self.warm = name, warm
        self.ready = 0.0

    async def on_start(self) -> None:
        await asyncio.sleep(self.warm)
        self.ready = time.monotonic()

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        told = {"name": self.name, "pid": os.getpid(), "ready": self.ready, "at": time.monotonic()}
        yield told
        for _ in range((request or {}).get("more", 0)):
            await asyncio.sleep(0.05)
            yield told
