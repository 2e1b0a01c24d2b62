"""A cluster that stands while the tests of a module run, for tests that break nothing in it.

``ROADS`` are the two ways from a caller to an engine: inside a node, and from one node to another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from actors import Client, Cluster, NodeSpec, Settings, connect
from actors.cluster.launcher import find_node
from actors.kernel.ref import Ref
from actors.messages import Inspect, Record
from tests.ports import free_address
from tests.waiting import DEADLINE, LONG, wait_until

_START = 120.0
ROADS = ["node", "nodes"]


class Standing:
    """A running cluster as tests see it, from loops of their own."""

    def __init__(self, cluster: Cluster, road: str) -> None:
        self.name = cluster.name
        self.road = road
        #: Where the clients' node has its sockets.
        self.folder = cluster.nodes[0].folder
        #: Where other programs reach the first node, if anywhere.
        self.listen = cluster.nodes[0].listen
        self.pids = {child.name: child.pid for node in cluster.nodes for child in node.children}

    def client(self, **settings: Any) -> Client:
        """A client with settings of its own."""
        own = Settings.load(**settings)
        if self.road == "node":
            return connect(self.name, settings=own)
        return FarClient(self.name, own)


class FarClient(Client):
    """A client on node ``a`` of engines on node ``b``; refs and records of these are ``b``'s."""

    def __init__(self, cluster: str, settings: Settings) -> None:
        super().__init__(run=find_node(cluster, "a").folder, settings=settings)
        self._far = connect(cluster, "b")

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._far.__aenter__()
        return self

    def close(self) -> None:
        self._far.close()
        super().close()

    def ref(self, name: str) -> Ref:
        return super().ref(name) if name == "router" else self._far.ref(name)

    def records(self) -> list[Record]:
        return self._far.records()


class FarCluster(Cluster):
    """Two nodes: clients are on ``a``, the engines of ``spec`` on ``b``."""

    def __init__(self, spec: NodeSpec) -> None:
        super().__init__(on_road(spec, "nodes"))

    def client(self, *arguments: Any, **options: Any) -> Client:
        return FarClient(self.name, Settings.load())


def cluster_on(spec: NodeSpec, road: str) -> Cluster:
    """A cluster in which the engines of ``spec`` are called by that road."""
    return Cluster(spec) if road == "node" else FarCluster(spec)


def on_road(spec: NodeSpec | list[NodeSpec], road: str) -> list[NodeSpec]:
    """The nodes of a cluster in which ``spec`` is called by that road; a list is taken as it is."""
    if isinstance(spec, list):
        return spec
    if road == "node":
        return [spec]
    door = free_address()
    near = NodeSpec(name="a", peers=[door], settings=spec.settings)
    return [near, replace(spec, name="b", listen=door)]


@contextmanager
def standing(spec: NodeSpec | list[NodeSpec], road: str = "node") -> Iterator[Standing]:
    """Start ``spec`` in a thread with a loop of its own, to be called by ``road``; stop it."""
    begun = threading.Event()
    found: list[Standing] = []
    failed: list[BaseException] = []
    end: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        async with Cluster(on_road(spec, road)) as cluster:
            leave = asyncio.Event()
            end.append((asyncio.get_running_loop(), leave))
            found.append(Standing(cluster, road))
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
    async with ref.stream(Inspect(), timeout=DEADLINE) as answers:
        async for answer in answers:
            found: dict[str, Any] = answer
            return found
    raise AssertionError(f"{ref.name} gave no answer")


async def wait_idle(client: Client, router: str = "router") -> None:
    """Wait until no engine carries a stream and the router holds no permit."""

    async def idle() -> bool:
        if (await inspect(client.ref(router)))["in_flight"]:
            return False
        serving = ("engine", "ingress")
        names = [each.address.name for each in client.records() if each.kind in serving]
        carried = [await inspect(client.ref(name)) for name in names]
        return not any(each["in_flight"] or each["queued"] for each in carried)

    await wait_until(idle, LONG, "occupancy is back to 0")


async def wait_returned(client: Client) -> None:
    """Wait until every lease of the client's own memory is back."""
    memory = client.runtime.memory

    def returned() -> bool:
        client.runtime.links.send_releases()  # settles our own; peers answer by themselves
        return not memory.statistics().slots

    await wait_until(returned, what="leases of the client's frames are back")
