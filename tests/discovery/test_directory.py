"""A directory of records, written and read by threads that end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from actors.discovery.base import Change
from actors.discovery.directory import DirectoryDiscovery, DirectoryPublisher
from actors.discovery.files import file_name, instances_folder
from actors.discovery.record import pack_record
from actors.errors import SpecError
from actors.messages import Added, Removed, Snapshot
from tests.discovery.samples import door, engine, far, put
from tests.waiting import LONG, TICK, wait_until, wait_until_sync


def publisher(directory: Path, beat: float = 0.02) -> DirectoryPublisher:
    made = DirectoryPublisher(str(directory), reached="10.0.0.7:7400", ingress=1, beat=beat)
    made.start()
    return made


def names(directory: Path) -> list[str]:
    folder = instances_folder(str(directory))
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


async def test_what_one_node_writes_another_finds(tmp_path: Path) -> None:
    writer = publisher(tmp_path)
    writer.changed(Snapshot([engine(1), door(5, "10.0.0.7:7400")]))
    reader = DirectoryDiscovery(str(tmp_path), look=0.01)
    heard: list[Change] = []
    await wait_until(lambda: names(tmp_path))
    subscription = await reader.subscribe(heard.append)
    await wait_until(lambda: reader.records)
    assert [record.via for record in reader.records] == ["10.0.0.7:7400/1/demo/shout/generate"]
    writer.changed(Added(engine(2)))
    await wait_until(lambda: len(reader.records) == 2)
    writer.changed(Removed(engine(1), "killed"))
    await wait_until(lambda: [record.instance for record in reader.records] == [2])
    await writer.close()
    assert names(tmp_path) == []
    await wait_until(lambda: not reader.records)
    assert isinstance(heard[0], Snapshot)
    assert heard[-1] == Removed(far(2)._replace(capacity=8), "its record was withdrawn")
    subscription.cancel()
    reader.stop()
    reader.stop()
    await wait_until(lambda: threading.active_count() == 1)


async def test_only_engines_of_the_own_bus_are_written(tmp_path: Path) -> None:
    writer = publisher(tmp_path)
    writer.changed(Added(far(9)))
    writer.changed(Added(door(5, "10.0.0.7:7400")))
    writer.changed(Added(engine(1)))
    writer.changed(Removed(far(9), "gone"))
    await wait_until(lambda: names(tmp_path))
    assert names(tmp_path) == ["demo%2Fshout%2Fgenerate%2F1"]
    await writer.close()


async def test_a_new_snapshot_withdraws_what_it_lacks_and_nothing_of_others(
    tmp_path: Path,
) -> None:
    other = put(tmp_path, pack_record(engine(77), "10.0.0.9:1", 9))
    writer = publisher(tmp_path)
    writer.changed(Snapshot([engine(1), engine(2)]))
    writer.changed(Snapshot([engine(2), engine(3)]))
    await wait_until(lambda: len(names(tmp_path)) == 3 and not names(tmp_path)[0].endswith("F1"))
    await writer.close()
    assert names(tmp_path) == [other.name]
    assert sorted(os.listdir(tmp_path)) == ["v1"]


async def test_b141_the_heartbeat_renews_and_writes_again_what_was_removed(
    tmp_path: Path,
) -> None:
    writer = publisher(tmp_path)
    writer.changed(Added(engine(1)))
    await wait_until(lambda: names(tmp_path))
    path = Path(instances_folder(str(tmp_path)), names(tmp_path)[0])
    os.utime(path, (1, 1))
    await wait_until(lambda: path.stat().st_mtime > 1)
    os.unlink(path)
    await wait_until(path.exists)
    found = await asyncio.to_thread(path.read_text)
    assert json.loads(found)["instance_id"] == 1
    await writer.close()


async def test_b148_what_the_successor_of_its_ingress_has_written_stays(tmp_path: Path) -> None:
    old = publisher(tmp_path, beat=60.0)
    old.changed(Snapshot([engine(1), engine(2)]))
    await old.settle(LONG)
    new = DirectoryPublisher(str(tmp_path), reached="10.0.0.7:7400", ingress=2, beat=60.0)
    new.start()
    new.changed(Snapshot([engine(1)]))
    await new.settle(LONG)
    await old.close()
    (left,) = names(tmp_path)
    written = Path(instances_folder(str(tmp_path)), left).read_text()  # noqa: ASYNC240
    assert json.loads(written)["callhome"]["ingress"] == "2"
    await new.close()
    assert names(tmp_path) == []


async def test_trouble_is_told_once_and_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    directory = tmp_path / "kv"
    writer = publisher(directory)
    writer.changed(Added(engine(1)))
    await wait_until(lambda: names(directory))
    (directory / "v1").rename(tmp_path / "away")
    (directory / "v1").write_text("a file where a folder was")
    await wait_until(lambda: caplog.records)
    await asyncio.sleep(TICK)  # some five heartbeats, none of which may tell it again
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.records[0].getMessage()
    (directory / "v1").unlink()
    await wait_until(lambda: names(directory))
    await wait_until(lambda: len(caplog.records) == 2)
    await writer.close()


def spoil(directory: Path, name: str) -> None:
    """A folder stands where the record's file would."""
    os.makedirs(os.path.join(instances_folder(str(directory)), name))


