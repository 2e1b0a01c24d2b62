"""For whom a drain and a wished restart wait, and for how long."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing
from pathlib import Path

from actors import EngineSpec, NodeSpec, RouterSpec, Settings
from actors.notices import DrainTarget, RestartActors
from tests.cluster.test_drain import COUNTS, ECHO, ENGINES, begun, follow, rows, serving
from tests.waiting import PATIENCE, TICK, wait_until

HOLDS = "t.holds.go"


async def test_one_of_several_ends_its_streams_before_it_is_started_anew(tmp_path: Path) -> None:
    """However long they take: the limit is the wish's, and not the grace of a stop."""
    args = {"file": str(tmp_path / "mark")}
    holds = EngineSpec(HOLDS, "tests.cluster.workers:Holds", args=args, replicas=2, capacity=8)
    settings = Settings.load(stop_grace=2 * TICK, drain_limit=TICK, start_timeout=60.0)
    spec = NodeSpec(engines=[holds], routers=[RouterSpec()], settings=settings)
    async with serving(spec) as client:
        before = (await rows(client))[f"{HOLDS}-0"]["pid"]
        under_way = [await begun(client, HOLDS) for _ in range(4)]
        wish = RestartActors([f"{HOLDS}-0"], True, 600.0)
        restart = asyncio.create_task(follow(client, wish))
        names = {f"{HOLDS}-0"}
        await wait_until(lambda: not names & {each.address.name for each in client.records()})
        # One that does not wait has ended them by then; who waits could be looked at for ever.
        done, _ = await asyncio.wait({*under_way, restart}, timeout=10 * TICK)
        assert not done
        row = (await rows(client))[f"{HOLDS}-0"]
        assert (row["pid"], row["in_flight"]) == (before, 2)
        (tmp_path / "mark").touch()
        assert [await each for each in under_way] == [([0, 1], None)] * 4
        last = (await restart)[-1]
        assert (last["ok"], last["cut"]) == (True, 0)
        assert (await rows(client))[f"{HOLDS}-0"]["pid"] != before


async def test_the_last_that_serves_has_a_successor_where_the_other_is_drained() -> None:
    async with serving() as client:
        await follow(client, DrainTarget(f"{ECHO}-0"))
        steps = await follow(client, RestartActors([f"{ECHO}-1"], rolling=True))
        assert steps[0]["step"] == "begins", steps
        assert steps[-1]["ok"]


async def test_who_has_found_one_elsewhere_is_served_for_the_grace(tmp_path: Path) -> None:
    grace = 5 * TICK
    settings = Settings.load(drain_grace=grace, start_timeout=60.0)
    spec = NodeSpec(
        engines=[ENGINES[1]], listen="127.0.0.1:0", directory=str(tmp_path), settings=settings
    )
    async with serving(spec) as client:
        assert await client.call(COUNTS, {"items": 1}) == 0
        began = time.monotonic()
        assert (await follow(client, DrainTarget(COUNTS)))[-1]["ok"]
        assert time.monotonic() - began >= grace  # at least: no machine is too slow for that


async def test_nobody_waits_for_one_that_is_stopped_while_it_drains() -> None:
    async with serving() as client:
        under_way = await begun(client, pause=TICK)
        pid = (await rows(client))[COUNTS]["pid"]
        wish = client.ref("node").stream(DrainTarget(COUNTS, 600.0))
        async with wish as steps, aclosing(steps):
            async for step in steps:
                if step["step"] == "waits":
                    break
            assert step["streams"] == 1
            os.kill(pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(4 * PATIENCE):
                    rest = [each["step"] async for each in steps]
            finally:
                os.kill(pid, signal.SIGCONT)
                under_way.cancel()
                await asyncio.wait({under_way})
        assert rest[-2:] == ["drained", "done"]
