"""What is taken from record files: by their heartbeat, and nothing that is no record."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.files import LARGEST, MOST, Reader, file_name, instances_folder
from actors.discovery.record import pack_record, read_record
from actors.messages import Added, Removed
from tests.discovery.samples import DYNAMO, DYNAMO_NAME, dynamo, engine, put

WALL = 1_000_000.0


def touch(path: Path, wall: float) -> None:
    os.utime(path, (wall, wall))


def placed(directory: Path, data: Any, wall: float = WALL, name: str | None = None) -> Path:
    path = put(directory, data, name)
    touch(path, wall)
    return path


def ours(instance: int) -> dict[str, Any]:
    return pack_record(engine(instance), "10.0.0.7:7400", 1)


def test_a_file_of_dynamo_is_found_and_called_as_theirs(tmp_path: Path) -> None:
    placed(tmp_path, DYNAMO.encode(), name=DYNAMO_NAME)
    assert Reader(str(tmp_path), 10).look(0, WALL) == [Added(read_record(json.loads(DYNAMO)))]
    assert file_name("bench.worker.generate", 0x591DAF1894A66FF) == DYNAMO_NAME


def test_a_directory_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    reader = Reader(str(tmp_path / "later"), 10)
    assert reader.look(0, WALL) == []
    placed(tmp_path / "later", ours(1))
    assert [change.record.instance for change in reader.look(1, WALL)] == [1]


def test_the_heartbeat_keeps_a_record_and_its_end_drops_it(tmp_path: Path) -> None:
    path = placed(tmp_path, ours(1))
    reader = Reader(str(tmp_path), 10)
    assert len(reader.look(0, WALL)) == 1
    for second in range(1, 9):
        assert reader.look(second, WALL) == []
    touch(path, WALL + 9)
    for second in range(9, 20):
        assert reader.look(second, WALL) == []
    (gone,) = reader.look(20, WALL)
    assert isinstance(gone, Removed)
    assert gone.reason == "its record was not renewed for 10 s"
    touch(path, WALL + 21)
    (back,) = reader.look(21, WALL)
    assert isinstance(back, Added)


def test_left_overs_of_the_dead_are_never_told(tmp_path: Path) -> None:
    placed(tmp_path, ours(1), WALL - 11)
    assert Reader(str(tmp_path), 10).look(0, WALL) == []


def test_a_clock_that_goes_ahead_is_no_heartbeat_for_ever(tmp_path: Path) -> None:
    placed(tmp_path, ours(1), WALL + 3600)
    reader = Reader(str(tmp_path), 10)
    changes = [reader.look(second, WALL) for second in range(12)]
    assert [len(each) for each in changes] == [1, *[0] * 10, 1]


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["ahead", "back"])
def test_b151_a_wall_clock_that_jumps_expires_nobody_and_spares_nobody(
    tmp_path: Path, jump: float
) -> None:
    """The writer's jumps too, and the times of its heartbeats with it."""
    dead, alive = placed(tmp_path, ours(1)), placed(tmp_path, ours(2))
    reader = Reader(str(tmp_path), 10)
    assert len(reader.look(0, WALL)) == 2
    for second in range(1, 10):
        touch(alive, WALL + jump + second)
        assert reader.look(second, WALL + jump + second) == []
    assert reader.look(10, WALL + jump + 10) == []
    (gone,) = reader.look(11, WALL + jump + 11)
    assert gone.record.instance == 1
    assert dead.exists()


def test_a_withdrawn_file_and_a_changed_one(tmp_path: Path) -> None:
    path = placed(tmp_path, ours(1))
    reader = Reader(str(tmp_path), 10)
    reader.look(0, WALL)
    placed(tmp_path, ours(1) | {"request_plane_codec": "json"}, WALL + 1)
    removed, added = reader.look(1, WALL)
    assert isinstance(removed, Removed)
    assert removed.reason == "its record was replaced"
    assert added.record.codec == "json"
    path.unlink()
    (gone,) = reader.look(2, WALL)
    assert isinstance(gone, Removed)
    assert gone.reason == "its record was withdrawn"


def test_b147_a_directory_that_cannot_be_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = placed(tmp_path, ours(1))
    reader = Reader(str(tmp_path), 10)
    reader.look(0, WALL)
    (tmp_path / "v1").rename(tmp_path / "away")
    for second in range(1, 30):
        assert reader.look(second, WALL) == []
    (tmp_path / "away").rename(tmp_path / "v1")
    assert reader.look(30, WALL) == []  # the worker could not renew it meanwhile
    touch(path, WALL + 31)
    assert reader.look(31, WALL) == []
    assert [len(reader.look(second, WALL)) for second in range(32, 43)] == [*[0] * 10, 1]
    assert [record.getMessage()[-29:] for record in caplog.records] == [
        "what was known of it still holds"[-29:],
        f"{instances_folder(str(tmp_path))} can be read again"[-29:],
    ]


