"""What callers are told when a node stops because an essential actor of it has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors import Client, Cluster, Context, EngineSpec, NodeSpec, RouterSpec
from actors.errors import CallHomeError
from tests.waiting import LONG, wait_until

CORE, OTHER = "t.core.work", "t.core.other"


async def core(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Ends its process before the stream is accepted, or behind the first item."""
    if request == "now":
        os._exit(9)
    yield os.getpid()
    await asyncio.sleep(LONG)


async def other(request: Any, ctx: Context) -> Any:
    return request


async def until_it_fails(client: Client) -> None:
    """The other engine answers as long as it may."""
    while True:
        await client.call(OTHER, "", timeout=LONG)


def node(**router: Any) -> NodeSpec:
    return NodeSpec(
        engines=[
            EngineSpec(CORE, core, essential=True, restart="never", capacity=1),
            EngineSpec(OTHER, other),
        ],
        routers=[RouterSpec(**router)],
    )


async def test_who_calls_an_essential_engine_is_told_of_its_end_not_of_the_routers() -> None:
    async with Cluster(node()) as cluster, cluster.client() as client:
        pid = client.ref(CORE).address.pid
        with pytest.raises(CallHomeError) as caught:
            await client.call(CORE, "now", timeout=LONG)
        assert f"{CORE} (pid {pid})" in caught.value.message
        assert "exit code 9" in caught.value.message
        assert "router" not in caught.value.message
        _, how = await cluster.wait_ended()
        assert how.status == 9


async def test_who_waits_or_comes_later_is_told_the_first_cause() -> None:
    async with Cluster(node(queue=8, busy_streams=1)) as cluster, cluster.client() as client:
        async with client.stream(CORE, "", timeout=LONG) as items:
            pid = await anext(items)
            waiting = asyncio.create_task(client.call(CORE, "", timeout=LONG))
            await wait_until(lambda: client.runtime.home.streams.__len__() == 2, what="it is sent")
            await client.call(OTHER, "", timeout=LONG)  # behind it on the road to the router
            os.kill(pid, 9)
            with pytest.raises(CallHomeError, match="killed by SIGKILL"):
                await anext(items)
        with pytest.raises(CallHomeError) as caught:
            await waiting
        assert f"{CORE} (pid {pid})" in caught.value.message
        assert "killed by SIGKILL" in caught.value.message
        with pytest.raises(CallHomeError) as caught:
            await until_it_fails(client)
        assert f"{CORE} (pid {pid})" in caught.value.message
        assert "killed by SIGKILL" in caught.value.message
        await cluster.wait_ended()
