"""One client process of Dynamo's wheel for ``perf.spread``: its own router, its own part of the
calls.

``python -m perf.peers.wheel_crowd MODE LOOPS START COUNTS END PACE SEED`` prints visits as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from perf.peers.wheel import Caller, found
from perf.spread import ENDPOINT, ENGINES, Window, crowd


async def main(mode: str, loops: str, *more: str) -> None:
    """Wait for the workers, make the calls, print what came of them."""
    from dynamo.runtime import DistributedRuntime

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    caller = Caller({ENDPOINT: await found(runtime, ENDPOINT, ENGINES, mode)})
    *when, seed = map(float, more)
    visits = await crowd(
        lambda request: caller.call(ENDPOINT, request, timeout=0.0),
        int(loops),
        int(seed),
        Window(*when),
    )
    sys.stdout.write(json.dumps(visits) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
