"""What a router knows of a node that it follows by name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from actors.discovery.record import SPEAKS
from actors.router.peers import StaticPeers, _Peer
from tests.discovery.samples import far
from tests.ingress.engines import echo
from tests.ingress.rig import rig
from tests.router.rig import router_rig
from tests.waiting import wait_until


def test_a_snapshot_in_parts_withdraws_nothing_before_its_last_part() -> None:
    """An ingress has handed its followers over: what its successor serves was known."""
    told: list[tuple[int, str]] = []
    peer = _Peer("10.0.0.7:7400", lambda key, reason: told.append((key[0], reason)))
    for number in range(1, 5):
        peer.add(far(number))
    told.clear()
    peer.replace([far(1)], more=True)
    peer.add(far(2))
    peer.remove((3, far(3).endpoint), "it ends")
    assert set(told) == {(1, ""), (2, ""), (3, "it ends")}
    assert {instance for instance, _ in peer.records} == {1, 2, 4}
    peer.whole()
    assert told[-1] == (4, "it is not served there any more")
    peer.replace([far(2)], more=False)
    assert {instance for instance, _ in peer.records} == {2}


def test_two_names_of_one_node_tell_of_it_once_and_until_the_last_is_silent() -> None:
    runtime: Any = None
    peers = StaticPeers(runtime, ["10.0.0.7:7400", "seven:7400"])
    one, other = peers._peers
    record = far(1)
    heard: list[Any] = []
    peers._registry.subscribe(heard.append)
    one.add(record)
    other.add(record._replace(via=record.via.replace("10.0.0.7", "seven")))
    one.remove((1, record.endpoint), "its connection is lost")
    assert [each.via.partition(":")[0] for each in peers._registry.records] == ["seven"]
    other.remove((1, record.endpoint), "and so is this")
    assert peers._registry.records == []
    assert [type(each).__name__ for each in heard].count("Added") <= 2


async def test_a_node_that_ends_takes_its_records_along(tmp_path: Path) -> None:
    for each in "ab":
        (tmp_path / each).mkdir()
    async with rig(tmp_path / "b") as there:
        await there.engine(echo)
        async with router_rig(tmp_path / "a", peers=(there.ingress.reached,)) as here:
            known = here.actor.peers._registry
            await wait_until(lambda: len(known.records) == 1, what="it is known")
            (record,) = known.records
            assert record.speaks == SPEAKS
            await asyncio.wait_for(there.ingress.on_stop(), 20)
            await wait_until(lambda: not known.records, what="none of it is known any more")
            assert here.actor.peers.unseen()
