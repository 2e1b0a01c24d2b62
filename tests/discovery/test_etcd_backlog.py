"""Changes of etcd that an actor's loop has no time for: they wait, bounded, and none is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from actors.discovery import etcd as etcd_module
from actors.discovery.etcd import EtcdDiscovery
from actors.messages import Added, Removed, Snapshot
from tests.discovery.etcd_rig import PATIENCE, TTL, Heard, publisher, reader
from tests.discovery.samples import engine
from tests.etcd import Etcd
from tests.waiting import wait_until


async def test_workers_that_come_and_go_while_the_loop_stands_still_fill_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etcd_module, "_WAITING", 64)
    found, heard = EtcdDiscovery("etcd://127.0.0.1:1"), Heard()
    found._looked.set()
    found._stopped = True  # nobody dials
    await found.subscribe(heard)
    found._stopped = False
    found._loop = asyncio.get_running_loop()
    found._tell([Added(engine(1))])
    await wait_until(lambda: heard.instances == {1})
    for number in range(2, 500):
        found._tell([Added(engine(number)), Removed(engine(number), "gone")])
        assert len(found._waiting) <= 64
    found._tell([Removed(engine(1), "gone"), Added(engine(1)), Added(engine(600))])
    await wait_until(lambda: heard.instances == {1, 600})
    assert heard.removed.count(1) == 1
    assert len(found._held) == 2
    found._tell([Removed(engine(1), "gone"), Removed(engine(600), "gone")])
    await wait_until(lambda: not heard.instances)
    assert not found._held, "what is kept of who came and went in all these weeks"


async def test_a_loop_that_stands_still_hears_everything_later(etcd: Etcd) -> None:
    async with reader(etcd.address) as (_, heard):
        async with publisher(etcd.address, *range(1, 400)) as writer:
            writer.changed(Snapshot([engine(each) for each in range(300, 600)]))
            await asyncio.to_thread(lambda: None)
            time.sleep(TTL / 2)  # noqa: ASYNC251 - of our own thread, that is the point
            await wait_until(lambda: heard.instances == set(range(300, 600)), PATIENCE)
        await wait_until(lambda: not heard.known, PATIENCE)
