"""B124 over two nodes: who has taken a request and goes silent is given up in the time that is
set, long before the connection counts as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import pytest

from actors import Client, EngineSpec, NodeSpec, Settings
from actors.errors import CallHomeError
from tests.e2e.standing import FarCluster
from tests.e2e.watching import Trace, inspect, kill, wait_idle
from tests.waiting import DEADLINE, PATIENCE, wait_until

SLOW = "t.slow.go"
LIMIT = 1.0


async def answers(client: Client) -> bool:
    with contextlib.suppress(CallHomeError):
        return bool(await client.call(SLOW, {"wait": 0.0}, timeout=PATIENCE) == "late")
    return False


@pytest.mark.parametrize("who", ["ingress", SLOW])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_b124_accepted_and_never_begun(
    tmp_path: Path, who: str, number: signal.Signals
) -> None:
    trace = Trace(tmp_path)
    slow = EngineSpec(
        SLOW, "tests.e2e.cancel_engines:Slow", args={"trace": trace.path}, restart="never"
    )
    settings = Settings.load(
        ack_timeout=LIMIT,
        dial_in_timeout=LIMIT,
        prologue_timeout=LIMIT,
        stop_grace=LIMIT,
        drain_limit=0.0,
    )
    spec = NodeSpec(engines=[slow], settings=settings)
    async with FarCluster(spec) as cluster, cluster.client() as client:
        await wait_until(lambda: answers(client), what="it answers within limits that are short")
        victim = client.ref(who).address.pid
        kill(victim, number)
        calls = []
        for _ in range(20):
            calls.append(asyncio.ensure_future(client.call(SLOW, {"wait": 60.0}, timeout=None)))
            await asyncio.sleep(0.001)
        gone = time.monotonic()
        try:
            results = await asyncio.gather(*calls, return_exceptions=True)
            took = time.monotonic() - gone
        finally:
            if number == signal.SIGSTOP:
                kill(victim, signal.SIGCONT)
        assert all(isinstance(each, CallHomeError) for each in results), results
        assert took < LIMIT + DEADLINE, (took, results[0], results[-1])
        if number == signal.SIGSTOP:  # which of the limits it was is said
            assert all("within 1 s" in str(each) for each in results), results
        await wait_idle(client)

        async def only_followed() -> bool:
            ways = (await inspect(client, "router"))["ways"]
            return bool(sum(each["streams"] for each in ways) <= 2)

        await wait_until(only_followed, what="nothing but records and loads is followed")
