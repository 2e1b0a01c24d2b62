"""PID namespaces: which one a process says it is in, and words for folders of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.kernel.reach import both_ways, owner_address
from actors.kernel.space import own_space, space_beside, whose
from tests.waiting import require_root
from transport.bus.address import Address
from transport.wire.handle import Announcement


def test_beside_a_node_of_our_own_namespace_it_is_zero(tmp_path: Path) -> None:
    assert own_space() > 0
    assert space_beside(str(tmp_path)) == 0  # no node has said anything yet
    for said, space in (
        ({"space": own_space()}, 0),
        ({}, 0),
        ({"space": 1}, own_space()),
        ([], 0),
    ):
        (tmp_path / "node.json").write_text(json.dumps(said))
        assert space_beside(str(tmp_path)) == space


def test_another_namespace_has_another_number() -> None:
    require_root("a PID namespace of its own")
    code = "from actors.kernel.space import own_space; print(own_space())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(said.stdout) not in (0, own_space())


def test_words_for_a_folder_name_what_can_be_seen(tmp_path: Path) -> None:
    assert f"{str(tmp_path)!r} belongs to uid {os.geteuid()}" in whose(str(tmp_path))
    assert "No such file" in whose(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["a/b", "", ".x", "x" * 200])
def test_an_owner_with_an_impossible_name_has_no_door(tmp_path: Path, name: str) -> None:
    told = Announcement(5, 1, os.getpid(), 0, 1 << 20, 0, 0, 1 << 20, b"t" * 16, name, 0, "")
    assert owner_address(told) == Address(name, 5, os.getpid(), 0, 0)
    _, roads = both_ways(str(tmp_path), Address("me", 1, os.getpid(), 0), "auto")
    assert roads._candidates(told) == ["proc"]
