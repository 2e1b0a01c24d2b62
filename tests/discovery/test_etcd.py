"""Records read from a real etcd: complete, in order, and none gone because etcd was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from actors.discovery import etcd as etcd_module
from actors.discovery import etcd_connection, etcd_link
from actors.discovery.etcd import EtcdDiscovery
from actors.discovery.etcd_connection import Connection
from actors.discovery.etcd_records import Pair, Told
from actors.messages import Added, Removed, Snapshot
from tests.discovery.etcd_rig import (
    LEASE,
    PATIENCE,
    ROOT,
    TTL,
    Cable,
    Heard,
    key,
    node,
    publisher,
    reader,
)
from tests.discovery.samples import DYNAMO, engine
from tests.etcd import Etcd, etcd_cluster, require_etcd
from tests.ports import free_address
from tests.waiting import wait_until


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "callhome.etcd"]


async def test_what_one_node_writes_another_finds(etcd: Etcd) -> None:
    etcd.put("v1/instances/bench/worker/generate/591daf1894a66ff", DYNAMO)
    async with publisher(etcd.address, 1) as writer, reader(etcd.address) as (found, heard):
        assert isinstance(heard.changes[0], Snapshot)
        assert {record.via for record in found.records} == {
            "10.0.0.7:7400/1/demo/shout/generate",
            "127.0.0.1:41525/591daf1894a66ff/bench/worker/generate",
        }
        assert found.state() == ""
        writer.changed(Added(engine(2)))
        await wait_until(lambda: 2 in heard.known)
        writer.changed(Removed(engine(1), "killed"))
        await wait_until(lambda: 1 not in heard.known)
        late = Heard()
        subscription = await found.subscribe(late)
        assert late.instances == {2, 0x591DAF1894A66FF}
        subscription.cancel()
        await writer.close()
        await wait_until(lambda: heard.instances == {0x591DAF1894A66FF})
        assert late.instances == {2, 0x591DAF1894A66FF}


async def test_b145_a_namespace_sees_itself_alone(etcd: Etcd) -> None:
    etcd.put("v1/instances/bench/worker/generate/591daf1894a66ff", DYNAMO)
    async with (
        publisher(etcd.address, 1, namespace="demo"),
        publisher(etcd.address, 2, namespace="dem"),
        reader(etcd.address, namespace="demo") as (_, demo),
        reader(etcd.address, namespace="bench") as (_, bench),
        reader(etcd.address, namespace="dem") as (_, none),
    ):
        assert demo.instances == {1}
        assert bench.instances == {0x591DAF1894A66FF}
        assert none.instances == set()


async def test_what_is_no_record_is_left(etcd: Etcd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    etcd.put(ROOT + "demo/shout/generate/7", DYNAMO)

    def left() -> list[str]:
        return [each for each in told(caplog) if " is left: " in each]

    async with reader(etcd.address, ttl=TTL) as (found, heard), publisher(etcd.address, 1):
        etcd.put(ROOT + "x", "not JSON")
        etcd.put(ROOT + "x", "not JSON either")
        await wait_until(lambda: heard.instances == {1} and len(left()) >= 2)
        await asyncio.sleep(0.7 * TTL)  # two looks, which count what is left as well
        assert len(left()) == 2
        await wait_until(lambda: found.state() == "")


async def test_an_etcd_that_is_away_at_the_start_is_found_when_it_comes(
    etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with publisher(etcd.address, 1):
        etcd.kill()
        async with reader(etcd.address) as (found, heard):
            assert heard.changes == [Snapshot([])]
            assert found.state().startswith(f"{etcd.address} cannot be used, for ")
            await wait_until(lambda: "onnection refused" in found.state())
            assert found.state().endswith("; see whether it runs there")
            etcd.start()
            await wait_until(lambda: heard.instances == {1}, PATIENCE)
            await wait_until(lambda: found.state() == "")
    lost = [each for each in told(caplog) if "cannot be used" in each]
    back = [each for each in told(caplog) if "answers again" in each]
    assert len(lost) == len(back) == 1  # both users share one link, and one line


async def test_an_etcd_that_hangs_at_the_start_is_not_waited_for_long(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "_PATIENCE", 0.3)
    etcd.freeze()
    async with reader(etcd.address) as (found, heard):
        assert heard.changes == [Snapshot([])]
        assert "answer" in found.state()
    etcd.thaw()  # to stop it does not wait for that


async def test_b147_etcd_is_killed_and_nobody_is_gone(etcd: Etcd) -> None:
    async with (
        reader(etcd.address, ttl=TTL) as (found, heard),
        publisher(etcd.address, 1, 2) as writer,
    ):
        await wait_until(lambda: heard.instances == {1, 2})
        etcd.kill()
        await wait_until(found.state)
        writer.changed(Added(engine(3)))
        await asyncio.sleep(1.2 * TTL)
        assert heard.instances == {1, 2}
        etcd.start()
        await wait_until(lambda: heard.instances == {1, 2, 3}, PATIENCE)
        await asyncio.sleep(1.2 * TTL)  # what was held would go within that
        assert heard.instances == {1, 2, 3}
        assert heard.removed == []
        await wait_until(lambda: found.state() == writer.state() == "")
        assert set(etcd.get(ROOT)) == {key(1), key(2), key(3)}


async def test_b141_etcd_stands_still_for_longer_than_a_lease(etcd: Etcd) -> None:
    ttl = 2 * TTL  # this process may stand still for a moment, too
    async with reader(etcd.address, ttl=ttl) as (_, heard), publisher(etcd.address, 1, 2, ttl=ttl):
        await wait_until(lambda: heard.instances == {1, 2})
        etcd.freeze()
        await asyncio.sleep(1.3 * ttl)
        etcd.thaw()
        await asyncio.sleep(1.3 * ttl)
        assert heard.instances == {1, 2}
        assert heard.removed == []
        assert set(etcd.get(ROOT)) == {key(1), key(2)}


async def test_b147_etcd_loses_its_data_and_who_lives_stays(etcd: Etcd) -> None:
    """Who does not come back after the outage goes one lease later."""
    ttl = 3 * TTL  # who stands still for a moment stays, too
    async with (
        reader(etcd.address, ttl=ttl) as (found, heard),
        publisher(etcd.address, 1, ttl=ttl),
    ):
        with node(etcd, 5) as process:
            await wait_until(lambda: heard.instances == {1, 5})
            etcd.kill()
            await wait_until(found.state)
            process.kill()
        etcd.start(fresh=True)
        began = time.monotonic()
        await wait_until(lambda: heard.removed == [5], PATIENCE)
        assert time.monotonic() - began > ttl / 2
        assert heard.instances == {1}


class Unlucky(EtcdDiscovery):
    """Something happens between its first list and its watch, or to a change on its way."""

    def __init__(self, etcd: Etcd, fault: str) -> None:
        # What is dropped shows when it is looked for twice; nobody is to be late for that.
        super().__init__(etcd.address, ttl=4 * TTL if fault == "dropped" else LEASE)
        self.etcd = etcd
        self.fault = fault
        self.lists = 0

    async def _list(self, connection: Connection) -> tuple[list[Pair], int]:
        listed = await super()._list(connection)
        self.lists += 1
        if self.fault == "unforeseen" and self.lists == 1:
            raise ZeroDivisionError("nobody has thought of it")
        if self.fault == "compacted" and self.lists == 1:
            self.etcd.put("elsewhere", "x")
            self.etcd.delete(key(1))
            self.etcd.ctl("compaction", str(listed[1] + 2))
        return listed

    def _events(self, events: Iterable[Any], now: float) -> Iterable[Told]:
        if self.fault == "dropped" and self.lists == 1:
            return []
        return super()._events(events, now)


async def test_a_list_whose_revision_is_compacted_between_two_pages_begins_anew(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_module, "_PAGE", 1)
    caplog.set_level(logging.WARNING)
    call, pages = Connection.call, 0

    async def compacting(self: Connection, name: str, request: Any, limit: float) -> Any:
        nonlocal pages
        answer = await call(self, name, request, limit)
        if name == "Range" and request.limit == 1 and not request.keys_only:
            pages += 1
            if pages == 1:
                etcd.put("elsewhere", "x")
                etcd.ctl("compaction", str(answer.header.revision + 1))
        return answer

    async with publisher(etcd.address, 1, 2):
        monkeypatch.setattr(Connection, "call", compacting)
        async with reader(etcd.address) as (found, heard):
            await wait_until(lambda: heard.instances == {1, 2}, PATIENCE)
            assert found.state() == ""
    assert any("was not told to its end" in each for each in told(caplog))
    assert not any("refuses to tell" in each for each in told(caplog))


@pytest.mark.parametrize("fault", ["compacted", "dropped"])
async def test_b150_what_the_watch_misses_is_listed(
    etcd: Etcd, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    etcd.put(key(0x591DAF1894A66FF).replace("demo/shout", "bench/worker"), DYNAMO)
    etcd.put(key(1), "x")
    found, heard = Unlucky(etcd, fault), Heard()
    try:
        await found.subscribe(heard)
        async with publisher(etcd.address, 2):
            await wait_until(lambda: heard.instances == {2, 0x591DAF1894A66FF}, PATIENCE)
        assert any("all records are listed again" in each for each in told(caplog))
        assert found.lists == 2
    finally:
        found.stop()


async def test_b164_what_nobody_has_foreseen_is_logged_and_begun_anew(
    etcd: Etcd, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_link, "_LONGEST_PAUSE", 0.01)
    found, heard = Unlucky(etcd, "unforeseen"), Heard()
    try:
        async with publisher(etcd.address, 1):
            await found.subscribe(heard)
            await wait_until(lambda: heard.instances == {1}, PATIENCE)
        assert "the discovery of etcd failed; it begins anew" in caplog.text
        assert "nobody has thought of it" in caplog.text
        caplog.clear()  # its frames hold the connection
    finally:
        found.stop()


async def test_b150_readers_that_start_among_changes_end_with_the_same_records(
    etcd: Etcd,
) -> None:
    """50 workers register while 10 readers start; one flaps 1,000 times."""
    async with contextlib.AsyncExitStack() as stack:
        writers, readers = [], []
        for number in range(10):
            writers.append(await stack.enter_async_context(publisher(etcd.address)))
            for instance in range(1 + 5 * number, 6 + 5 * number):
                writers[-1].changed(Added(engine(instance)))
            readers.append(await stack.enter_async_context(reader(etcd.address)))
        for number in range(1000):
            writers[3].changed(Removed(engine(17), "flaps"))
            writers[3].changed(Added(engine(17)))
            if number % 10 == 0:  # else only the end of it would come to be known
                await writers[3].settle(PATIENCE)
        writers[0].changed(Removed(engine(2), "gone"))
        expected = set(range(1, 51)) - {2}
        for _, heard in readers:
            await wait_until(lambda heard=heard: heard.instances == expected, PATIENCE)
            assert heard.removed.count(2) <= 1
        assert not threading.active_count() > 3  # ours, gRPC's, and the main one


async def test_another_member_is_used_when_one_is_gone(etcd: Etcd) -> None:
    first = free_address()
    async with publisher(etcd.address, 1):
        address = f"etcd://{first},{etcd.endpoint}"
        async with reader(address) as (found, heard):
            assert heard.instances == {1}
            assert found.state() == ""


async def test_a_member_that_hangs_is_left_for_another() -> None:
    require_etcd()
    with etcd_cluster(3) as members:
        address = "etcd://" + ",".join(each.endpoint for each in members)
        # The lease has to last until a member is missed, and the others have chosen another.
        async with reader(address, ttl=6.0) as (found, heard), publisher(address, 1, ttl=6.0) as it:
            await wait_until(lambda: heard.instances == {1}, PATIENCE)
            members[0].freeze()  # both are connected to it
            it.changed(Added(engine(2)))
            await wait_until(lambda: heard.instances == {1, 2}, PATIENCE)
            assert heard.removed == []
            await wait_until(lambda: found.state() == it.state() == "")
            members[0].thaw()


async def test_a_connection_that_is_cut_in_silence_is_seen_within_a_lease(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long all takes on a busy machine: no answer is waited for any longer than that."""
    cable, call, limits = Cable(etcd), Connection.call, list[float]()

    async def limited(it: Connection, name: str, request: Any, limit: float) -> Any:
        if not cable.whole.is_set() and it.member in address:
            limits.append(limit)
        return await call(it, name, request, limit)

    monkeypatch.setattr(Connection, "call", limited)
    async with (
        publisher(etcd.address, 1) as writer,
        cable.laid() as address,
        reader(address, ttl=1.5) as (found, heard),
    ):
        await wait_until(lambda: heard.instances == {1})
        cable.whole.clear()
        writer.changed(Added(engine(2)))
        await wait_until(found.state)
        assert "it does not answer" in found.state()
        assert limits[0] < 1.5
        assert heard.instances == {1}
        cable.whole.set()
        await wait_until(lambda: heard.instances == {1, 2}, PATIENCE)
        assert heard.removed == []


