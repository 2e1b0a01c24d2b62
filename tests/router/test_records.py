"""Records that a router can do nothing with: each costs itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgpack
import pytest

from actors.discovery.directory import DirectoryDiscovery
from actors.discovery.record import SPEAKS
from actors.errors import NoWorkers
from actors.messages import Added, Record
from tests.discovery.samples import dynamo, put
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


class Ear:
    """Writes down what a dispatch hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_instance_added(self, record: Record) -> None:
        self.heard.append(("added", record.codec))

    def on_instance_removed(self, record: Record, reason: str) -> None:
        self.heard.append(("removed", record.codec))


async def test_conformance_31_a_file_that_is_written_anew_between_two_looks(tmp_path: Path) -> None:
    """Removed and added are both told, in order, where it says something else; one that says the
    same is the same worker that goes on.
    """
    folder = tmp_path / "records"
    one, other = (dynamo(request_plane_codec=codec) for codec in ("msgpack", "json"))
    put(folder, one)
    reader = DirectoryDiscovery(str(folder), look=0.02)
    try:
        async with router_rig(tmp_path) as here:
            ear = Ear()
            here.actor._ways.lifecycle.subscribe(ear)
            await reader.subscribe(here.actor.members.changed)
            assert ear.heard == [("added", "msgpack")]

            async def written(data: dict[str, object]) -> list[tuple[str, str]]:
                """What is heard of it by the next look."""
                before, now = len(ear.heard), time.monotonic()
                put(folder, data)  # another file in its place: it is away at no moment
                await wait_until(lambda: reader._reader._looked > now)
                looked = reader._reader._looked
                await wait_until(lambda: reader._reader._looked > looked)
                await asyncio.sleep(0)  # what the one before has seen is told
                return ear.heard[before:]

            assert await written(other) == [("removed", "msgpack"), ("added", "json")]
            assert await written(other) == []
            assert await written(one) == [("removed", "json"), ("added", "msgpack")]
            assert len(here.actor.members.pools["bench.worker.generate"].members) == 1
    finally:
        reader.stop()
