"""A policy of the user's own in the router of a real node; what it does wrong costs one request."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.errors import NoWorkers, PolicyFailed, SpawnError
from actors.messages import Inspect
from actors.router.custom import LIMIT
from tests.router import engines, policies
from tests.waiting import LONG, wait_until

GO, CHAT = "t.own.go", "t.own.chat"
BAD = ("raise", "exit", "unspeakable", "none", "text", "stranger", "repr", "coroutine")


NODE = NodeSpec(
    routers=[RouterSpec(policy=policies.as_told)],
    engines=[
        EngineSpec(GO, engines.Mirror, replicas=2, place="here"),
        EngineSpec(CHAT, engines.Chat, replicas=2, place="here"),
    ],
)


async def loads(cluster: Cluster, endpoint: str) -> list[int]:
    async with cluster.ref("router").stream(Inspect(), timeout=LONG) as answers:
        workers = (await anext(answers))["workers"]
    return [worker["load"] for worker in workers if worker["endpoint"] == endpoint]


async def answer(client: Client, do: str) -> Any:
    return await client.call(GO, do, metadata={"do": do}, timeout=LONG)


async def chat(client: Client, do: str) -> Any:
    async with client.open(CHAT, metadata={"do": do}, timeout=LONG) as lines:
        await lines.send("hello")
        return await lines.recv()


async def test_a_policy_that_does_wrong_costs_that_request_and_the_rest_goes_on() -> None:
    async with Cluster(NODE) as cluster, cluster.client() as client:
        found = await asyncio.gather(
            *[answer(client, do) for do in (*BAD, "well", *BAD, "well")], return_exceptions=True
        )
        for error in (*found[:8], *found[9:17]):
            assert isinstance(error, PolicyFailed), error
            assert "policy tests.router.policies:as_told r" in str(error)
        assert found[8] == found[17] == "well"
        assert "no luck with 2 workers" in str(found[0])
        assert isinstance(found[0], PolicyFailed)
        assert "in as_told" in found[0].details["traceback"]
        with pytest.raises(PolicyFailed, match="returned None"):
            await chat(client, "none")
        assert await chat(client, "well") == "hello"
        with pytest.raises(NoWorkers):
            await client.call("t.own.gone", 1, timeout=LONG)

        late = asyncio.create_task(answer(client, "hang"))
        await asyncio.sleep(0)
        behind = await asyncio.gather(*[answer(client, "well") for _ in range(20)])
        assert behind == ["well"] * 20
        with pytest.raises(PolicyFailed, match=f"did not choose within {LIMIT:g} s"):
            await late

        async with AsyncExitStack() as stack:  # B110: each choice sees the booking before it
            chats = [client.open(CHAT, timeout=LONG) for _ in range(30)]
            await asyncio.gather(*[stack.enter_async_context(each) for each in chats])
            await asyncio.gather(*[each.send("hello") for each in chats])
            await asyncio.gather(*[each.recv() for each in chats])
            assert await loads(cluster, CHAT) == [15, 15]

        async def idle() -> bool:
            return await loads(cluster, CHAT) == await loads(cluster, GO) == [0, 0]

        await wait_until(idle, what="loads of 0")


@pytest.mark.parametrize(
    ("policy", "place", "words"),
    [
        (policies.later, "here", "tests.router.policies:later is async"),
        ("tests.router.nothing:choose", "process", "tests.router.nothing:choose cannot be import"),
    ],
)
async def test_what_is_no_policy_ends_the_start_and_is_named(
    policy: Any, place: Any, words: str
) -> None:
    with pytest.raises(SpawnError, match=words):
        async with Cluster(NodeSpec(routers=[RouterSpec(policy=policy, place=place)])):
            raise AssertionError("it started")