@pytest.mark.parametrize("whole", [True, False], ids=["snapshot", "one by one"])
async def test_a_file_that_cannot_be_written_costs_no_other_its_heartbeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    caplog.set_level(logging.WARNING)
    blocked, long = engine(1), engine(2, f"demo.{'ä' * 40}.generate")
    spoil(tmp_path, file_name(blocked.endpoint, 1))
    records = [blocked, long, engine(3)]
    writer = publisher(tmp_path)
    for change in [Snapshot(records)] if whole else map(Added, records):
        writer.changed(change)
    path = Path(instances_folder(str(tmp_path)), file_name(engine(3).endpoint, 3))
    await wait_until(path.exists)
    os.utime(path, (1, 1))
    await wait_until(lambda: path.stat().st_mtime > 1)
    await asyncio.sleep(TICK)
    assert len(caplog.records) <= 2  # each trouble once
    assert blocked.endpoint.replace(".", "%2F") in caplog.records[0].getMessage()
    writer.changed(Removed(blocked, "gone"))
    writer.changed(Removed(long, "gone"))
    await wait_until(lambda: "again" in caplog.records[-1].getMessage())
    await writer.close()
    assert names(tmp_path) == [file_name(blocked.endpoint, 1)]  # the folder is not ours


async def test_a_file_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    writer = publisher(tmp_path, beat=9.0)
    writer.changed(Snapshot([engine(1), engine(2)]))
    await wait_until(lambda: len(names(tmp_path)) == 2)
    first = Path(instances_folder(str(tmp_path)), names(tmp_path)[0])
    os.unlink(first)
    os.mkdir(first)
    await writer.close()
    assert names(tmp_path) == [first.name]


async def test_a_name_of_full_length_is_written(tmp_path: Path) -> None:
    writer = publisher(tmp_path)
    record = engine(1, f"demo.{'x' * 230}.generate")
    assert len(file_name(record.endpoint, 1)) > 250
    writer.changed(Added(record))
    await wait_until(lambda: names(tmp_path))
    await writer.close()


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    writer = DirectoryPublisher(str(tmp_path / "file"), reached="h:1", ingress=1)
    with pytest.raises(SpecError, match=r"^directory: .*file' cannot be written"):
        writer.start()


async def test_closing_what_never_started_is_nothing(tmp_path: Path) -> None:
    await DirectoryPublisher(str(tmp_path), reached="h:1", ingress=1).close()
    DirectoryDiscovery(str(tmp_path)).stop()


def test_a_reader_ends_with_its_loop(tmp_path: Path) -> None:
    async def leave() -> None:
        reader = DirectoryDiscovery(str(tmp_path), look=0.01)
        await reader.subscribe(lambda change: None)

    asyncio.run(leave())
    put(tmp_path, pack_record(engine(1), "10.0.0.9:1", 9))
    wait_until_sync(lambda: threading.active_count() == 1)


async def test_b150_readers_that_start_among_changes_end_with_the_same_records(
    tmp_path: Path,
) -> None:
    writer = publisher(tmp_path, beat=1.0)
    readers = [DirectoryDiscovery(str(tmp_path), look=0.1) for _ in range(10)]
    states: list[dict[int, str]] = [{} for _ in readers]

    def follow(known: dict[int, str], change: Change) -> None:
        if isinstance(change, Snapshot):
            known.clear()
            known.update({each.instance: each.via for each in change.records})
        elif isinstance(change, Added):
            assert change.record.instance not in known
            known[change.record.instance] = change.record.via
        else:
            assert known.pop(change.record.instance) == change.record.via

    for number, (reader, known) in enumerate(zip(readers, states, strict=True)):
        for instance in range(1 + 5 * number, 6 + 5 * number):
            writer.changed(Added(engine(instance)))
        await reader.subscribe(partial(follow, known))
    for _ in range(500):
        writer.changed(Removed(engine(7), "flaps"))
        writer.changed(Added(engine(7)))
    writer.changed(Removed(engine(8), "gone"))
    expected = set(range(1, 51)) - {8}
    await wait_until(lambda: all(set(known) == expected for known in states))
    for reader in readers:
        reader.stop()
    await writer.close()
