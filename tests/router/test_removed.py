"""A Dynamo worker whose record goes from etcd before it has called home, and just before a stream
is to be sent to it: through a router that follows that etcd.

The same with records told by hand, and for workers of ours: ``test_conformance_12_…`` and
``test_conformance_13_…`` in this folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.etcd import EtcdDiscovery
from actors.discovery.merged import MergedDiscovery
from actors.errors import ConnectionLost, NoWorkers
from actors.router.occupancy import place_of
from tests.etcd import Etcd
from tests.router.foreign_rig import GO, collected
from tests.router.rig import RouterRig, Told, router_rig
from tests.router.standin import StandIn, standin
from tests.waiting import DEADLINE, wait_until

KEY = "v1/instances/t/far/go/abc"


def written(worker: StandIn) -> str:
    """The record as a worker of Dynamo writes it."""
    return json.dumps(
        {
            "type": "Endpoint",
            "component": "far",
            "endpoint": "go",
            "namespace": "t",
            "instance_id": 0xABC,
            "transport": {"tcp": worker.via},
            "request_plane_codec": "msgpack",
        }
    )


@asynccontextmanager
async def followed(tmp_path: Path, etcd: Etcd) -> AsyncIterator[tuple[RouterRig, StandIn]]:
    """A router that follows etcd, and a worker that is known there."""
    found = EtcdDiscovery(etcd.address, ttl=2.0)
    merged = MergedDiscovery(Told(), found)
    try:
        async with standin() as worker:
            etcd.put(KEY, written(worker))
            async with router_rig(tmp_path, discovery=merged) as here:
                assert len(here.actor.members.pools[GO].members) == 1  # known from the start on
                yield here, worker
                await here.idle()
                assert here.awaited() == 0
                worker.hang_up()
    finally:
        merged.stop()
        found.stop()


async def talk(here: RouterRig) -> list[Any]:
    async with here.client.open(GO) as stream:
        await stream.send("first")
        return [item async for item in stream]


@pytest.mark.parametrize("many", [False, True])
async def test_c12_a_worker_gone_from_etcd_before_it_dialled_in_ends_both_halves(
    tmp_path: Path, etcd: Etcd, many: bool
) -> None:
    async with followed(tmp_path, etcd) as (here, worker):
        lease = etcd.ctl("lease", "grant", "60").split()[1]
        etcd.put(KEY, written(worker), int(lease, 16))
        task = asyncio.ensure_future(talk(here) if many else collected(here))
        call = await worker.next()
        call.reply()
        await wait_until(lambda: here.awaited() == (2 if many else 1))
        etcd.ctl("lease", "revoke", lease)  # as when it runs out
        with pytest.raises(ConnectionLost, match=r"t\.far\.go"):
            await asyncio.wait_for(task, DEADLINE)
        assert here.awaited() == 0
        half = await call.dial()  # too late: it is turned away
        assert await half.rest() == []
        assert len(worker.calls) == 1


async def test_c13_nothing_is_sent_to_who_has_just_gone_from_etcd_until_it_is_back(
    tmp_path: Path, etcd: Etcd
) -> None:
    async with followed(tmp_path, etcd) as (here, worker):
        (record,) = here.actor.members._records[GO].values()
        etcd.delete(KEY)
        await wait_until(lambda: not here.actor.members.pools[GO].members, what="it is gone")
        with pytest.raises(NoWorkers):
            await collected(here)
        # One that was chosen a moment before, and comes to be sent now.
        place = place_of(record)
        with pytest.raises(ConnectionLost, match="was removed less than 5 s ago; nothing was sent"):
            here.actor._plane.reception.expect(
                "response", "x", place, lambda link: None, lambda error: None, 1e9, worker.address
            )
        assert worker.calls == []
        etcd.put(KEY, written(worker))
        await wait_until(lambda: here.actor.members.pools[GO].members, what="it is back")
        task = asyncio.ensure_future(collected(here))
        await (await worker.next()).answer(1)
        assert await asyncio.wait_for(task, DEADLINE) == [1]
