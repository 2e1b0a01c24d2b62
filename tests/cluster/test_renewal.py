"""What becomes of a node whose actors do not come up anew, and what is said of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from actors import Cluster, EngineSpec, NodeSpec, Settings
from actors.kernel.restart import Strategy
from actors.notices import RestartActors
from tests.cluster.test_drain import follow, rows, serving
from tests.waiting import PATIENCE, TICK, wait_until

ONCE = "t.once.go"


def once(engine: str, file: Path, **keys: Any) -> EngineSpec:
    """An engine of ``tests.cluster.workers`` that is as it should be only the first time."""
    args = {"file": str(file), **keys.pop("args", {})}
    return EngineSpec(ONCE, f"tests.cluster.workers:{engine}", args=args, **keys)


async def test_a_successor_that_dies_does_not_take_an_essential_engines_node_down(
    tmp_path: Path,
) -> None:
    engine = once(
        "OnceWell", tmp_path / "mark", args={"dies": True}, canary=0, essential=True,
        restart="never",
    )  # fmt: skip
    spec = NodeSpec(engines=[engine], settings=Settings.load(start_timeout=60.0))
    async with serving(spec) as client:
        pid = (await rows(client))[ONCE]["pid"]
        steps = await follow(client, RestartActors([ONCE], rolling=True))
        assert [each["code"] for each in steps if each["step"] == "failed"] == ["spawn"]
        last = steps[-1]
        assert (last["ok"], last["finished"], last["left"]) == (False, [], [])
        assert f"the one before (pid {pid}) goes on in its place" in last["error"]
        assert f"'callhome restart {ONCE}'" in last["error"]
        assert await client.call(ONCE, 7) == 7
        row = (await rows(client))[ONCE]
        assert (row["state"], row["pid"]) == ("up", pid)


async def test_an_essential_engine_that_ended_first_and_does_not_come_up_ends_its_node(
    tmp_path: Path,
) -> None:
    # Two that start for the first time: the mark is written when both are up.
    engine = EngineSpec(
        ONCE, "tests.cluster.workers:NotAfter", args={"file": str(tmp_path / "mark")},
        replicas=2, essential=True, restart="never",
    )  # fmt: skip
    spec = NodeSpec(engines=[engine], settings=Settings.load(start_timeout=60.0))
    async with Cluster(spec) as cluster, cluster.client() as client:
        (tmp_path / "mark").touch()
        steps = await follow(client, RestartActors([f"{ONCE}-0"], rolling=True))
        (stops,) = [each["text"] for each in steps if each["step"] == "stops"]
        assert "it is essential: the node stops if it does not come up" in stops
        assert "it stays down and is essential: the node stops" in steps[-1]["error"]
        _, how = await asyncio.wait_for(cluster.wait_ended(), 10 * PATIENCE)
        assert not how.clean


async def test_one_of_several_that_does_not_come_up_is_said_to_be_tried_again_or_not(
    tmp_path: Path,
) -> None:
    args = {"file": str(tmp_path / "mark")}
    said: dict[Strategy, str]
    said = {"never": "it stays down: mend it", "on-failure": "its restart policy tries it again"}
    engines = [
        EngineSpec(
            f"t.{restart}.go", "tests.cluster.workers:NotAfter", args=args, replicas=2,
            restart=restart,
        )
        for restart in said
    ]  # fmt: skip
    spec = NodeSpec(engines=engines, settings=Settings.load(start_timeout=60.0))
    async with serving(spec) as client:
        (tmp_path / "mark").touch()
        for restart, text in said.items():
            name = f"t.{restart}.go"
            last = (await follow(client, RestartActors([f"{name}-1"], rolling=True)))[-1]
            assert text in last["error"], last
            assert await client.call(name, 7) == 7
        (tmp_path / "mark").unlink()
        last = (await follow(client, RestartActors(["t.never.go-1"])))[-1]
        assert last["ok"], "as it was told to be done"


async def test_one_that_comes_up_and_is_not_well_is_left_as_it_is(tmp_path: Path) -> None:
    args = {"file": str(tmp_path / "mark")}
    engine = EngineSpec(ONCE, "tests.cluster.workers:NotWellAfter", args=args, replicas=2, canary=0)
    settings = Settings.load(start_timeout=80 * TICK)  # so long it has to become well
    async with serving(NodeSpec(engines=[engine], settings=settings)) as client:
        (tmp_path / "mark").touch()
        last = (await follow(client, RestartActors([f"{ONCE}-0"], rolling=True)))[-1]
        assert "it is left as it is, and gets nothing until it is well" in last["error"]

        async def unready() -> bool:
            return bool((await rows(client))[f"{ONCE}-0"]["state"] == "unready")

        await wait_until(unready)
        assert await client.call(ONCE, 7) == 7