def test_b148_a_successor_outlives_the_record_of_its_predecessor(tmp_path: Path) -> None:
    old = placed(tmp_path, ours(1))
    reader = Reader(str(tmp_path), 10)
    reader.look(0, WALL)
    new = placed(tmp_path, ours(2), WALL + 1)
    reader.look(1, WALL)
    changes = []
    for second in range(2, 25):
        touch(new, WALL + second)
        changes += reader.look(second, WALL)
    assert [(type(change), change.record.instance) for change in changes] == [(Removed, 1)]
    assert old.exists()  # it is not ours to delete


def test_a_half_written_file_takes_nothing_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = placed(tmp_path, ours(1))
    whole = path.read_bytes()
    reader = Reader(str(tmp_path), 10)
    reader.look(0, WALL)
    path.write_bytes(whole[:40])
    assert reader.look(1, WALL) == []
    path.write_bytes(whole)
    assert reader.look(2, WALL) == []
    other = placed(tmp_path, ours(2))
    whole = other.read_bytes()
    other.write_bytes(whole[:10])
    assert reader.look(3, WALL) == []
    other.write_bytes(whole)
    assert [change.record.instance for change in reader.look(4, WALL)] == [2]
    assert caplog.records == []


def test_a_file_that_turns_bad_expires(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = placed(tmp_path, ours(1))
    reader = Reader(str(tmp_path), 10)
    reader.look(0, WALL)
    path.write_bytes(b"\xff")
    changes = [reader.look(second, WALL) for second in range(1, 16)]
    assert [len(each) for each in changes] == [*[0] * 9, 1, *[0] * 5]
    assert len(caplog.records) == 1


def make_hostile(folder: Path) -> list[str]:
    """Things that are no records, under names as records have them; what is said of each."""
    folder.mkdir(parents=True)
    (folder / "a%2Fb%2Fc%2F1").write_bytes(b"{" * (LARGEST + 1))
    (folder / "a%2Fb%2Fc%2F2").write_bytes(os.urandom(4096))
    (folder / "a%2Fb%2Fc%2F3").symlink_to("/etc/passwd")
    (folder / "a%2Fb%2Fc%2F4").symlink_to(folder)
    (folder / "a%2Fb%2Fc%2F5").mkdir()
    os.mkfifo(folder / "a%2Fb%2Fc%2F6")
    (folder / "a%2Fb%2Fc%2F7").write_bytes(b"[" * 60_000)
    (folder / "a%2Fb%2Fc%2F8").write_bytes(DYNAMO.encode())
    (folder / "a%2Fb%2Fc%2F9").write_bytes(b"")
    (folder / os.fsdecode(b"a%2Fb%2F\xff\n%2Fa")).write_bytes(b"[]")
    (folder / "README.txt").write_bytes("für alle".encode("latin-1"))
    (folder / "a%2Fb%2Fc%2Fa").write_bytes(json.dumps(dynamo(namespace="\ud800")).encode())
    (folder / "a%2Fb%2Fc%2Fb").write_bytes(b'{"instance_id": ' + b"9" * 60_000 + b"}")
    (folder / ".hidden").write_bytes(b"\x00")
    return [entry for entry in os.listdir(folder) if entry != ".hidden"]


def test_hostile_files_are_left_each_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(instances_folder(str(tmp_path)))
    names = make_hostile(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        put(tmp_path, ours(7))
        reader = Reader(str(tmp_path), 10)
        found = []
        for second in range(8):
            found += reader.look(second, (folder / "README.txt").stat().st_mtime)
    assert [change.record.instance for change in found] == [7]
    assert len(caplog.records) == len(names) + 1
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert len(record.getMessage()) < 700
        assert record.getMessage().isprintable()


def test_more_files_than_anybody_needs_are_not_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST == 16_384
    monkeypatch.setattr("actors.discovery.files.MOST", 3)
    for instance in range(1, 6):
        placed(tmp_path, ours(instance))
    reader = Reader(str(tmp_path), 10)
    assert len(reader.look(0, WALL)) == 3
    reader.look(1, WALL)
    assert len(caplog.records) == 1
