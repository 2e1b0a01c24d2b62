"""Where held calls go: every mode, every shape of stream, near and far workers, one and two
routers. ``python -m tests.e2e.distribution [CALLS]`` prints the table; the tests use the parts.

Calls are all opened before any is let go, so each mode shows what it makes of loads that only grow.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self

from actors import Client, Cluster, NodeSpec, RouterSpec, Settings
from actors.cluster.launcher import find_node
from actors.discovery.lookup import NodeLookup
from actors.kernel.ref import Ref
from actors.kernel.runtime import Runtime
from actors.messages import Record
from actors.router.policy import MODES
from tests.e2e.routing_engines import HELD, TALK, held_workers
from tests.e2e.standing import inspect
from tests.ports import free_address
from tests.waiting import LONG, wait_until

SHAPES: Final = ("call", "stream", "bidi")
ROADS: Final = ("near", "far")
#: Of the sticky mode, so many keys share the calls.
KEYS: Final = 8
#: A number for each wave of held calls.
waves = itertools.count(1)


def router_name(mode: str, number: int) -> str:
    """What the ``number``-th router of a mode is called, on either node."""
    return f"{mode}-{number}".replace("_", "-")


def nodes(
    modes: Sequence[str], place: Literal["process", "here"] = "process", routers: int = 2
) -> list[NodeSpec]:
    """Two nodes: ``b`` has the workers, and both have ``routers`` of each mode."""
    door = free_address()
    made = [
        RouterSpec(policy=mode, name=router_name(mode, number), place=place)
        for mode in modes
        for number in range(routers)
    ]
    near = NodeSpec(name="a", routers=made, peers=[door])
    return [near, NodeSpec(name="b", routers=made, engines=held_workers(), listen=door)]


class Through(Client):
    """A client whose calls all go through one router of its node, by name."""

    def __init__(self, cluster: str, node: str, router: str) -> None:
        super().__init__(run=find_node(cluster, node).folder, settings=Settings.load())
        self.through = router

    def _begin(self, runtime: Runtime, discovery: Any, lookup: NodeLookup) -> None:
        super()._begin(runtime, discovery, lookup)
        self.route = lambda target: lookup.actor(self.through)


class Stand:
    """Clients of a cluster made of ``nodes``, and what they need to know of its workers."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._clients: dict[tuple[str, str], Through] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def client(self, road: str, router: str) -> Through:
        """A client by that road and router, opened once."""
        key = ("b" if road == "near" else "a", router)
        if key not in self._clients:
            client = await self._stack.enter_async_context(Through(self.cluster, *key))
            self._clients[key] = client
        return self._clients[key]

    async def workers(self, endpoint: str, router: str) -> dict[int, Record]:
        """The workers of an endpoint by their pid."""
        client = await self.client("near", router)
        return {each.address.pid: each for each in client.records() if each.endpoint == endpoint}


class Wave(NamedTuple):
    """What became of the held calls of one wave."""

    #: Calls by worker, in the order of the workers' names.
    counts: list[int]
    #: The same, of workers on an accelerator and of those on a CPU.
    devices: dict[str, int]
    #: Workers that had calls with a key, by key.
    keys: dict[int, set[int]]
    seconds: float


async def held_call(client: Client, shape: str, request: dict[str, Any], **options: Any) -> int:
    """One call; the pid of its worker, once it is let go."""
    if shape == "call":
        answer: int = await client.call(HELD, request, **options)
        return answer
    if shape == "stream":
        async with client.stream(HELD, request, **options) as items:
            (pid,) = [item async for item in items]
            return int(pid)
    async with client.open(TALK, **options) as talk:
        await talk.send(request)
        await talk.end()
        (pid,) = [item async for item in talk]
        return int(pid)


def endpoint_of(shape: str) -> str:
    """Which endpoint calls of a shape go to."""
    return TALK if shape == "bidi" else HELD


async def run_wave(
    stand: Stand, mode: str, shape: str, road: str, routers: int, calls: int
) -> Wave:
    """Hold ``calls`` calls at once through so many routers, count, and let them go."""
    endpoint = endpoint_of(shape)
    names = [router_name(mode, number) for number in range(routers)]
    clients = [await stand.client(road, name) for name in names]
    workers = await stand.workers(endpoint, names[0])
    for client in clients:  # the last word of the wave before may be some milliseconds behind
        await wait_until(partial(idle, client.ref(client.through)), what="loads are 0")
    wave, began = next(waves), time.monotonic()
    tasks = []
    for number in range(calls):
        options: dict[str, Any] = {}
        if mode == "direct":
            options["instance"] = min(each.instance for each in workers.values())
        if mode == "sticky":
            options["metadata"] = {"session": f"key {number % KEYS}"}
        held = held_call(clients[number % routers], shape, {"hold": wave}, **options)
        tasks.append(asyncio.create_task(held))
    try:
        await wait_carried(stand, list(workers.values()), names, road, calls)
        seconds = time.monotonic() - began
        for worker in workers.values():
            release = {"release": wave}
            await held_call(clients[0], shape, release, instance=worker.instance)
        pids = await asyncio.wait_for(asyncio.gather(*tasks), LONG)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _summed(workers, pids, seconds)


