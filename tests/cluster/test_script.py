"""Launcher scripts and TOML files as the command line names them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cluster.script import load_spec
from actors.errors import SpecError
from tests.waiting import LONG

HEAD = "from actors.cluster.spec import EngineSpec, NodeSpec\n"


@pytest.fixture(autouse=True)
def path_kept() -> Iterator[None]:
    """``load_spec`` makes folders importable; other tests shall not see them."""
    before = list(sys.path)
    yield
    sys.path[:] = before


def script(folder: Path, text: str) -> str:
    path = folder / "launch.py"
    path.write_text(HEAD + text)
    return str(path)


def test_a_script_holds_its_node(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "class Mine: ...\n"
        "NODE = NodeSpec('n', engines=[EngineSpec('a.b.c', Mine)])\n"
        "OTHER = NodeSpec('o')\n"
        "if __name__ == '__main__': raise SystemExit('it ran')\n",
    )
    node = load_spec(path)
    assert node.name == "n"
    assert node.engines[0].target == f"{path}:Mine"
    assert load_spec(path + ":OTHER").name == "o"
    assert str(tmp_path) in sys.path


def test_a_script_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_launch.py").write_text("class Mine: ...\n")
    path = script(
        tmp_path,
        "from neighbour_of_launch import Mine\n"
        "NODE = NodeSpec('n', engines=[EngineSpec('a.b.c', Mine)])\n",
    )
    assert load_spec(path).engines[0].target == "neighbour_of_launch:Mine"


def test_a_toml_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "t"\n')
    assert load_spec(str(path)).name == "t"


def test_a_class_of_a_script_that_runs_is_kept_by_its_path(tmp_path: Path) -> None:
    text = "class Mine: ...\nprint(EngineSpec('a.b.c', Mine).target)\n"
    path = Path(script(tmp_path, text))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inside.py").write_text(HEAD + text)
    for arguments, target in (
        ([str(path)], f"{path}:Mine"),
        (["-m", "package.inside"], "package.inside:Mine"),
    ):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert done.stdout.strip() == target, done.stderr


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("NODE = 5\n", "", ["NODE is int, not NodeSpec"]),
        ("NODES = NodeSpec()\n", "", ["no NODE", "did you mean 'NODES'", "defines NODES"]),
        ("NODE = NodeSpec()\n", ":NOD", ["no NOD;", "did you mean 'NODE'"]),
        ("x = 1\n", "", ["no NodeSpec at all"]),
        ("x = 1\ny = nowhere\n", "", ["launch.py:3: NameError", "nowhere"]),
        ("import no_such_thing\n", "", ["launch.py:2: ModuleNotFoundError", "no_such_thing"]),
        ("x = (\n", "", ["launch.py:2", "never closed"]),
        ("raise SystemExit(3)\n", "", ["launch.py:2", "exit(3)", "__main__"]),
        ("\nNODE = NodeSpec(\n  engines=5)\n", "", ["launch.py:3: NodeSpec.engines", "a list"]),
    ],
)
def test_a_failing_script_is_named_with_its_line(
    tmp_path: Path, text: str, name: str, words: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(script(tmp_path, text) + name)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("gone.py", "no such file: 'gone.py'"),
        ("gone.py:NODE", "no such file: 'gone.py'"),
        ("cluster.yaml", r"'cluster.yaml' is no spec; expected SCRIPT\.py"),
        ("cluster.toml:NODE", "is no spec"),
        ("", "is no spec"),
    ],
)
def test_what_is_no_spec_is_refused(reference: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_spec(reference)
