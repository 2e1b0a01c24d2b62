"""The road of Dynamo's wheel: its own client here, its own worker in a process beside it.

Runs in an interpreter that has ``ai-dynamo-runtime`` and needs nothing of callhome. Records go
through a folder, as the wheel's directory discovery does it; no other service is needed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from perf.plan import CoreNotOurs, PerfError, Plan
from perf.road import LIMIT, Served


class Caller:
    """What the suites use of a client, over the wheel's.

    ``drains`` is read by the cancel suite: a worker of Dynamo's closes a stopped stream at once,
    without the items that its handler still yields.
    """

    drains = False

    def __init__(self, clients: dict[str, Any]) -> None:
        self._clients = clients

    async def call(self, endpoint: str, request: Any, *, timeout: float) -> Any:
        """One request, one answer: the first item; the wheel has no deadline of its own."""
        stream = await self._clients[endpoint].generate(request, annotated=False)
        answer = None
        async for item in stream:
            answer = item
        return answer

    def stream(self, endpoint: str, request: Any) -> Stream:
        """A stream that is opened by entering it."""
        return Stream(self._clients[endpoint], request)


class Stream:
    """One stream of the wheel; leaving its block stops it and lets go of it."""

    def __init__(self, client: Any, request: Any) -> None:
        from dynamo.runtime import Context

        self._client = client
        self._request = request
        self._context = Context()
        self._items: Any = None

    async def __aenter__(self) -> Self:
        self._items = await self._client.generate(
            self._request, annotated=False, context=self._context
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        # Letting go of the iterator is noticed there at the next item only; this is what it has.
        self._context.stop_generating()
        self._items = None

    def __aiter__(self) -> Any:
        """The wheel's own iterator: nothing of ours stands between it and the loop."""
        return self._items

    def stop(self) -> None:
        """Ask the handler to end."""
        self._context.stop_generating()


@asynccontextmanager
async def launched(plan: Plan, engines: Sequence[Served]) -> AsyncIterator[Caller]:
    """Workers with ``engines``, as many as the engines have replicas, and a client of each engine.

    Raises PerfError when a worker does not come up, CoreNotOurs when it left its core.
    """
    with tempfile.TemporaryDirectory(prefix="callhome-perf-") as folder:
        os.environ.update(environment(folder))
        workers = [_worker(plan, engines) for _ in range(engines[0].replicas)]
        try:
            yield Caller(await _clients(workers, engines))
            for worker in workers:
                allowed = os.sched_getaffinity(worker.pid)
                if allowed != {engines[0].core}:
                    raise CoreNotOurs(f"a worker may use the cores {sorted(allowed)}")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _worker(plan: Plan, engines: Sequence[Served]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "perf.peers.wheel_engines", plan.loop, str(engines[0].core)]
    command += [f"{served.endpoint}={served.attribute}" for served in engines]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)


async def _clients(
    workers: Sequence[subprocess.Popen[bytes]], engines: Sequence[Served]
) -> dict[str, Any]:
    from dynamo.runtime import DistributedRuntime

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    try:
        return {
            each.endpoint: await found(runtime, each.endpoint, len(workers)) for each in engines
        }
    except TimeoutError:
        codes = [worker.poll() for worker in workers]
        raise PerfError(f"not all of the wheel's workers came up (exit codes {codes})") from None


async def found(runtime: Any, endpoint: str, workers: int, policy: str = "round_robin") -> Any:
    """A client that knows so many workers and chooses among them by ``policy``.

    Raises TimeoutError when they do not come up.
    """
    from dynamo.llm import RouterMode

    mode = getattr(RouterMode, policy.title().replace("_", ""))
    client = await runtime.endpoint(endpoint).client(mode)
    async with asyncio.timeout(LIMIT):
        # The wheel tells of the first instance only; the others have to be looked for.
        while len(await client.wait_for_instances()) < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return client


def environment(folder: str) -> dict[str, str]:
    """The variables by which two processes of the wheel meet in ``folder``; all else is as it
    comes.
    """
    return {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": folder,
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
    }