async def test_what_listens_there_and_is_no_etcd_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and says nothing
        monkeypatch.setattr(etcd_module, "_PATIENCE", 0.2)
        async with reader(f"etcd://127.0.0.1:{listener.getsockname()[1]}") as (found, heard):
            assert heard.changes == [Snapshot([])]
            assert found.state() != ""


async def test_it_ends_with_the_loop_of_its_reader(etcd: Etcd) -> None:
    def leave() -> None:
        async def run() -> None:
            await EtcdDiscovery(etcd.address, ttl=TTL).subscribe(lambda change: None)

        asyncio.run(run())

    await asyncio.to_thread(leave)
    async with publisher(etcd.address, 1):
        pass


async def test_the_snapshot_is_whole_however_many_there_are(etcd: Etcd) -> None:
    """More than are told in one turn of the loop."""
    count = 2 * etcd_module._TURN + 1
    async with (
        publisher(etcd.address, *range(1, count + 1)),
        reader(etcd.address) as (_, heard),
    ):
        (snapshot,) = heard.changes
        assert isinstance(snapshot, Snapshot)
        assert len(snapshot.records) == count


async def test_values_that_are_too_large_for_one_answer_are_listed_in_smaller_ones(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(etcd_connection._OPTIONS, "grpc.max_receive_message_length", 65536)
    monkeypatch.setattr(etcd_module, "_SMALL_PAGE", 4)
    for number in range(10, 20):
        etcd.put(key(number), "x" * 10_000)
    async with publisher(etcd.address, 1), reader(etcd.address) as (found, heard):
        assert heard.instances == {1}
        assert found.state() == ""


async def test_an_etcd_that_is_away_for_long_is_tried_again_as_often(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_link, "_LONGEST_PAUSE", 2 * etcd_link._PAUSE)
    async with reader(etcd.address) as (found, _):
        etcd.kill()
        assert found._seat is not None
        link = found._seat.link
        await wait_until(lambda: link.failed_rounds >= 9, PATIENCE, "nine rounds")
