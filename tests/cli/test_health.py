"""``health`` as probes run it: against a node that is up, starting, hanging, drained and gone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tool import LIMIT, Tool, Up, up
from tests.e2e.watching import stop
from tests.waiting import wait_until_sync

ENGINES = Path(__file__).with_name("health_engines.py")
SPEC = """
name = "a"
[settings]
canary_wait = 0.3
canary_timeout = 60.0
start_timeout = 60.0
[[engines]]
endpoint = "demo.well.run"
engine = "{engines}:well"
replicas = 2
[[engines]]
endpoint = "demo.ill.run"
engine = "{engines}:checks"
canary = {{ fault = "{fault}" }}
"""


@pytest.fixture(scope="module")
def node(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Path]]:
    """A node that is up, and the file that makes one of its engines fail."""
    folder = tmp_path_factory.mktemp("health")
    fault, spec = folder / "fault", folder / "node.toml"
    spec.write_text(SPEC.format(engines=ENGINES, fault=fault))
    with up(tool, folder / "log", str(spec)) as running:
        yield running, fault


def health(tool: Tool, *options: str, code: int = 0) -> str:
    """What ``health`` prints, and that it ends with this code."""
    found = tool.run("health", *options)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout if code < 2 else found.stderr


def test_without_a_node_it_says_no(tool: Tool) -> None:
    found = tool.run("health", "--live")
    assert found.returncode == 1
    assert "no node is running" in found.stderr


def test_wrong_usage_is_2(tool: Tool) -> None:
    assert "not allowed with" in health(tool, "--live", "--ready", code=2)


def test_c36_a_node_is_ready_not_ready_and_ready(node: tuple[Up, Path], tool: Tool) -> None:
    _, fault = node
    # A loop that was late, as on a busy machine, would be a note.
    wait_until_sync(lambda: tool.run("health").stdout == "node/a: live, ready\n", LIMIT, "ready")
    assert health(tool, "--live") == "node/a: live\n"
    fault.touch()
    wait_until_sync(lambda: tool.run("health", "--ready").returncode == 1, LIMIT, "unready")
    (told,) = map(json.loads, health(tool, "--json", code=1).splitlines())
    assert (told["node"], told["live"], told["ready"]) == ("a", True, False)
    (reason,) = told["reasons"]
    assert "demo.ill.run" in reason
    assert "its canary raised ValueError: out of order" in reason
    rows = {each["name"]: each for each in told["actors"]}
    assert rows["demo.ill.run"]["state"] == "unready"
    assert 0 <= rows["demo.well.run-0"]["lag"] < LIMIT
    assert 0 <= told["lag"] < LIMIT
    well = f"{rows['demo.well.run-0']['instance']:x}"
    assert health(tool, "--instance", well) == f"{well} of node/a: ready\n"
    said = health(tool, "--instance", "demo.ill.run", code=1)
    assert said.startswith("demo.ill.run of node/a: not ready\n")
    fault.unlink()
    wait_until_sync(lambda: tool.run("health", "--ready").returncode == 0, LIMIT, "ready")


def test_a_node_that_stands_still_is_told_in_time(node: tuple[Up, Path], tool: Tool) -> None:
    pid = json.loads(tool.run("ps", "--json").stdout)["pid"]
    stop(pid)
    try:
        # A process that is stopped is seen to be: no answer of it is waited for.
        said = health(tool, "--timeout", "600", code=1)
        assert said.startswith("node/a: not live, not ready\n")
        assert f"(pid {pid}): its process is stopped; kill -CONT {pid}" in said
        wait_until_sync(lambda: tool.run("health", "--live").returncode == 1, LIMIT, "not live")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until_sync(lambda: tool.run("health").returncode == 0, LIMIT, "live again")


def test_a_drained_engine_and_a_drained_node(node: tuple[Up, Path], tool: Tool) -> None:
    assert tool.run("drain", "demo.well.run-0").returncode == 0
    said = health(tool)
    assert said.startswith("node/a: live, ready\n")
    assert "\n  note: engine demo.well.run-0" in said
    assert "not ready" in health(tool, "--instance", "demo.well.run-0", code=1)
    assert tool.run("drain").returncode == 0
    assert "takes nothing new" in health(tool, "--ready", code=1)
    assert health(tool, "--live") == "node/a: live\n"
