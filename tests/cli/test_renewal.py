"""drain and restart from the command line: exit codes, steps, names."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.tool import Tool, up

SPEC = """
name = "a"
[[routers]]
[[engines]]
endpoint = "t.echo.go"
engine = "tests.e2e.bus_engines:echo"
[[engines]]
endpoint = "t.counts.go"
engine = "tests.e2e.process_engines:Counts"
[settings]
start_timeout = 60.0
"""


def test_an_engine_is_drained_and_started_anew(tool: Tool, tmp_path: Path) -> None:
    spec = tmp_path / "renewal.toml"
    spec.write_text(SPEC)
    with up(tool, tmp_path / "log", str(spec)):
        endless = tool.start("stream", "t.counts.go", '{"pause": 0.05}')
        assert endless.stdout is not None
        endless.stdout.readline()
        cut = tool.run("drain", "t.counts.go", "--limit", "0.2")
        assert cut.returncode == 1
        assert "t.counts.go: it is withdrawn" in cut.stdout
        assert "1 stream was ended with an error at the limit" in cut.stderr
        _, told = endless.communicate(timeout=30)
        assert endless.returncode == 1
        assert "since it is drained, and the time for streams to end is over" in told
        again = tool.run("restart", "t.counts.go", "--json")
        steps = [json.loads(line) for line in again.stdout.splitlines()]
        assert (again.returncode, again.stderr) == (0, "")
        assert [step["step"] for step in steps] == ["stops", "serves", "done"]
        assert {step["node"] for step in steps} == {"renewal/a"}
        assert steps[-1]["finished"] == ["t.counts.go"]
        both = tool.run("restart", "t.echo.go", "--rolling", "t.counts.go", "--json")
        assert json.loads(both.stdout.splitlines()[-1])["finished"] == ["t.echo.go", "t.counts.go"]
        unset = tool.run("drain", "")
        assert (unset.returncode, unset.stdout) == (2, "")
        assert "leave it out for the node itself" in unset.stderr
        assert tool.actors()["t.echo.go"]["state"] == "up"
        whole = tool.run("drain", "a")
        assert (whole.returncode, whole.stderr) == (0, "")
        assert "takes nothing new; 'callhome restart' has it serve again" in whole.stdout
