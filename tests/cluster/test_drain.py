"""Draining and starting anew by somebody's wish, as a node does it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors import ActorSpec, Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.node import Ps
from actors.errors import CallHomeError, ConnectionLost, Overloaded, SpecError
from actors.notices import DrainTarget, RestartActors
from tests.waiting import LONG, TICK, wait_until

ECHO, COUNTS = "t.echo.go", "t.counts.go"
ENGINES = [
    EngineSpec(ECHO, "tests.e2e.bus_engines:echo", replicas=2, capacity=8),
    EngineSpec(COUNTS, "tests.e2e.process_engines:Counts", capacity=8),
]
PATIENT = Settings.load(start_timeout=60.0)
#: A grace of stops that streams outlast and whoever stops does not need, in seconds.
GRACE = 20 * TICK


SPEC = NodeSpec(
    engines=ENGINES,
    routers=[RouterSpec()],
    actors=[ActorSpec("keeper", actor="tests.e2e.bus_engines:Notes")],
    settings=PATIENT,
)


@asynccontextmanager
async def serving(spec: NodeSpec = SPEC) -> AsyncIterator[Client]:
    async with Cluster(spec) as cluster, cluster.client() as client:
        yield client


async def follow(client: Client, message: Any) -> list[dict[str, Any]]:
    """All steps of a wish."""
    async with client.ref("node").stream(message) as steps:
        return [step async for step in steps]


async def rows(client: Client) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in await client.ref("node").ask(Ps())}


async def begun(client: Client, endpoint: str = COUNTS, **request: Any) -> asyncio.Task[Any]:
    """A stream that has brought its first item: its items, and the error behind them."""
    first = asyncio.Event()

    async def run() -> tuple[list[Any], CallHomeError | None]:
        items = []
        try:
            async with client.stream(endpoint, request) as stream:
                async for item in stream:
                    items.append(item)
                    first.set()
        except CallHomeError as error:
            return items, error
        return items, None

    task = asyncio.create_task(run())
    await asyncio.wait_for(first.wait(), LONG)
    return task


async def go_on(stream: asyncio.Task[Any], until: Path) -> None:
    """It goes on for longer than the grace of a stop, and ends when it is let."""
    done, _ = await asyncio.wait({stream}, timeout=1.2 * GRACE)
    assert not done
    until.touch()  # noqa: ASYNC240


async def refused(client: Client, endpoint: str) -> str:
    """The code by which a call is refused."""
    try:
        await client.call(endpoint, {"items": 1}, timeout=LONG)
    except CallHomeError as error:
        return error.code
    return ""


async def test_a_drained_engine_ends_what_it_has_and_stays_so_until_it_is_restarted(
    tmp_path: Path,
) -> None:
    until = tmp_path / "until"
    async with serving() as client:
        under_way = await begun(client, items=10, until=str(until))
        drain = asyncio.create_task(follow(client, DrainTarget(COUNTS, 60.0)))
        await wait_until(lambda: COUNTS not in {each.endpoint for each in client.records()})
        assert await refused(client, COUNTS) == "no_workers"
        assert not under_way.done()
        until.touch()
        assert await under_way == (list(range(10)), None)
        last = (await drain)[-1]
        assert (last["step"], last["ok"], last["cut"]) == ("done", True, 0)
        row = (await rows(client))[COUNTS]
        assert row["state"] == "drained"
        os.kill(row["pid"], signal.SIGKILL)

        async def back() -> bool:
            now = (await rows(client))[COUNTS]
            return now["state"] == "drained" and now["pid"] not in (None, row["pid"])

        await wait_until(back, LONG, "its policy starts it again")
        assert await refused(client, COUNTS) == "no_workers"
        assert (await follow(client, RestartActors([COUNTS])))[-1]["ok"]
        assert await client.call(COUNTS, {"items": 1}) == 0
        assert (await rows(client))[COUNTS]["state"] == "up"
        await check_a_second_one(client)
        await check_wrong_wishes(client)


async def test_a_drained_node_serves_again_in_part_and_in_whole() -> None:
    async with serving() as client:
        assert (await follow(client, DrainTarget()))[-1]["ok"]
        assert await refused(client, ECHO) == "draining"
        found = await rows(client)
        assert {name: row["state"] for name, row in found.items()} == {
            "router": "drained", f"{ECHO}-0": "drained", f"{ECHO}-1": "drained",
            COUNTS: "drained", "keeper": "up",
        }  # fmt: skip
        os.kill(found["router"]["pid"], signal.SIGKILL)

        async def router_again() -> bool:
            return await refused(client, ECHO) == "draining"

        await wait_until(router_again, LONG, "a new router that refuses as well")
        await follow(client, RestartActors([f"{ECHO}-0"]))
        assert await client.call(ECHO, 1, timeout=LONG) == 1
        assert await refused(client, COUNTS) == "no_workers"
        steps = await follow(client, RestartActors([]))
        assert steps[-1]["ok"], steps
        assert await client.call(COUNTS, {"items": 1}) == 0
        assert {row["state"] for row in (await rows(client)).values()} == {"up"}


async def check_a_second_one(client: Client) -> None:
    """It only shortens the first; what is cut is counted."""
    (row,) = [each for each in client.records() if each.endpoint == COUNTS]
    endless = [await begun(client, pause=TICK) for _ in range(2)]
    first = asyncio.create_task(follow(client, DrainTarget(f"{row.instance:x}", 600.0)))
    await wait_until(lambda: COUNTS not in {each.endpoint for each in client.records()})
    second = await follow(client, DrainTarget(str(row.instance), 2 * TICK))
    for last in (second[-1], (await first)[-1]):
        assert (last["ok"], last["cut"], last["left"]) == (False, 2, [COUNTS])
        assert "2 streams were ended with an error" in last["error"]
    for task in endless:
        items, error = await task
        assert items == list(range(len(items)))
        assert isinstance(error, ConnectionLost)
        assert "since it is drained" in str(error)
    assert (await follow(client, RestartActors([COUNTS])))[-1]["ok"]


async def test_a_second_drain_that_comes_while_the_first_withdraws_shortens_it_too(
    tmp_path: Path,
) -> None:
    """Nobody has been told of the first one's limit yet, for whoever reads the directory may come
    still.
    """
    settings = Settings.load(drain_grace=10 * TICK, start_timeout=60.0)
    spec = NodeSpec(
        engines=[ENGINES[1]], listen="127.0.0.1:0", directory=str(tmp_path), settings=settings
    )
    async with serving(spec) as client:
        endless = await begun(client, pause=TICK)
        first = asyncio.create_task(follow(client, DrainTarget(COUNTS, 600.0)))
        await wait_until(lambda: COUNTS not in {each.endpoint for each in client.records()})
        second = await asyncio.wait_for(follow(client, DrainTarget(COUNTS, 2 * TICK)), LONG)
        assert (second[-1]["ok"], second[-1]["cut"]) == (False, 1)
        assert (await first)[-1]["cut"] == 1
        assert isinstance((await endless)[1], ConnectionLost)


async def check_wrong_wishes(client: Client) -> None:
    with pytest.raises(SpecError, match="nor one of its engines"):
        await follow(client, DrainTarget("router"))
    with pytest.raises(SpecError, match="no actor of node"):
        await follow(client, RestartActors(["nobody"]))
    with pytest.raises(SpecError, match="up to a year"):
        await follow(client, DrainTarget("", float("inf")))


async def test_one_restart_at_a_time_and_whoever_leaves_ends_it_behind_the_actor(
    tmp_path: Path,
) -> None:
    until = tmp_path / "until"
    two = EngineSpec(COUNTS, "tests.e2e.process_engines:Counts", replicas=2, capacity=8)
    async with serving(replace(SPEC, engines=[two])) as client:
        before = await rows(client)
        names = [f"{COUNTS}-0", f"{COUNTS}-1"]
        # The first has streams, and so is not done with before they are let go.
        under_way = [await begun(client, items=2, until=str(until)) for _ in range(6)]
        wish = RestartActors(names, rolling=True, limit=600.0)
        async with client.ref("node").stream(wish) as steps:
            assert (await anext(steps))["actor"] == names[0]
            with pytest.raises(Overloaded, match=f"under way already, at {names[0]}"):
                await follow(client, RestartActors(["keeper"]))
        until.touch()
        assert await asyncio.gather(*under_way) == [([0, 1], None)] * 6

        async def serves() -> bool:
            row = (await rows(client))[names[0]]
            return row["state"] == "up" and row["pid"] not in (None, before[names[0]]["pid"])

        await wait_until(serves, LONG, "what was begun is finished")
        await wait_until(lambda: sum(each.endpoint == COUNTS for each in client.records()) == 2)

        # An actor of the user's own, which is started anew by its name only.
        async def again() -> bool:
            try:
                steps = await follow(client, RestartActors(["keeper"]))
            except Overloaded:  # it is at the end of the first still
                return False
            return bool(steps[-1]["finished"] == ["keeper"])

        await wait_until(again, LONG, "another one may begin")
        after = await rows(client)
        assert after[names[1]]["pid"] == before[names[1]]["pid"]
        assert after["keeper"]["pid"] != before["keeper"]["pid"]


async def test_the_first_that_does_not_come_up_ends_it(tmp_path: Path) -> None:
    once = EngineSpec(
        "t.once.go", "tests.cluster.workers:OnceUp", args={"file": str(tmp_path / "mark")}
    )
    spec = NodeSpec(engines=[once, ENGINES[1]], routers=[RouterSpec()], settings=PATIENT)
    async with Cluster(spec) as cluster, cluster.client() as client:
        before = {each.endpoint: each.instance for each in client.records()}
        last = (await follow(client, RestartActors([], rolling=True)))[-1]
        assert (last["ok"], last["finished"]) == (False, [])
        assert last["left"] == [COUNTS, "router"]
        assert "only once" in last["error"]
        assert await client.call("t.once.go", 7) == 7  # it was the only one: it is there still
        assert {each.endpoint: each.instance for each in client.records()} == before


async def test_sigterm_in_the_midst_of_a_drain_goes_on_from_there() -> None:
    settings = Settings.load(drain_limit=4 * TICK, start_timeout=60.0)
    spec = NodeSpec(engines=[ENGINES[1]], routers=[RouterSpec()], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        endless = await begun(client, pause=TICK)
        drain = asyncio.create_task(follow(client, DrainTarget("", 600.0)))
        await wait_until(lambda: not [each for each in client.records() if each.endpoint])
        os.kill(cluster.nodes[0].address.pid, signal.SIGTERM)
        _, error = await asyncio.wait_for(endless, LONG)
        assert isinstance(error, ConnectionLost)
        _, how = await asyncio.wait_for(cluster.wait_ended(), LONG)
        assert how.clean
        await asyncio.wait({drain})
        drain.exception()


async def test_sigterm_leaves_streams_of_an_engine_that_drains_their_time(tmp_path: Path) -> None:
    settings = Settings.load(drain_limit=60.0, stop_grace=GRACE, start_timeout=60.0)
    spec = NodeSpec(engines=[ENGINES[1]], routers=[RouterSpec()], settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:
        finite = await begun(client, items=20, until=str(tmp_path / "until"))
        drain = asyncio.create_task(follow(client, DrainTarget(COUNTS, 600.0)))
        await wait_until(lambda: not [each for each in client.records() if each.endpoint])
        os.kill(cluster.nodes[0].address.pid, signal.SIGTERM)
        await go_on(finite, tmp_path / "until")
        assert await asyncio.wait_for(finite, LONG) == ([*range(20)], None)
        _, how = await asyncio.wait_for(cluster.wait_ended(), LONG)
        assert how.clean
        await asyncio.wait({drain})
        drain.exception()


async def test_an_engine_that_drains_is_started_anew_behind_its_streams(tmp_path: Path) -> None:
    settings = Settings.load(stop_grace=GRACE, start_timeout=60.0)
    spec = NodeSpec(engines=[ENGINES[1]], routers=[RouterSpec()], settings=settings)
    async with serving(spec) as client:
        finite = await begun(client, items=20, until=str(tmp_path / "until"))
        drain = asyncio.create_task(follow(client, DrainTarget(COUNTS, 60.0)))
        await wait_until(lambda: not [each for each in client.records() if each.endpoint])
        wish = RestartActors([COUNTS], rolling=True, limit=60.0)
        restart = asyncio.create_task(follow(client, wish))
        await go_on(finite, tmp_path / "until")
        assert (await restart)[-1]["ok"]
        assert await finite == ([*range(20)], None)
        assert (await drain)[-1]["ok"]
        assert (await rows(client))[COUNTS]["state"] == "up"
        items, error = await (await begun(client, items=1))
        assert (items, error) == ([0], None)
        with pytest.raises(SpecError, match="expected a list of names"):
            await follow(client, RestartActors(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_successor_that_fails_its_canary_gives_the_place_back(
    tmp_path: Path, dies: bool
) -> None:
    args = {"file": str(tmp_path / "mark"), "dies": dies}
    once = EngineSpec("t.once.go", "tests.cluster.workers:OnceWell", args=args, canary=0)
    settings = Settings.load(start_timeout=70 * TICK)
    async with serving(NodeSpec(engines=[once], settings=settings)) as client:
        before = await rows(client)
        last = (await follow(client, RestartActors(["t.once.go"], rolling=True)))[-1]
        assert (last["ok"], last["finished"], last["left"]) == (False, [], [])
        assert "t.once.go: " in last["error"]
        assert await client.call("t.once.go", 7) == 7
        after = await rows(client)
        assert after.keys() == before.keys(), "nobody is left beside it"
        assert (after["t.once.go"]["state"], after["t.once.go"]["pid"]) == (
            "up",
            before["t.once.go"]["pid"],
        )


async def test_what_is_in_the_launchers_process_serves_again() -> None:
    engine = EngineSpec(ECHO, "tests.e2e.bus_engines:echo", place="here")
    async with serving(NodeSpec(engines=[engine], routers=[RouterSpec(place="here")])) as client:
        for target, wanted in ((ECHO, [ECHO]), ("", [])):
            assert (await follow(client, DrainTarget(target)))[-1]["ok"]
            await wait_until(lambda: not [each for each in client.records() if each.endpoint])
            last = (await follow(client, RestartActors(wanted)))[-1]
            assert (last["ok"], last["finished"], last["error"]) == (True, [ECHO], "")
            await wait_until(lambda: bool([each for each in client.records() if each.endpoint]))
            assert await client.call(ECHO, 7) == 7
        with pytest.raises(SpecError, match="restart that"):
            await follow(client, RestartActors([ECHO]))
