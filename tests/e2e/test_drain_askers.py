"""What a stranger says in the name of others: a Drain is refused, a goodbye does not last."""

from __future__ import annotations

import asyncio
import sys

import zmq

from actors import Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.messages import Bye
from tests.waiting import DEADLINE, LONG
from transport.bus.address import inbox_path
from transport.wire.message import BatchWriter

ECHO = EngineSpec("t.echo.go", "tests.e2e.bus_engines:echo")
#: A client of another process asks everybody; the node's answers come behind what it did of that.
STRANGER = """
import asyncio, sys
from actors import connect
from actors.notices import Drain

async def main():
    async with connect(sys.argv[1]) as client:
        for record in client.records():
            client.runtime.send(record.address, Drain(0.0), control=True)
        for number in range(5):
            assert await client.call("t.echo.go", number, timeout=30) == number
            await asyncio.sleep(0.05)
        assert {"node", "engine", "router"} == {each.kind for each in client.records()}

asyncio.run(main())
"""


async def test_b52_a_drain_that_a_stranger_asks_for_is_refused() -> None:
    async with Cluster(NodeSpec(engines=[ECHO], routers=[RouterSpec()])) as cluster:
        command = (sys.executable, "-c", STRANGER, cluster.name)
        stranger = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(LONG):
            assert await stranger.wait() == 0
        async with cluster.client() as client:
            assert await client.call(ECHO.endpoint, 1) == 1


async def test_b33_who_is_taken_for_dead_and_calls_again_is_answered() -> None:
    """Here by a goodbye that another says in his name."""
    spec = NodeSpec(engines=[ECHO], routers=[RouterSpec()])
    async with Cluster(spec) as cluster, cluster.client() as client:
        assert await client.call(ECHO.endpoint, 1) == 1
        (engine,) = (each.address for each in client.records() if each.kind == "engine")
        batch = BatchWriter(client.runtime.address.incarnation).pack([Bye()])
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.connect(f"ipc://{inbox_path(client.runtime.run, engine, 'd')}")
            stranger.send(batch)
            stranger.close(500)
        await asyncio.sleep(0.3)  # it is read: nothing shows it
        assert await client.call(ECHO.endpoint, 2, timeout=DEADLINE) == 2
