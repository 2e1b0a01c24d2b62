"""More peers than there are descriptors for: no process ends of it, and later ones are welcome."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.errors import CallHomeError
from actors.kernel.peers import start_time
from tests.waiting import DEADLINE, LONG, PATIENCE, wait_until
from transport.bus.address import inbox_path

ECHO = EngineSpec("t.echo.go", "tests.e2e.bus_engines:echo")
LIMIT = 192


async def test_b84_more_clients_than_descriptors_end_nobody() -> None:
    spec = NodeSpec(engines=[ECHO], routers=[RouterSpec()])
    async with Cluster(spec) as cluster, cluster.client() as old:
        pids = [each.address.pid for each in old.records()]
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        assert await old.call(ECHO.endpoint, 0) == 0
        refused = 0
        async with contextlib.AsyncExitStack() as stack:
            for number in range(60):
                try:
                    client: Client = await stack.enter_async_context(cluster.client())
                    assert await client.call(ECHO.endpoint, number, timeout=2) == number
                except CallHomeError:
                    refused += 1
                if refused > 3:
                    break
            assert refused
            assert await old.call(ECHO.endpoint, 1, timeout=DEADLINE) == 1
        assert all(map(runs, pids))
        await wait_until(lambda: served(cluster), LONG, "new clients are served again")


def runs(pid: int) -> bool:
    return start_time(pid) > 0


async def served(cluster: Cluster) -> bool:
    try:
        async with cluster.client() as client:
            return bool(await client.call(ECHO.endpoint, 1, timeout=PATIENCE) == 1)
    except CallHomeError:
        return False


async def test_b84_a_stranger_who_connects_without_end_ends_nobody() -> None:
    spec = NodeSpec(engines=[ECHO], routers=[RouterSpec()])
    async with Cluster(spec) as cluster, cluster.client() as old:
        (engine,) = (each.address for each in old.records() if each.kind == "engine")
        resource.prlimit(engine.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        assert await old.call(ECHO.endpoint, 0) == 0
        path = inbox_path(cluster.nodes[0].folder, engine, "d")
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with contextlib.suppress(OSError):
                    caller.connect(path)
            await asyncio.sleep(0.5)
            assert runs(engine.pid)
            assert await old.call(ECHO.endpoint, 1, timeout=DEADLINE) == 1
