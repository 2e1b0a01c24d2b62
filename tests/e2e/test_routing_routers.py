"""Several routers on a node, and on each of two nodes: one dies and the others go on, all count
alike.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.errors import CallHomeError
from tests.e2e.distribution import Through
from tests.e2e.routing_engines import HELD, HERE
from tests.e2e.standing import on_road
from tests.e2e.watching import inspect, kill, wait_idle
from tests.waiting import LONG, wait_until

NAMES = ("one", "two")
SPEC = NodeSpec(
    name="a",
    routers=[RouterSpec(name=name) for name in NAMES],
    engines=[EngineSpec(HELD, HERE + "Held", replicas=2, capacity=64, name="held")],
)


def nodes(road: str) -> list[NodeSpec]:
    """Two routers on each node of that road."""
    near, *far = on_road(SPEC, road)
    if far:
        near = NodeSpec(name="a", routers=SPEC.routers, peers=near.peers)
    return [near, *far]


async def failures(client: Client, calls: int) -> list[CallHomeError]:
    """What so many calls, one after the other, failed with."""
    found = []
    for _ in range(calls):
        try:
            await client.call(HELD, {}, timeout=LONG)
        except CallHomeError as error:
            found.append(error)
    return found


async def test_routers_count_what_the_others_have_sent_and_calls_go_on_when_one_dies(
    road: str,
) -> None:
    """In one cluster: most of what this costs is the starting of up to nine processes."""
    async with Cluster(nodes(road)) as cluster:
        await counted(cluster.name)
        async with cluster.client() as client:
            await goes_on(client)


async def goes_on(client: Client) -> None:
    """Calls go on by the other router."""
    before = [await requests(client, name) for name in NAMES]
    assert await failures(client, 10) == []
    after = [await requests(client, name) for name in NAMES]
    assert [a - b for a, b in zip(after, before, strict=True)] == [5, 5]
    for dead, other in (NAMES, NAMES[::-1]):
        router = client.ref(dead).address
        kill(router.pid)
        # What had left for it has failed; nothing is sent to it any more after that.
        lost = await failures(client, 50)
        assert len(lost) <= 2, lost

        await wait_until(lambda name=dead: knows(client, name), LONG, f"{dead} is back")
        assert client.ref(dead).address.pid != router.pid
        await wait_idle(client, router=other)
        await wait_idle(client, router=dead)
    assert await failures(client, 10) == []


async def knows(client: Client, router: str) -> bool:
    """Whether a router knows both workers."""
    workers = (await inspect(client, router)).get("workers", ())
    return bool(sum(each["endpoint"] == HELD for each in workers) == 2)


async def counted(cluster: str) -> None:
    """What the other router has sent is counted by each."""
    async with (
        Through(cluster, "a", "one") as first,
        Through(cluster, "a", "two") as second,
    ):
        one, other = sorted(each.instance for each in await first.workers(HELD))

        async def seen(client: Through, *loads: int) -> None:
            async def check() -> bool:
                workers = (await inspect(client, client.through))["workers"]
                found = {each["instance"]: each["load"] for each in workers}
                return (found.get(one), found.get(other)) == loads

            await wait_until(check, what=f"router {client.through} sees {loads}")

        calls = [first.call(HELD, {"hold": 1}, instance=one) for _ in range(20)]
        held = [asyncio.create_task(each) for each in calls]
        try:
            await seen(second, 20, 0)
            assert len({await second.call(HELD, {}) for _ in range(20)}) == 1
            calls = [second.call(HELD, {"hold": 1}) for _ in range(30)]
            held += [asyncio.create_task(each) for each in calls]
            await seen(first, 25, 25)
            await seen(second, 25, 25)
        finally:
            for each in (one, other):
                await first.call(HELD, {"release": 1}, instance=each)
            answers = await asyncio.wait_for(asyncio.gather(*held), LONG)
        assert sorted(Counter(answers).values()) == [25, 25]
        await seen(first, 0, 0)
        await seen(second, 0, 0)


async def requests(client: Client, router: str) -> int:
    """Streams that a router has been asked to route."""
    return int((await inspect(client, router))["counters"]["requests"])
