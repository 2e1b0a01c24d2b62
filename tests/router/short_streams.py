"""Short streams in a row to a node that is taken for one of Dynamo's, a socket for each of them:
``python -m tests.router.short_streams FOLDER ROUNDS``.

It prints a line of JSON for each round of 500: how many failed, descriptors and dials so
far, the p99, and what one has cost.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from actors.errors import CallHomeError
from tests.router import engines
from tests.router.nodes import node
from tests.router.rig import router_rig

GO = "t.far.go"
DIALS = ("dialled", "dial.ports", "dial.failed")


async def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    async with node(folder / "b", (GO, engines.Count, {})) as far:
        records = [each._replace(speaks="") for each in far.records]
        async with router_rig(folder / "a", *records) as here:
            for _ in range(rounds):
                failed, times, used = 0, [], time.process_time()
                for _ in range(500):
                    begun = time.perf_counter()
                    try:
                        async with here.client.stream(GO, {"n": 2}) as items:
                            assert [item async for item in items] == [0, 1]
                    except CallHomeError as error:
                        failed += 1
                        sys.stderr.write(f"{error}\n")
                    times.append(time.perf_counter() - begun)
                await here.idle()
                found = {"failed": failed, "p99": sorted(times)[494], "fds": descriptors()}
                found["cpu"] = (time.process_time() - used) / 500
                found |= {each: far.ingress.net.counters.get(each, 0) for each in DIALS}
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    asyncio.run(main())
