"""JSON lines on stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any


def backend() -> str:
    """Where processes of the wheel find each other, as its own decorator reads it."""
    return os.environ["DYN_DISCOVERY_BACKEND"]


def say(**fields: Any) -> None:
    """One line to the test that started us."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def obey(handle: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Call ``handle`` for each line, side by side, until stdin ends."""
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        async for line in reader:
            group.create_task(_one(handle, json.loads(line)))


async def _one(handle: Callable[[dict[str, Any]], Awaitable[None]], order: dict[str, Any]) -> None:
    await handle(order)
