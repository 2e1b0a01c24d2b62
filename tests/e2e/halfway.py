"""A client in a process of its own that ends its input and waits, to be killed then:
``python -m tests.e2e.halfway FOLDER ENDPOINT``.
"""

from __future__ import annotations

import asyncio
import sys

from actors.client import Client


async def main() -> None:
    folder, endpoint = sys.argv[1:3]
    async with Client(run=folder) as client, client.open(endpoint) as chat:
        for item in ("wait", 0):
            await chat.send(item)
        await chat.end()
        async for _ in chat:
            pass


if __name__ == "__main__":
    asyncio.run(main())
