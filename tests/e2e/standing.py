"""A cluster that stands while the tests of a module run, for tests that break nothing in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors import Client, Cluster, NodeSpec, Settings, connect
from actors.kernel.ref import Ref
from actors.messages import Inspect
from tests.waiting import wait_until

_START = 30.0


class Standing:
    """A running cluster as tests see it, from loops of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = cluster.name
        self.pids = {child.name: child.pid for child in cluster.nodes[0].children}

    def client(self, **settings: Any) -> Client:
        """A client with settings of its own."""
        return connect(self.name, settings=Settings.load(**settings))


@contextmanager
def standing(spec: NodeSpec) -> Iterator[Standing]:
    """Start ``spec`` in a thread with a loop of its own, and stop it."""
    begun = threading.Event()
    found: list[Standing] = []
    failed: list[BaseException] = []
    end: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        async with Cluster(spec) as cluster:
            leave = asyncio.Event()
            end.append((asyncio.get_running_loop(), leave))
            found.append(Standing(cluster))
            begun.set()
            await leave.wait()

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            begun.set()

    runner = threading.Thread(target=thread, name="standing cluster")
    runner.start()
    begun.wait(_START)
    if not found:
        runner.join(_START)
        raise failed[0]
    try:
        yield found[0]
    finally:
        loop, leave = end[0]
        loop.call_soon_threadsafe(leave.set)
        runner.join(_START)
    if failed:
        raise failed[0]


async def inspect(ref: Ref) -> dict[str, Any]:
    """What an actor says it carries, and its counters."""
    async with ref.stream(Inspect(), timeout=5.0) as answers:
        async for answer in answers:
            found: dict[str, Any] = answer
            return found
    raise AssertionError(f"{ref.name} gave no answer")


async def wait_idle(client: Client, router: str = "router") -> None:
    """Wait until no engine carries a stream and the router holds no permit."""

    async def idle() -> bool:
        if (await inspect(client.ref(router)))["in_flight"]:
            return False
        names = [each.address.name for each in client.records() if each.kind == "engine"]
        carried = [await inspect(client.ref(name)) for name in names]
        return not any(each["in_flight"] or each["queued"] for each in carried)

    await wait_until(idle, what="occupancy is back to 0")


async def wait_returned(client: Client) -> None:
    """Wait until every lease of the client's own memory is back."""
    memory = client.runtime.memory

    def returned() -> bool:
        client.runtime.links.send_releases()  # settles our own; peers answer by themselves
        return not memory.statistics().slots

    await wait_until(returned, what="leases of the client's frames are back")
