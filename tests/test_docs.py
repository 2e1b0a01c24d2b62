"""The documents keep pace with the code: settings, public names, commands and links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import actors
from actors import dynamo
from actors.config import Settings
from tests.waiting import LONG

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_setting_is_in_the_table() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in Settings().to_dict() if f"`{name}`" not in text] == []


def test_every_variable_of_dynamo_is_in_the_table() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    source = (ROOT / "actors" / "dynamo.py").read_text()
    read = set(re.findall(r"(?<!_)(?:DYN|ETCD)_[A-Z_]+[A-Z]", source))
    assert read >= set(dynamo.SETTINGS)
    assert [name for name in sorted(read) if f"`{name}" not in text] == []


def test_every_public_name_is_in_the_index() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in actors.__all__ if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_readme_gives_the_commands_that_are_tried() -> None:
    text = (ROOT / "README.md").read_text()
    start = "python3 -m venv .venv && .venv/bin/pip install -e "
    assert f"{start}. && .venv/bin/python examples/launch.py" in text
    assert f"{start}'.[test]' && .venv/bin/python -m pytest -n 2 --dist loadfile" in text


def test_the_readme_s_sample_runs_as_it_stands(tmp_path: Path) -> None:
    (sample,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "sample.py"
    script.write_text(sample)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["HI", "ONE", "TWO", "THREE"]
