"""The stream of records that routers of other nodes follow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.loads import OCCUPANCY
from actors.discovery.record import RESERVED, read_record
from actors.messages import Accept, Credit, End, Items, Kill, Record, Stop
from tests.ingress.engines import Chat, echo
from tests.ingress.muxhome import MuxHome, mux_home
from tests.ingress.rig import Rig, rig
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.wire.codec import decode


@asynccontextmanager
async def both(tmp_path: Path) -> AsyncIterator[tuple[Rig, MuxHome]]:
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        yield at, home


def told(home: MuxHome, stream: int, codec: str = "msgpack") -> list[dict[str, Any]]:
    """What the ingress has told on a stream."""
    found: list[Any] = [
        decode(payload, codec=codec)
        for each in home.came
        if isinstance(each, Items) and each.stream == stream
        for payload in each.payloads
    ]
    return found


def fake(at: Rig, index: int) -> Record:
    """A record of an engine that lives in this process."""
    own = at.ingress.address
    address = Address(f"fake-{index}", 1000 + index, own.pid, own.started)
    return Record(1000 + index, address, "engine", "t.fake.go", False, 4)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_a_snapshot_and_then_each_change(tmp_path: Path, codec: str) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        stream = await home.ask(RESERVED, None, payload_codec=codec)
        await home.until(Accept, stream)
        await wait_until(lambda: len(told(home, stream, codec)) == 1)
        record = read_record(told(home, stream, codec)[0]["snapshot"][0])
        assert record.via == f"{at.ingress.reached}/{path}"
        assert (record.endpoint, record.many, record.speaks) == ("t.engine.go", False, "callhome1")
        await at.engine(Chat, endpoint="t.engine.chat")
        await wait_until(lambda: len(told(home, stream, codec)) == 2)
        added = read_record(told(home, stream, codec)[1]["added"])
        assert (added.endpoint, added.many, added.capacity) == ("t.engine.chat", True, 64)
        gone = at.engines[0].address.incarnation
        at.known.registry.remove(gone, None, "it was told to stop")
        await wait_until(lambda: len(told(home, stream, codec)) == 3)
        last = told(home, stream, codec)[2]
        assert read_record(last["removed"]).instance == gone
        assert last["reason"] == "it was told to stop"
        assert home.got(End, stream) == []
        home.send(Kill(home.incarnation, stream, "enough"))
        await wait_until(lambda: not at.ingress.records.streams)


async def test_a_slow_reader_gets_only_the_newest_of_each_record(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        stream = await home.ask(RESERVED, None, metadata={"x-callhome-window": "1,65536"})
        await wait_until(lambda: told(home, stream) == [{"snapshot": []}])
        one, two = fake(at, 1), fake(at, 2)
        for record in (one, two):
            at.known.registry.add(record)
        at.known.registry.remove(one.instance, None, "gone again")
        home.send(Credit(stream, 100, 65536))
        await wait_until(lambda: len(told(home, stream)) == 3)
        assert read_record(told(home, stream)[1]["added"]).instance == two.instance
        assert read_record(told(home, stream)[2]["removed"]).instance == one.instance


async def test_conformance_31_a_slow_reader_hears_that_an_instance_went_and_came(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (at, home):
        one, two = fake(at, 1), fake(at, 2)
        at.known.registry.add(one)
        stream = await home.ask(RESERVED, None, metadata={"x-callhome-window": "1,65536"})
        await wait_until(lambda: len(told(home, stream)) == 1)
        for _ in range(3):  # however often, within one millisecond
            at.known.registry.remove(one.instance, None, "for a moment")
            at.known.registry.add(one)
        at.known.registry.add(two)
        at.known.registry.remove(two.instance, None, "gone again")
        home.send(Credit(stream, 1, 0))
        await wait_until(lambda: len(told(home, stream)) == 2)
        at.known.registry.remove(one.instance, None, "for good")  # half of it has been told
        home.send(Credit(stream, 100, 65536))
        await wait_until(lambda: len(told(home, stream)) == 4)
        changes = [
            (word, read_record(change[word]).instance)
            for change in told(home, stream)[1:]
            for word in ("added", "removed")
            if word in change
        ]
        gone = [("removed", one.instance), ("removed", two.instance), ("removed", one.instance)]
        assert changes == gone
        at.known.registry.add(one)
        at.known.registry.remove(one.instance, None, "once more")
        at.known.registry.add(one)
        await wait_until(lambda: len(told(home, stream)) == 7)
        words = [next(iter(change)) for change in told(home, stream)[4:]]
        assert words == ["added", "removed", "added"]


async def test_many_records_come_in_small_messages(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        for index in range(250):
            at.known.registry.add(fake(at, index))
        stream = await home.ask(RESERVED, None)
        await wait_until(lambda: len(told(home, stream)) == 52)
        first, *rest, last = told(home, stream)
        assert (first["more"], last) == (True, {"whole": True})
        found = first["snapshot"] + [each["added"] for each in rest]
        assert sorted(each["instance_id"] for each in found) == [1000 + i for i in range(250)]


async def test_what_is_no_engine_of_this_node_is_not_told(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        own = at.ingress.address
        at.known.registry.add(Record(5, own, "router"))
        at.known.registry.add(fake(at, 1)._replace(via="10.0.0.1:7/x"))
        stream = await home.ask(RESERVED, None)
        await wait_until(lambda: told(home, stream) == [{"snapshot": []}])
        home.send(Stop(home.incarnation, stream, "enough"))
        assert (await home.ended(stream)).error is None


async def test_records_are_withdrawn_before_streams_end(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        await at.engine(echo)
        stream = await home.ask(RESERVED, None)
        loads = await home.ask(OCCUPANCY, None)
        await wait_until(lambda: len(told(home, stream)) == 1 and home.got(Items, loads))
        at.ingress.shut()
        await wait_until(lambda: len(told(home, stream)) == 2)
        assert "removed" in told(home, stream)[1]
        await at.ingress.on_stop()
        for reader in (stream, loads):
            end = await home.ended(reader)
            assert end.error is not None
            assert end.error[:2] == ["connection.lost", "the ingress stops"]


async def test_what_was_withdrawn_is_served_on_until_its_engine_ends(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, _):
        path = await at.engine(echo)
        records, engine = at.ingress.records, at.engines[0].address
        records.published = True  # others have read it
        at.known.registry.remove(engine.incarnation, None, "it drains")
        assert records.find(path) is not None
        assert records.was_withdrawn(path)
        records.close_withdrawn([engine.incarnation + 1])
        assert records.find(path) is not None
        records.close_withdrawn([engine.incarnation])
        assert records.find(path) is None
        assert records.was_withdrawn(path)
        for hear in at.ingress.runtime.when_down:
            hear(engine, "it has ended")
        assert not records.was_withdrawn(path)  # nothing is kept of who is gone


async def test_records_stand_in_a_directory_while_the_ingress_lives(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with rig(tmp_path, directory=str(shared)) as at:
        path = await at.engine(echo)
        folder = shared / "v1" / "instances"
        await wait_until(lambda: folder.exists() and any(folder.iterdir()))
        (file,) = folder.iterdir()
        record = read_record(json.loads(file.read_text()))
        assert record.via == f"{at.ingress.reached}/{path}"
    assert list(folder.iterdir()) == []
