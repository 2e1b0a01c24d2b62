"""The registry over the bus: two runtimes with sockets between them, and one that is killed."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.discovery.base import Change
from actors.discovery.lookup import NodeLookup
from actors.discovery.publisher import Publisher
from actors.discovery.registry import Registry, RegistryDiscovery
from actors.errors import ActorDead, DeadlineExceeded, NoWorkers
from actors.kernel.runtime import Runtime
from actors.messages import Added, Down, Record, Removed, Snapshot
from tests.clock import Clock
from tests.clock import clock as clock
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.bus.address import Address


@pytest.fixture
def run() -> Iterator[str]:
    folder = Path(os.environ["CALLHOME_RUN"], secrets.token_hex(3))
    folder.mkdir(0o700)
    yield str(folder)
    folder.rmdir()


def record(instance: int, kind: str = "engine", name: str = "") -> Record:
    address = Address(name or f"{kind}-{instance}", instance, 100 + instance, 1)
    return Record(instance, address, kind, "a.b.c" if kind == "engine" else "")


class Node:
    """The node's end."""

    def __init__(self, runtime: Runtime, group: asyncio.TaskGroup) -> None:
        self.runtime = runtime
        self.registry = Registry()
        self.publisher = Publisher(runtime, self.registry, group)


@asynccontextmanager
async def joined(run: str) -> AsyncIterator[tuple[Node, Runtime]]:
    """A node and another process's runtime, each with a ZeroMQ context of its own."""
    node, other = Runtime(run=run, name="node"), Runtime(run=run, name="client")
    try:
        async with asyncio.TaskGroup() as group:
            yield Node(node, group), other
    finally:
        other.close()
        node.close()


async def test_snapshot_then_changes_in_order(run: str) -> None:
    async with joined(run) as (node, other):
        node.registry.add(record(1))
        heard: list[Change] = []
        discovery = RegistryDiscovery(other, node.runtime.address)
        await discovery.subscribe(heard.append)
        assert heard == [Snapshot([record(1)])]
        for number in range(2, 200):
            node.registry.add(record(number))
        node.registry.remove(1, None, "killed by SIGKILL")
        await wait_until(lambda: len(heard) == 200)
        assert heard[1:-1] == [Added(record(number)) for number in range(2, 200)]
        assert heard[-1] == Removed(record(1), "killed by SIGKILL")
        assert discovery.records == node.registry.records


async def test_two_listeners_of_one_process_hear_everything(run: str) -> None:
    async with joined(run) as (node, other):
        discovery = RegistryDiscovery(other, node.runtime.address)
        first: list[Change] = []
        second: list[Change] = []
        await discovery.subscribe(first.append)
        node.registry.add(record(1))
        await wait_until(lambda: len(first) == 2)
        subscription = await discovery.subscribe(second.append)
        assert second == [Snapshot([record(1)])]
        subscription.cancel()
        node.registry.add(record(2))
        await wait_until(lambda: len(first) == 3)
        assert len(second) == 1
        assert len(node.publisher.subscribers) == 1


async def test_stop_unsubscribes(run: str) -> None:
    async with joined(run) as (node, other):
        discovery = RegistryDiscovery(other, node.runtime.address)
        await discovery.start()
        discovery.stop()
        await wait_until(lambda: not node.publisher.subscribers)


async def test_a_node_that_does_not_answer_is_a_deadline(run: str, clock: Clock) -> None:
    silent, other = Runtime(run=run, name="node"), Runtime(run=run, name="client")
    starting = asyncio.ensure_future(RegistryDiscovery(other, silent.address).start(LONG))
    await asyncio.sleep(0)
    clock.turn(LONG / 2)  # no other limit strikes before
    await asyncio.sleep(2 * TICK)
    assert not starting.done()
    clock.turn(LONG / 2)
    with pytest.raises(DeadlineExceeded, match="registry of node"):
        await starting
    other.close()
    silent.close()


async def test_a_node_that_is_dead_is_told_at_once(run: str) -> None:
    other = Runtime(run=run, name="client")
    gone = Address("node", 7, 4_000_000, 1)
    with pytest.raises(ActorDead):
        await RegistryDiscovery(other, gone).start()
    other.close()


async def test_down_reaches_subscribers_and_others_once(run: str) -> None:
    async with joined(run) as (node, other):
        heard: list[Down] = []
        other.on(Down, lambda sender, message: heard.append(message))
        await RegistryDiscovery(other, node.runtime.address).start()
        dead = record(5).address
        node.publisher.tell_down(dead, "killed by SIGKILL", [other.address, dead])
        node.registry.add(record(6))
        await wait_until(lambda: heard)
        assert heard == [Down(dead, "killed by SIGKILL")]


async def test_how_somebody_ended_is_told_before_the_node_clears_up_behind_him(run: str) -> None:
    async with joined(run) as (node, other):
        heard: list[Down] = []
        other.on(Down, lambda sender, message: heard.append(message))
        await RegistryDiscovery(other, node.runtime.address).start()
        node.publisher.tell_down(record(5).address, "killed by SIGKILL", [])
        deadline = time.monotonic() + DEADLINE
        while not heard and time.monotonic() < deadline:  # the loop, which clears up, stands still
            other.port.poll_control()
        assert heard == [Down(record(5).address, "killed by SIGKILL")]


async def test_lookup_follows_restarts(run: str) -> None:
    async with joined(run) as (node, other):
        lookup = NodeLookup(RegistryDiscovery(other, node.runtime.address))
        await lookup.start()
        with pytest.raises(ActorDead, match=r"'counter'.*alive: none"):
            lookup.actor("counter")
        with pytest.raises(NoWorkers, match="RouterSpec"):
            lookup.router("a.b.c")
        node.registry.add(record(1, "actor", "counter"))
        node.registry.add(record(2, "router"))
        await wait_until(lambda: len(lookup._actors) == 2)
        assert lookup.actor("counter").incarnation == 1
        assert lookup.router("a.b.c").incarnation == 2
        # The new incarnation may be there before the old one is withdrawn.
        node.registry.add(record(3, "actor", "counter"))
        node.registry.remove(1, None, "exit code 1")
        node.registry.remove(2, None, "exit code 1")
        await wait_until(lambda: not lookup._routers)
        assert lookup.actor("counter").incarnation == 3


async def test_lookup_takes_routers_in_turn_and_its_own_first(run: str) -> None:
    async with joined(run) as (node, other):
        lookup = NodeLookup(RegistryDiscovery(other, node.runtime.address))
        node.registry.add(record(1, "router"))
        node.registry.add(record(2, "router"))
        await lookup.start()
        assert {lookup.router("x").incarnation for _ in range(4)} == {1, 2}
        near = Record(3, Address("router-3", 3, os.getpid(), 1), "router")
        node.registry.add(near)
        await wait_until(lambda: len(lookup._routers) == 3)
        assert {lookup.router("x").incarnation for _ in range(4)} == {3}
