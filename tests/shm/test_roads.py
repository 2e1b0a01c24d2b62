"""The roads to a segment: which is taken, what is refused, what survives rubbish."""

from __future__ import annotations

import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.shm.peer import ROOT
from tests.waiting import LONG, require_root, wait_until_sync
from transport.errors import AttachFailed, MemoryExhausted
from transport.shm import door as door_module
from transport.shm.arena import Arena
from transport.shm.door import Door, fetch
from transport.shm.files import Folder, sweep_files
from transport.shm.offers import Offers
from transport.shm.roads import Roads
from transport.shm.segment import Segment, create_segment, proc_folder, start_time
from transport.wire.handle import Announcement

MIB = 1 << 20
FAR = 4242  # another PID namespace


class Owner:
    """Offers with one segment, and what is announced of it."""

    def __init__(self, folder: Path, road: str = "auto", space: int = 0) -> None:
        self.path = str(folder / "o.5.m")
        self.offers = Offers(name="o", door=self.path, label="c-n", road=road, space=space)
        self.segment: Segment = self.offers.create(MIB)
        self.segment.map[self.segment.start] = 7
        self.told: Announcement = self.offers.announcement(self.segment, 5, 1)

    def roads(self, road: str = "auto") -> Roads:
        return Roads(road=road, door=lambda told: self.path)

    def taken(self, road: str = "auto") -> str:
        """Attach by it, look, and say which it was."""
        found = self.roads(road).attach(self.told)
        try:
            assert found.map[found.start] == 7
            return found.road
        finally:
            found.close()

    def close(self) -> None:
        self.segment.close()
        self.offers.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with closing(Owner(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("road", ["proc", "socket", "file"])
def test_a_setting_forces_a_road(tmp_path: Path, road: str) -> None:
    with closing(Owner(tmp_path, road)) as made:
        assert made.taken(road) == road
        assert os.path.exists(made.path) == (road == "socket")
        assert bool(made.told.path) == (road == "file")
        with pytest.raises(AttachFailed, match="frame_road is 'inline' here"):
            made.taken("inline")
    assert os.listdir(tmp_path) == []


def test_the_first_road_that_works_is_taken_and_kept(owner: Owner, tmp_path: Path) -> None:
    assert owner.taken() == "proc"
    (tmp_path / "far").mkdir()
    with closing(Owner(tmp_path / "far", space=FAR)) as far:
        roads = far.roads()
        for _ in range(2):
            roads.attach(far.told).close()
            assert roads.taken(5) == "socket"
            assert roads.owners == [5]
        roads.forget(5)
        assert roads.taken(5) == ""


def test_a_road_that_was_kept_and_closes_is_not_the_last(owner: Owner) -> None:
    roads = owner.roads()
    roads.attach(owner.told).close()
    assert roads.taken(5) == "proc"
    # As if the owner had made itself undumpable since: its descriptor is out of reach there.
    found = roads.attach(owner.told._replace(fd=1 << 20))
    assert found.road == "socket"
    found.close()


def test_where_no_road_leads_the_error_names_each_and_what_would_help(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transport.shm.roads._LEARNED", LONG)
    lost = owner.told._replace(fd=1 << 20, token=b"?" * 16)
    roads = owner.roads()
    with pytest.raises(AttachFailed, match=r"is gone.*; then .*o\.5\.m has no such segment"):
        roads.attach(lost)
    assert roads.wanted == "", "it was given back, a file would be no better"
    owner.offers.close()
    with pytest.raises(AttachFailed, match="no such segment"):  # believed for a while
        roads.attach(lost)
    closed = owner.roads()
    with pytest.raises(AttachFailed):
        closed.attach(lost)
    assert closed.wanted == "file"
    with pytest.raises(AttachFailed):
        roads.attach(lost)
    assert roads.wanted == ""


def test_limits_of_the_reader_are_no_reason_for_files(owner: Owner) -> None:
    roads = owner.roads()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open("/dev/null", os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        with pytest.raises(AttachFailed, match="raise the limit on open files"):
            roads.attach(owner.told)
        assert roads.wanted == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(spare)


def test_later_segments_are_files_once_somebody_wants_them(owner: Owner) -> None:
    assert owner.offers.want_files()
    later = owner.offers.create(MIB)
    try:
        told = owner.offers.announcement(later, 5, 2)
        assert os.stat(os.path.dirname(told.path)).st_mode & 0o777 == 0o700
        assert os.stat(told.path).st_mode & 0o777 == 0o600
        found = owner.roads().attach(told)
        assert found.road == "file"
        found.close()
        assert os.path.dirname(told.path) not in sweep_files()  # it lives
        assert os.path.exists(told.path)
    finally:
        later.close()
    owner.offers.close()
    assert not os.path.exists(os.path.dirname(told.path))
    assert not Offers(road="proc").want_files()


# --------------------------------------------------------------------------------------- the door


def ask(path: str, data: bytes) -> bytes:
    """What the door says to a packet: b"" when it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(LONG)
        caller.connect(path)
        caller.send(data)
        try:
            return caller.recv(100)
        except ConnectionResetError:
            return b""


def test_the_door_survives_rubbish(owner: Owner) -> None:
    for rubbish in (b"", b"x", b"x" * 17, b"x" * 60_000):
        assert ask(owner.path, rubbish) == b""
    assert ask(owner.path, b"x" * 16) == b"\0"
    wrong = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with wrong, pytest.raises(OSError, match="wrong type for socket"):
        wrong.connect(owner.path)
    assert owner.taken("socket") == "socket"


_STRANGER = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
    caller.connect("o.5.m")
    caller.send(bytes.fromhex(sys.argv[1]))
    print(caller.recvmsg(1, 100))
"""


def test_b20_another_user_is_shown_out(owner: Owner, tmp_path: Path) -> None:
    require_root("a process of another user")
    os.chmod(tmp_path, 0o755)  # as if the modes of folder and socket had been opened up
    os.chmod(owner.path, 0o777)
    command = [sys.executable, "-c", _STRANGER, owner.told.token.hex()]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.stdout in ("(b'', [], 0, None)\n", "")
    assert said.stdout or "ConnectionResetError" in said.stderr
    assert owner.taken("socket") == "socket"


def test_callers_that_say_nothing_keep_nobody_waiting(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr("transport.shm.door.time", clock)
    mute = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
    before = len(os.listdir("/proc/self/fd"))
    try:
        for each in mute:
            each.connect(owner.path)
        assert owner.taken("socket") == "socket"
        assert len(os.listdir("/proc/self/fd")) <= before + 34  # bounded
        ahead = 2 * LONG
        assert owner.taken("socket") == "socket"  # which makes the door look at its clock
        wait_until_sync(
            lambda: len(os.listdir("/proc/self/fd")) <= before, what="all were shown out"
        )
    finally:
        for each in mute:
            each.close()


def test_a_door_that_does_not_answer_costs_a_quarter_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    limits: list[float] = []

    class Timed(socket.socket):
        def settimeout(self, value: float | None) -> None:
            limits.append(math.inf if value is None else value)
            super().settimeout(value)

    monkeypatch.setattr(socket, "socket", Timed)
    path = str(tmp_path / "mute")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(TimeoutError):
            fetch(path, b"t" * 16)
    assert 0 < limits[-1] <= max(limits) <= door_module._PATIENCE < 0.5


def test_a_busy_owner_keeps_no_reader_waiting(owner: Owner) -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        tries = [_attempt(owner) for _ in range(5)]
    finally:
        stop.set()
        busy.join()
    assert "socket" in tries


def _attempt(owner: Owner) -> Any:
    try:
        return owner.taken("socket")
    except AttachFailed as error:  # another tenant has the core
        return str(error)


def test_what_was_withdrawn_is_not_handed_out(tmp_path: Path) -> None:
    segment = create_segment(MIB)
    with closing(Door(str(tmp_path / "d"))) as door:
        door.offer(segment.token, segment.fd)
        os.close(fetch(str(tmp_path / "d"), segment.token))
        door.withdraw(segment.token)
        with pytest.raises(FileNotFoundError):
            fetch(str(tmp_path / "d"), segment.token)
    door.close()
    segment.close()
    assert os.listdir(tmp_path) == []


def test_a_door_that_cannot_be_opened_leaves_the_other_roads(tmp_path: Path) -> None:
    (tmp_path / "o.5.m").touch()
    with closing(Owner(tmp_path)) as made:
        assert "Address already in use" in made.offers.trouble
        assert made.taken() == "proc"


# ------------------------------------------------------------------------------------------ files


def test_a_file_is_looked_at_before_it_is_mapped(tmp_path: Path) -> None:
    with closing(Owner(tmp_path, "file")) as made:
        path = made.told.path
        real = f"{path}0"
        os.rename(path, real)
        os.symlink(real, path)
        with pytest.raises(AttachFailed, match="names another file"):
            made.taken()
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(AttachFailed, match="names another file"):
            made.taken()
        os.unlink(path)
        os.rename(real, path)
        os.chmod(path, 0o666)
        with pytest.raises(AttachFailed, match=rf"mode 666.*uid {os.geteuid()}"):
            made.taken()
        os.chmod(path, 0o600)
        os.truncate(path, 4096)
        with pytest.raises(AttachFailed, match="4096 bytes"):
            made.taken()


def test_b16_a_sweep_takes_what_nobody_holds_and_nothing_else() -> None:
    living, dead = Folder("c-n"), Folder("c-n")
    (Path(living.path) / "1").touch()
    (Path(dead.path) / "1").touch()
    # Its process has ended, by whatever: the kernel has dropped its lock, and only that counts.
    os.close(dead._fd)
    os.utime(living.path, (0, 0))
    try:
        swept = sweep_files()  # those of other programs that have died, too
        assert dead.path in swept
        assert living.path not in swept
        assert not os.path.exists(dead.path)
        assert os.path.exists(f"{living.path}/1")
        assert living.path != dead.path
    finally:
        dead._fd = -1
        living.close()
    assert not os.path.exists(living.path)


def test_what_was_half_made_when_its_maker_died_is_swept() -> None:
    path = f"/dev/shm/callhome-{os.geteuid()}-x-half"
    os.mkdir(path, 0o700)
    sweep_files()
    assert not os.path.exists(path)


def test_no_files_where_none_are_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.shm.files.SHARED", str(tmp_path / "none"))
    with pytest.raises(MemoryExhausted, match="No such file"):
        Arena(5, offers=Offers(road="file")).allocate(10)
    wanted = Offers()
    wanted.want_files()
    segment = wanted.create(MIB)  # as before, for those who can reach it
    assert segment.path == ""
    segment.close()
    assert sweep_files() == []


def test_a_process_is_found_in_the_proc_that_is_mounted() -> None:
    assert proc_folder(os.getpid()) == "/proc/self"
    assert proc_folder(1) == "/proc/1"
    assert start_time(2**70) == 0


_FILL = """
from transport.errors import MemoryExhausted
from transport.shm.arena import Arena
from transport.shm.offers import Offers
arena, made = Arena(5, offers=Offers(road="file")), 0
try:
    while True:
        slot = arena.allocate(100_000)
        arena.segment(slot.segment).map[slot.offset : slot.offset + 100_000] = b"x" * 100_000
        made += 1
except MemoryExhausted as error:
    print(made, error)
arena.close()
"""


def test_a_full_dev_shm_is_an_error_and_no_signal() -> None:
    require_root("a /dev/shm of its own")
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", _FILL]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert said.returncode == 0, said.stderr
    made, _, words = said.stdout.partition(" ")
    assert 0 < int(made) < 11
    assert "No space left" in words or "no memory" in words