async def idle(router: Ref) -> bool:
    """Whether a router sees no load anywhere."""
    return not any(each["load"] for each in (await inspect(router))["workers"])


def _summed(workers: dict[int, Record], pids: list[int], seconds: float) -> Wave:
    ordered = sorted(workers.values(), key=lambda each: each.address.name)
    found, devices = Counter(pids), Counter(workers[pid].device for pid in pids)
    keys: dict[int, set[int]] = {}
    for number, pid in enumerate(pids):
        keys.setdefault(number % KEYS, set()).add(pid)
    counts = [found[each.address.pid] for each in ordered]
    return Wave(counts, {name: devices[name] for name in ("cpu", "cuda")}, keys, seconds)


async def wait_carried(
    stand: Stand, workers: list[Record], routers: list[str], road: str, calls: int
) -> None:
    """Wait until the engines carry all the calls, and the routers hold a permit for each."""
    near = await stand.client("near", routers[0])

    async def all_there() -> bool:
        carried = [await inspect(near.ref(each.address.name)) for each in workers]
        return bool(sum(each["in_flight"] for each in carried) == calls)

    await wait_until(all_there, LONG, f"{calls} calls are held by the engines")
    permits = 0
    for name in routers:
        permits += (await inspect((await stand.client(road, name)).ref(name)))["in_flight"]
    assert permits == calls, f"{permits} permits for {calls} calls"


def objection(mode: str, wave: Wave, calls: int, routers: int) -> str:
    """What is wrong with a distribution over four workers, two on CPUs, two on accelerators; or
    "".
    """
    fair, counts = calls / 4, wave.counts
    if sum(counts) != calls:
        return f"{sum(counts)} of {calls} calls"
    most, least = max(counts), min(counts)
    # A draw of one in four: five standard deviations.
    chance = 5 * (calls * 3 / 16) ** 0.5
    if mode in ("round_robin", "least_loaded"):
        # What two routers send in the same milliseconds neither is told of by an engine that has
        # not read it yet, and so the one that is quick to read looks the most loaded.
        # That is so of a burst from idle; what goes on is measured by ``perf run --suite routing``.
        # One that reads nothing meanwhile has what each router sends it counted once, the others
        # twice: of two routers' calls it gets 8 of 20 each.
        if mode == "least_loaded" and routers > 1:
            return "" if most <= 1.75 * fair else "more than 1.75 of the mean"
        return "" if most == least else "not even"
    if mode == "power_of_two_choices":
        part = 1.3 if routers == 1 else 1.75
        return "" if most <= part * fair + 2 else f"more than {part} of the mean"
    if mode == "random":
        return "" if most - fair <= chance and fair - least <= chance else "no chance did that"
    if mode == "sticky":
        torn = [key for key, at in wave.keys.items() if len(at) > 1]
        return f"keys {torn} went to several workers" if torn else ""
    if mode == "direct":
        return "" if most == calls else "calls for one worker went to others"
    return _weighed(wave, calls, routers)


def _weighed(wave: Wave, calls: int, routers: int) -> str:
    """Two CPUs and two accelerators at 8 to 1: each ninth call goes to a CPU, and in each class
    loads are even.
    """
    due = calls // 9
    room = 0 if routers == 1 else max(3, due // 5)
    if abs(wave.devices["cpu"] - due) > room:
        return f"{wave.devices['cpu']} calls at CPUs, not {due}"
    return ""


def tell(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def serve() -> int:
    """A cluster with two routers of every mode on each of two nodes, all of them in this process;
    prints its name and stands until stdin ends.
    """
    async with Cluster(nodes(MODES, place="here")) as cluster:
        tell(cluster.name)
        await asyncio.to_thread(sys.stdin.read)
    return 0


async def main(calls: int) -> int:
    """Print the table; 1 if a distribution is not what its mode promises."""
    wrong = 0
    tell(f"{calls} held calls over 4 workers (2 with device cpu, 2 with cuda)")
    tell(f"{'mode':<22} {'road':<5} {'shape':<7} {'routers':>7}  calls by worker")
    for mode in MODES:
        async with Cluster(nodes([mode])) as cluster, Stand(cluster.name) as stand:
            for road, shape, routers in itertools.product(ROADS, SHAPES, (1, 2)):
                wave = await run_wave(stand, mode, shape, road, routers, calls)
                why = objection(mode, wave, calls, routers)
                wrong += bool(why)
                counts = " ".join(f"{count:>4}" for count in wave.counts)
                row = f"{mode:<22} {road:<5} {shape:<7} {routers:>7}  {counts}"
                tell(f"{row}  {why and f'WRONG: {why}'}".rstrip())
    tell("all as promised" if not wrong else f"{wrong} are not what their mode promises")
    return 1 if wrong else 0


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "400"
    sys.exit(asyncio.run(serve() if asked == "serve" else main(int(asked))))
