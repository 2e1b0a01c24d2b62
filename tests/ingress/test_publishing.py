"""What an ingress tells beyond its node of engines that are not well; the verdict is the test's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from actors.discovery.files import instances_folder
from actors.ingress.publishing import Publishing
from actors.kernel.verdicts import Verdict
from actors.messages import Added, Removed, Snapshot
from tests.discovery.samples import engine
from tests.ingress.engines import echo
from tests.ingress.rig import rig
from tests.waiting import LONG, wait_until


def standing(folder: Path) -> set[int]:
    """The instances whose records stand in a directory."""
    files = Path(instances_folder(str(folder)))
    found = files.iterdir() if files.exists() else ()
    return {json.loads(each.read_text())["instance_id"] for each in found}


@pytest.mark.parametrize(
    ("code", "hides"), [("frozen", True), ("unready", True), ("stalled", False)]
)
async def test_the_record_of_who_can_do_nothing_is_withdrawn_and_comes_back(
    tmp_path: Path, code: str, hides: bool
) -> None:
    folder = tmp_path / "kv"
    async with rig(tmp_path, directory=str(folder), frozen_after=0.0) as at:
        await at.engine(echo, "t.one.go")
        await at.engine(echo, "t.two.go")
        ill, well = (each.address.incarnation for each in at.engines)
        await wait_until(lambda: standing(folder) == {ill, well})
        health = at.ingress.health
        assert health is not None
        verdict = Verdict(code, time.monotonic() - 5.0, "by the test")
        for _ in range(2):
            health._looked({ill: verdict})
        await at.ingress.publishing.settle(LONG)
        assert standing(folder) == ({well} if hides else {ill, well})
        health._looked({})
        await at.ingress.publishing.settle(LONG)
        assert standing(folder) == {ill, well}
        # One that goes while it is hidden does not come back.
        health._looked({ill: verdict})
        at.known.registry.remove(ill, None, "killed")
        health._looked({})
        await at.ingress.publishing.settle(LONG)
        assert standing(folder) == {well}
    assert standing(folder) == set()


class Told:
    """A publisher that remembers."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def start(self) -> None:
        pass

    def changed(self, change: object) -> None:
        self.heard.append(change)

    async def settle(self, limit: float) -> None:
        pass

    async def close(self) -> None:
        self.heard.append("closed")

    def state(self) -> str:
        return "away"


async def test_a_snapshot_leaves_out_who_is_hidden_and_all_endpoints_go_together() -> None:
    publishing, told = Publishing(), Told()
    publishing._publishers["somewhere"] = told
    one, two = engine(1, "t.one.go"), engine(1, "t.two.go")
    publishing._changed(Snapshot([one, two, engine(2)]))
    publishing.judge([(1, "frozen"), (9, "frozen"), (2, "stalled")])
    publishing._changed(Snapshot([one, two, engine(3)]))
    publishing._changed(Added(engine(1, "t.three.go")))
    publishing.judge([])
    assert told.heard == [
        Snapshot([one, two, engine(2)]),
        Removed(one, "it is frozen"),
        Removed(two, "it is frozen"),
        Snapshot([engine(3)]),
        Added(one),
        Added(two),
        Added(engine(1, "t.three.go")),
    ]
    assert publishing.states() == {"somewhere": "away"}
    await publishing.close()
    await publishing.close()
    assert told.heard[-1] == "closed"
    assert told.heard.count("closed") == 1
    assert not publishing.active


async def test_of_an_engine_that_is_gone_nothing_is_hidden_any_more() -> None:
    publishing, told = Publishing(), Told()
    publishing._publishers["somewhere"] = told
    publishing._changed(Snapshot([engine(1), engine(2)]))
    publishing.judge([(1, "frozen"), (2, "frozen")])
    publishing._changed(Removed(engine(1), "ended"))
    publishing._changed(Added(engine(1)))  # before anybody is judged again
    assert told.heard[3:] == [Added(engine(1))]
    publishing.judge([(1, "unready"), (2, "frozen")])
    assert told.heard[4:] == [Removed(engine(1), "it is unready")]


async def test_of_who_is_missing_in_a_snapshot_nothing_is_hidden_any_more() -> None:
    publishing, told = Publishing(), Told()
    publishing._publishers["somewhere"] = told
    publishing._changed(Snapshot([engine(1)]))
    publishing.judge([(1, "frozen")])
    publishing._changed(Snapshot([]))
    publishing._changed(Added(engine(1)))
    assert told.heard[2:] == [Snapshot([]), Added(engine(1))]


async def test_one_that_recovers_as_another_falls_is_told_everywhere() -> None:
    publishing, places = Publishing(), [Told(), Told()]
    publishing._publishers.update({"here": places[0], "there": places[1]})
    publishing._changed(Snapshot([engine(1), engine(2)]))
    publishing.judge([(1, "frozen")])
    publishing.judge([(2, "unready")])
    for place in places:
        assert place.heard[1:] == [
            Removed(engine(1), "it is frozen"),
            Added(engine(1)),
            Removed(engine(2), "it is unready"),
        ]
