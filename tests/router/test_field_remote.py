"""Field reports and conformance tests on the road to another node of ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from actors import Context, Engine, Settings
from actors.cluster.entry import running
from actors.errors import ConnectionLost
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.router.actor import RouterActor
from tests.router import engines
from tests.router.nodes import node
from tests.router.rig import RouterRig, Told, router_rig, spec
from tests.waiting import LONG, TICK, wait_until

GO, CHAT = "t.far.go", "t.far.chat"
RAN: list[Any] = []


class Noted(Engine[Any, Any]):
    """Notes that it ran, and yields its request."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        RAN.append(request)
        yield request


def cut_all(here: RouterRig) -> None:
    """Break every connection of the router: those of requests and that of the streams."""
    for link in list(here.actor._plane.net.links):
        with contextlib.suppress(OSError):
            link.socket.shutdown(socket.SHUT_RDWR)


async def test_b137_100_cuts_run_no_request_twice(tmp_path: Path) -> None:
    """The cut comes so many turns of the loop behind the request: before it has left, while it is
    on its way, once its handler has run.
    """
    RAN.clear()
    answered = last = 0
    async with (
        node(tmp_path / "b", (GO, Noted, {})) as far,
        router_rig(tmp_path / "a", *far.records, dial_in_timeout=2 * TICK) as here,
    ):
        for number in range(100):
            call = asyncio.ensure_future(here.client.call(GO, number, timeout=LONG))
            for _ in range(number % 15):
                await asyncio.sleep(0)
            cut_all(here)
            with contextlib.suppress(ConnectionLost):
                assert await call == number
                answered += 1
            await here.idle()
        await wait_until(lambda: not far.ingress.streams.table, what="an idle ingress")

        async def served() -> bool:  # which may take longer than those who are cut are waited for
            nonlocal last
            last += 1
            with contextlib.suppress(ConnectionLost):
                return bool(await here.client.call(GO, f"last {last}", timeout=LONG))
            return False

        await wait_until(served, what="calls are answered again")
    assert len(RAN) == len(set(RAN))
    ran = [each for each in RAN if isinstance(each, int)]
    assert answered < len(ran) <= 100, (answered, len(ran))  # some ran and were not answered


@pytest.mark.parametrize(
    "policy", ["least_loaded", "power_of_two_choices", "device_aware_weighted"]
)
async def test_conformance_26_streams_each_way_by_every_mode_that_knows_loads(
    tmp_path: Path, policy: str
) -> None:
    engines.SEEN.clear()
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(
            node(tmp_path / "b", *[(CHAT, engines.Chat, {}) for _ in range(3)])
        )
        actor, given = RouterActor(policy=policy), Settings()
        actor.discovery = Told(*far.records)
        await stack.enter_async_context(running(spec(tmp_path / "a", "router", given), actor))
        runtime = Runtime(run=str(tmp_path / "a"), name="client", settings=given)
        stack.callback(runtime.close)
        client = Caller(runtime, lambda _: actor.address)
        open_ = [await stack.enter_async_context(client.open(CHAT)) for _ in range(30)]
        for number, chat in enumerate(open_):
            await chat.send(number)
            assert await anext(chat) == number
        loads = [each["load"] for each in actor.carries()["workers"]]
        assert sum(loads) == 30
        assert max(loads) - min(loads) <= (4 if policy == "power_of_two_choices" else 0), loads
        for chat in open_:
            await chat.end()
            assert [item async for item in chat] == ["end 0", "end 1", "end 2"]
        await wait_until(lambda: not actor.occupancy.permits(), what="all permits are back")


def test_conformance_33_two_loops_of_a_process_one_after_another(tmp_path: Path) -> None:
    async def one(number: int) -> None:
        folder = tmp_path / str(number)
        async with (
            node(folder / "b", (GO, Noted, {})) as far,
            router_rig(folder / "a", *far.records) as here,
        ):
            assert await here.client.call(GO, number, timeout=LONG) == number
            foreign = [each._replace(speaks="", endpoint="t.far.other") for each in far.records]
            for each in foreign:
                here.told.add(each)
            assert await here.client.call("t.far.other", number, timeout=LONG) == number
            await here.idle()

    for number in range(3):
        asyncio.run(one(number), debug=True)
