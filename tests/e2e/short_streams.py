"""A client in a process of its own that opens 1000 short streams in a row, and that so many times:
``python -m tests.e2e.short_streams FOLDER ENDPOINT ROUNDS``.

It prints a line of JSON for each round: how many failed, and the p99 in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from actors.client import Client
from actors.errors import CallHomeError


async def main() -> None:
    folder, endpoint, rounds = sys.argv[1:4]
    async with Client(run=folder) as client:
        for _ in range(int(rounds)):
            failed, times = 0, []
            for _ in range(1000):
                begun = time.perf_counter()
                try:
                    async with client.stream(endpoint, {"do": "numbers", "n": 2}) as items:
                        assert [item async for item in items] == [0, 1]
                except CallHomeError:
                    failed += 1
                times.append(time.perf_counter() - begun)
            sys.stdout.write(json.dumps({"failed": failed, "p99": sorted(times)[989]}) + "\n")
            sys.stdout.flush()
        await asyncio.Event().wait()  # nothing is closed before the test has looked


if __name__ == "__main__":
    asyncio.run(main())
