"""Shared memory between processes that live, die and are killed."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.leaks import shared
from tests.shm.peer import ROOT, Peer, announcement, lend_to, plain
from transport.errors import AttachFailed
from transport.shm.memory import Memory
from transport.wire.handle import handle_from_wire

MIB = 1 << 20
ME, PEER = 5, 6


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(ME, wake=lambda: None, step=MIB, limit=8 * MIB)
    yield made
    made.close()


def frame_for(memory: Memory, value: int) -> Any:
    frame = memory.frames.new((100, 100), "<i4")
    frame.array[...] = value
    return frame.hand_on()


def test_a_reader_holds_a_slot_until_its_last_slice_is_gone(memory: Memory) -> None:
    with Peer(PEER) as reader:
        handle = frame_for(memory, 3)
        lend_to(reader, memory, handle, PEER)
        assert memory.attached(PEER, [handle])
        seen = reader.ask("view", handle)
        assert not seen["writeable"]
        assert reader.ask("look", seen["id"]) == {
            "sum": 30_000,
            "shape": [100, 100],
            "dtype": "<i4",
        }
        reader.ask("keep_slice", seen["id"])
        assert reader.ask("look", seen["id"])["sum"] == 29_700
        returned = reader.ask("forget", seen["id"])
        assert returned["wakes"] == 1
        ((owner, releases),) = returned["releases"]
        assert owner == ME
        assert releases == [[handle.segment, handle.offset, handle.generation]]
        memory.release(PEER, [tuple(release) for release in releases])
        assert memory.statistics().slots == 0


def test_views_outlive_an_owner_that_is_killed(memory: Memory) -> None:
    with Peer(PEER) as owner:
        made = owner.ask("export", ME, [1000], "<i8", 9)
        memory.attach(announcement(made["announcements"][0]))
        handle = handle_from_wire(made["handle"])
        seen = memory.view_array(handle)
        owner.kill()
        assert int(seen.sum()) == 9000
        late = memory.view_array(handle)
        memory.detach(PEER)
        assert int(late[-1]) == 9
        with pytest.raises(AttachFailed, match="gone"):
            memory.attach(announcement(made["announcements"][0]))
        del seen, late
        gc.collect()
        assert "callhome-frames" not in _maps()


def test_what_a_killed_owner_had_delivered_can_still_be_opened(memory: Memory) -> None:
    with Peer(PEER) as owner:
        made = [owner.ask("export", ME, [1000], "<i8", value) for value in range(5)]
        memory.attach(announcement(made[0]["announcements"][0]))
        handles = [handle_from_wire(one["handle"]) for one in made]
        memory.expect(handles)
        owner.kill()
        memory.detach(PEER)
        memory.forget(PEER)
        assert [int(memory.view_array(handle)[-1]) for handle in handles] == list(range(5))
        assert "callhome-frames" not in _maps()
        assert len(memory.drain_releases()[PEER]) == 5


def test_what_a_killed_reader_held_is_taken_back(memory: Memory) -> None:
    with Peer(PEER) as reader:
        for value in range(5):
            handle = frame_for(memory, value)
            lend_to(reader, memory, handle, PEER)
            reader.ask("view", handle)
        reader.kill()
        assert memory.statistics().lent == 5
        assert memory.take_back(PEER) == 5
        memory.forget(PEER)
        assert memory.statistics().borrowers == 0
        assert memory.statistics().slots == 0


def test_a_restarted_owner_is_not_mistaken_for_the_old_one(memory: Memory) -> None:
    with Peer(PEER) as old, Peer(PEER) as new:
        told = announcement(old.ask("export", ME, [10], "u1", 1)["announcements"][0])
        other = announcement(new.ask("export", ME, [10], "u1", 2)["announcements"][0])
        with pytest.raises(AttachFailed):
            memory.attach(told._replace(pid=other.pid, fd=other.fd))
        memory.attach(told)


def test_frames_go_both_ways_at_once(memory: Memory) -> None:
    with Peer(PEER) as peer:
        for value in range(20):
            handle = frame_for(memory, value)
            lend_to(peer, memory, handle, PEER)
            seen = peer.ask("view", handle)
            made = peer.ask("export", ME, [64], "u1", value)
            for told in made["announcements"]:
                memory.attach(announcement(told))
            back = memory.view_array(handle_from_wire(made["handle"]))
            assert int(back[0]) == value == peer.ask("look", seen["id"])["sum"] // 10_000
            del back
            for owner, releases in memory.drain_releases().items():
                assert owner == PEER
                peer.ask("release", ME, releases)
            for _, mine in peer.ask("forget", seen["id"])["releases"]:
                memory.release(PEER, [tuple(release) for release in mine])
        assert memory.statistics().slots == 0
        assert memory.statistics().segments == 1
        assert peer.ask("statistics") == {"slots": 0, "lent": 0, "segments": 1}


def test_no_name_is_left_where_files_would_be(memory: Memory) -> None:
    before = shared()
    with Peer(PEER) as reader:
        lend_to(reader, memory, frame_for(memory, 1), PEER)
        assert shared() == before


def test_a_bad_announcement_is_refused_over_there(memory: Memory) -> None:
    with Peer(PEER) as reader:
        handle = memory.frames.copy(np.ones(3)).hand_on()
        assert handle is not None
        (told,) = memory.needs(PEER, [handle])
        answer = reader.ask("attach", plain(told._replace(token=b"?" * 16)))
        assert answer["error"] == "frame.attach"
        memory.mark(PEER, told.segment, False)
        assert not memory.usable(PEER)


def _maps() -> str:
    with open("/proc/self/maps") as file:
        return "\n".join(line for line in file if "memfd" in line)


def _published(owner: Peer) -> tuple[Any, list[Any]]:
    """A frame of 4 MiB and what has to be announced of it, lent so that it lives on."""
    made = owner.ask("export", ME, [4 * MIB], "u1", 3)
    return made["handle"], made["announcements"]


def test_b01_a_mere_reader_that_ends_takes_nothing_with_it() -> None:
    before = shared()
    with Peer(PEER, step=8 * MIB) as owner:
        handle, told = _published(owner)
        for reader in (7, 8):  # interpreters of their own, one after the other
            with Peer(reader) as seen:
                seen.ask("attach", told[0])
                found = seen.ask("view", handle)
                assert seen.ask("look", found["id"])["sum"] == 3 * 4 * MIB
                assert seen.finish() == (0, b"")
        segment, offset, generation = handle[1], handle[2], handle[4]
        owner.ask("release", ME, [[segment, offset, generation]])
        assert owner.ask("statistics")["slots"] == 0
        assert shared() <= before
        assert owner.finish() == (0, b"")


_CHILD = """
import sys
from tests.shm.peer import Session
from transport.wire.handle import handle_from_wire
def read(told, handles):
    session = Session(7, 1 << 20, 1 << 24)
    session.attach(told)
    for handle in handles:
        assert session.memory.read_bytes(handle_from_wire(handle)) == bytes([3] * 4)
    assert sum(map(len, session.memory.drain_releases().values())) == len(handles)
    session.memory.close()
if __name__ == "__main__":
    import json, multiprocessing
    told, handles = json.loads(sys.stdin.read())
    if sys.argv[1] == "alone":
        read(told, handles)
    else:
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=read, args=(told, handles)) for _ in range(4)]
        [child.start() for child in children]
        [child.join() for child in children]
        assert not any(child.exitcode for child in children)
"""


@pytest.mark.parametrize("kind", ["alone", "spawned"])
def test_b10_nobody_registers_or_unregisters_anything(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "read.py"
    script.write_text(_CHILD)
    with Peer(PEER, step=8 * MIB) as owner:
        made = [owner.ask("export", ME, [4], "u1", 3) for _ in range(100)]
        work = json.dumps([made[0]["announcements"][0], [each["handle"] for each in made]])
        done = subprocess.run(
            [sys.executable, str(script), kind],
            input=work,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert owner.finish() == (0, b"")
