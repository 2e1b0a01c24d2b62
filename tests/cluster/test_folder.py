"""Run folders: one owner at a time, private, found by others, gone with their node."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cluster.folder import (
    Claim,
    NodeInfo,
    folders,
    leave_word,
    live_nodes,
    node_folder,
    open_word,
    read_info,
    read_word,
    remove_folder,
    try_lock,
    write_info,
)
from actors.cluster.stopping import stop_node
from actors.cluster.sweep import kill_children
from actors.errors import NameTaken, SpecError
from actors.kernel.peers import start_time
from tests.waiting import LONG, require_root
from transport.bus.address import Address


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def me(name: str = "node") -> Address:
    return Address(name, 7, os.getpid(), start_time(os.getpid()))


@pytest.fixture
def claim(root: str) -> Iterator[Claim]:
    claim = Claim(root, "demo", "a")
    yield claim
    claim.close()
    remove_folder(claim.folder)


def test_folders_are_private(root: str, claim: Claim) -> None:
    assert claim.folder == node_folder(root, "demo", "a")
    for path in (claim.folder, os.path.dirname(claim.folder)):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_second_claim_is_refused_and_names_the_pid(root: str, claim: Claim) -> None:
    write_info(NodeInfo("demo", "a", claim.folder, me()))
    with pytest.raises(NameTaken, match=rf"pid {os.getpid()}\)"):
        Claim(root, "demo", "a")


def test_claim_of_a_starting_node_names_the_claimer(root: str, claim: Claim) -> None:
    with pytest.raises(NameTaken, match=rf"starting or stopping \(pid {os.getpid()}\)"):
        Claim(root, "demo", "a")


def test_other_names_are_free(root: str, claim: Claim) -> None:
    other = Claim(root, "demo", "b")
    other.close()
    remove_folder(other.folder)
    assert os.path.isdir(claim.folder)
    assert not os.path.exists(other.folder)


def test_lock_outlives_the_claimer_in_a_child_and_ends_with_it(root: str) -> None:
    claim = Claim(root, "demo", "a")
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(claim.fd,)
    )
    claim.close()
    assert try_lock(claim.folder) == -1
    child.communicate(b"\n", timeout=LONG)
    again = Claim(root, "demo", "a")
    again.close()
    remove_folder(claim.folder)


def test_folder_removed_by_its_owner_can_be_claimed_anew(root: str) -> None:
    claim = Claim(root, "demo", "a")
    script = (
        "import sys,time; from actors.cluster.folder import Claim, remove_folder;"
        "c=Claim(*sys.argv[1:]); print(flush=True); input(); remove_folder(c.folder)"
    )
    claim.close()
    child = subprocess.Popen(
        [sys.executable, "-c", script, root, "demo", "a"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.communicate(b"\n", timeout=LONG)
    again = Claim(root, "demo", "a")
    assert try_lock(again.folder) == -1
    again.close()
    remove_folder(again.folder)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 41, "ä", "a b"])
def test_names_that_cannot_be_a_path(root: str, name: str) -> None:
    with pytest.raises(SpecError, match=r"cluster: .*1 to 40 letters"):
        Claim(root, name, "a")
    with pytest.raises(SpecError, match=r"node: .*1 to 40 letters"):
        Claim(root, "demo", name)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="CALLHOME_RUN"):
        Claim(str(tmp_path / "file"), "demo", "a")


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y", "/sys/x"])
def test_a_root_where_no_folder_can_be(place: str) -> None:
    with pytest.raises(SpecError, match=rf"'{place}/demo/a' cannot be made: .*CALLHOME_RUN"):
        Claim(place, "demo", "a")


def test_a_link_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").symlink_to("/")
    with pytest.raises(SpecError, match="not a folder of this user"):
        Claim(str(tmp_path), "demo", "a")


def test_open_folder_is_closed_to_others(root: str) -> None:
    os.makedirs(os.path.join(root, "demo"), 0o777)
    os.chmod(os.path.join(root, "demo"), 0o777)
    claim = Claim(root, "demo", "a")
    assert stat.S_IMODE(os.stat(os.path.join(root, "demo")).st_mode) == 0o700
    claim.close()
    remove_folder(claim.folder)


def test_info_round_trip_and_mode(claim: Claim) -> None:
    info = NodeInfo("demo", "a", claim.folder, me(), (me("x"), me("y")), "127.0.0.1:7400")
    write_info(info)
    assert read_info(claim.folder) == info
    assert info.alive
    mode = os.stat(os.path.join(claim.folder, "node.json")).st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"cluster":"a","node":"b","address":1}'])
def test_broken_info_is_none(claim: Claim, text: str) -> None:
    Path(claim.folder, "node.json").write_text(text)
    assert read_info(claim.folder) is None


def test_live_nodes_lists_only_the_living(root: str, claim: Claim) -> None:
    write_info(NodeInfo("demo", "a", claim.folder, me()))
    dead = Claim(root, "other", "z")
    write_info(NodeInfo("other", "z", dead.folder, Address("node", 1, os.getpid(), 1)))
    assert [info.node for info in live_nodes(root)] == ["a"]
    assert folders(root) == [claim.folder, dead.folder]
    dead.close()
    remove_folder(dead.folder)


def test_missing_root_has_no_nodes(root: str) -> None:
    assert folders(root) == []
    assert live_nodes(root) == []


def test_a_run_folder_of_somebody_else_is_refused(root: str) -> None:
    require_root("a folder of another user takes root to make")
    os.makedirs(root, exist_ok=True)
    os.chown(root, 65534, 65534)
    with pytest.raises(SpecError, match="belongs to another user"):
        Claim(root, "demo", "a")


def test_a_node_of_another_pid_namespace_lives_while_its_lock_is_held(
    root: str, claim: Claim
) -> None:
    info = NodeInfo("demo", "a", claim.folder, Address("node", 7, os.getpid(), 1), space=4242)
    write_info(info)
    assert read_info(claim.folder) == info
    assert not info.near
    assert info.alive
    assert live_nodes(root) == [info]
    with pytest.raises(NameTaken):
        Claim(root, "demo", "a")
    claim.close()
    assert not info.alive
    with pytest.raises(SpecError, match="another PID namespace"):
        asyncio.run(stop_node(info, 1.0))
    Path(claim.folder, "children").write_text(f"4242 {me().pid} {me().started}\n")
    assert kill_children(claim.folder) == []  # its pids are somebody else's


def test_a_long_word_of_the_killed_is_a_part_of_the_list(claim: Claim) -> None:
    names = [f"actor {'n' * 100}{number}" for number in range(2000)]
    leave_word(claim.fd, names)
    fd = open_word(claim.folder)
    try:
        told = read_word(fd)
    finally:
        os.close(fd)
    assert told
    assert told == names[: len(told)]


def test_what_says_nothing_of_namespaces_is_of_ours(claim: Claim) -> None:
    write_info(NodeInfo("demo", "a", claim.folder, me()))
    info = read_info(claim.folder)
    assert info is not None
    assert info.near
    assert info.alive
