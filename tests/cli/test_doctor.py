"""doctor: every line is ok, warn or FAIL, with what to do."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from actors.cli.doctor import FLOORS, PYTHON
from tests.cli.tool import ROOT, Tool


def test_the_floors_are_those_of_the_installation() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = dict(
        re.split(r"\s*>=\s*", line.strip(), maxsplit=1)
        for line in setup["options"]["install_requires"].strip().splitlines()
    )
    assert wanted == FLOORS
    assert setup["options"]["python_requires"] == f">={PYTHON}"


def test_a_healthy_machine(tool: Tool) -> None:
    found = tool.run("doctor")
    assert found.returncode == 0, found.stdout
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert {line[:6] for line in lines} <= {"ok    ", "warn  "}
    words = ("python", "pyzmq", "import actors", "shared memory", "pidfd", "run folder")
    for word in (*words, "open files", "sockets: "):
        assert any(word in line for line in lines), word


def test_what_a_dead_node_left_is_told_and_removed(tool: Tool) -> None:
    folder = Path(tool.run_folder, "old", "a")
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "router.1.d").touch()
    told = tool.run("doctor")
    assert told.returncode == 0
    assert f"warn  {folder}: left by a dead node; callhome doctor --fix" in told.stdout
    assert folder.exists()
    assert f"removed {folder}" in tool.run("doctor", "--fix").stdout
    assert not folder.parent.exists()


def test_a_run_folder_that_cannot_be_is_a_failure(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broken = Tool(str(tmp_path / "file" / "run"))
    found = broken.run("doctor")
    assert found.returncode == 1
    assert "cannot be written; set CALLHOME_RUN" in found.stdout


def test_a_long_run_folder_is_warned_of(tmp_path: Path) -> None:
    found = Tool(str(tmp_path / ("x" * 90))).run("doctor")
    assert "bytes shorter, or use short names" in found.stdout


def test_a_wrong_setting_is_a_failure_of_its_own(tool: Tool) -> None:
    wrong = Tool(tool.run_folder)
    wrong.environ["CALLHOME_WINDOW_ITEM"] = "3"
    found = wrong.run("doctor")
    assert found.returncode == 1
    assert "CALLHOME_WINDOW_ITEM: unknown key" in found.stdout
