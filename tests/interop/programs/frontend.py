"""The HTTP frontend of Dynamo's wheel, its one requester of two-way streams (``/v1/realtime``)."""

from __future__ import annotations

import asyncio
import sys

from dynamo._core import EngineType, EntrypointArgs, make_engine, run_input
from dynamo.runtime import DistributedRuntime

from tests.interop.programs.lines import backend, say


async def main(port: int) -> None:
    """Serve HTTP on ``port`` until the process is ended."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), backend(), "tcp")
    arguments = EntrypointArgs(EngineType.Dynamic, http_host="127.0.0.1", http_port=port)
    engine = await make_engine(runtime, arguments)
    say(event="ready")
    await run_input(runtime, "http", engine)


asyncio.run(main(int(sys.argv[1])))
