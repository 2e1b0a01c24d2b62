"""What stands in ``deploy/`` keeps pace with the code: commands, settings, limits, and its node."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from actors import Cluster, NodeSpec, Settings
from actors.cli.parser import parser
from actors.cluster.plan import GRACE, patience
from tests.waiting import LONG

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
YAML = [path for path in FILES if path.suffix == ".yaml"]
UNIT = DEPLOY / "callhome@.service"
WORDS = "up|ps|stream|health|drain|restart|stop"


def commands(path: Path) -> Iterator[list[str]]:
    """The arguments of every ``callhome`` that a file runs, or says how to run."""
    text = path.read_text()
    for found in re.findall(r'\["callhome", [^]]*\]', text):  # probes and hooks
        yield json.loads(found)[1:]
    for found in re.findall(r'(?:command: |CMD )(\["up", [^]]*\])', text):  # behind an entry point
        yield json.loads(found)
    for found in re.findall(r"\n +args:\n((?: +- \S+\n)+)", text):
        yield [line.strip().removeprefix("- ") for line in found.splitlines()]
    for line in text.splitlines():  # in comments, and what systemd runs
        if match := re.search(
            rf"(?:^#|^Exec).*callhome ((?:{WORDS})(?: [^#;&]*)?$|health [^;&]*)", line
        ):
            yield shlex.split(match[1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_is_one(path: Path) -> None:
    for words in commands(path):
        try:
            parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{path.name}: callhome {shlex.join(words)} is refused")


def test_commands_are_found_where_they_stand() -> None:
    first = {path.name: {words[0] for words in commands(path)} for path in FILES}
    assert first["callhome@.service"] == {"up", "health", "ps"}
    assert first["Containerfile"] == {"up", "health"}
    assert first["compose.yaml"] == {"up", "ps", "stream", "drain"}
    assert first["node.yaml"] == {"up", "health", "drain"}
    assert first["node.toml"] == {"up"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    given = re.findall(r"\b(CALLHOME_[A-Z_]+)=", path.read_text())
    known = {f"CALLHOME_{name.upper()}" for name in Settings().to_dict()}
    assert set(given) <= known


def test_who_waits_for_a_node_waits_long_enough() -> None:
    import tomllib

    table = tomllib.loads((DEPLOY / "node.toml").read_text())["settings"]
    settings = Settings.load(table, environ={})
    stop = patience(settings)
    drain = GRACE + settings.drain_grace + settings.drain_limit
    assert float(given(UNIT, r"TimeoutStopSec=(\d+)")) > stop
    assert float(given(DEPLOY / "compose.yaml", r"stop_grace_period: (\d+)s")) > stop
    node = DEPLOY / "kubernetes" / "node.yaml"
    assert float(given(node, r"terminationGracePeriodSeconds: (\d+)")) > drain + stop
    assert float(given(node, r'"drain", "--limit", "(\d+)"')) == settings.drain_limit


def given(path: Path, pattern: str) -> str:
    (found,) = re.findall(pattern, path.read_text())
    return str(found)


async def test_the_node_serves(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "node.toml", tmp_path)
    shutil.copy(ROOT / "examples" / "engines.py", tmp_path)
    spec = NodeSpec.from_toml(tmp_path / "node.toml")
    async with Cluster(spec) as cluster, cluster.client() as client:
        assert await client.call("demo.length.count", {"text": "four"}) == 4
        for engine in spec.engines:
            if engine.canary is not None:  # a canary that fails would take a worker away
                async with client.stream(engine.endpoint, engine.canary) as items:
                    assert [item async for item in items]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/callhome/bin/callhome", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=LONG,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_yaml_is_read() -> None:
    for path in YAML:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each]
        assert documents
        assert all(isinstance(each, dict) for each in documents)
