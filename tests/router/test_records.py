"""Records that a router can do nothing with: each costs itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgpack
import pytest

from actors.discovery.record import SPEAKS
from actors.errors import NoWorkers
from actors.messages import Added, Record
from tests.router.rig import far_record, router_rig
from tests.router.standin import standin
from tests.waiting import wait_until

HALF = "\ud800"

BAD = {
    "host": far_record(f"{HALF}:80/p", "t.bad.go", 1),
    "path": far_record(f"127.0.0.1:9/p{HALF}", "t.bad.go", 2, speaks=SPEAKS),
    "endpoint": far_record("127.0.0.1:9/p", f"t.bad.{HALF}", 3),
    "codec": far_record("127.0.0.1:9/p", "t.bad.go", 4, codec=HALF),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_record_that_nobody_can_be_told_of_is_left_out(tmp_path: Path, bad: Record) -> None:
    async with standin() as worker:
        good = far_record(worker.via, "t.far.go", 0xABC, codec="msgpack")
        async with router_rig(tmp_path, bad, good) as here:
            msgpack.packb(here.actor.carries())
            task = asyncio.ensure_future(here.client.call("t.far.go", 1))
            await (await worker.next()).answer(2)
            assert await task == 2
            with pytest.raises(NoWorkers, match=r"unknown here \(served: t.far.go\)|did you mean"):
                await here.client.call("t.none.go", 1)
            here.told._tell(Added(bad))
            here.told.remove(bad)
            msgpack.packb(here.actor.carries())
            await here.idle()
            worker.hang_up()


async def test_a_record_that_fails_costs_none_of_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (far_record("127.0.0.1:9/p", f"t.far.{name}", n) for n, name in ((1, "a"), (2, "b")))
    async with router_rig(tmp_path) as here:
        add = here.actor.occupancy.add

        def fails(record: Record) -> object:
            if record is one:
                raise ZeroDivisionError
            return add(record)

        monkeypatch.setattr(here.actor.occupancy, "add", fails)
        here.told.add(one)
        here.told.add(two)
        assert [each["endpoint"] for each in here.actor.carries()["workers"]] == ["t.far.b"]
        assert "the record of 't.far.a' at '127.0.0.1:9/p' failed" in caplog.text
        here.told.remove(one)
        here.told.remove(two)
        assert here.actor.carries()["workers"] == []


async def test_what_is_said_of_static_peers_can_be_sent(tmp_path: Path) -> None:
    peer = f"{HALF}.example:80"
    async with router_rig(tmp_path, peers=(peer,)) as here:
        await wait_until(lambda: peer in here.actor.peers.failures)
        states = here.actor.carries()["peers"]
        assert list(states) == ["\\ud800.example:80"]
        assert states["\\ud800.example:80"]
        msgpack.packb(here.actor.carries())
