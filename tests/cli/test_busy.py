"""``busy`` against a node that is up, and what ``ps`` says of workers that are left alone."""

from __future__ import annotations

from pathlib import Path

from tests.cli.tool import Tool, up, write_spec


def said(tool: Tool, *arguments: str) -> str:
    found = tool.run("busy", *arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_limits_are_set_while_a_node_runs_and_ps_tells_who_is_left_alone(
    tool: Tool, tmp_path: Path
) -> None:
    spec = Path(write_spec(tmp_path, patient="patient", same="same"))
    text = spec.read_text().replace("[[engines]]", "[[engines]]\ncapacity = 1\nqueue = 0", 1)
    spec.write_text(text.replace("[settings]", "[settings]\noverload_lease = 60.0"))
    with up(tool, tmp_path / "log", str(spec)):
        shown = said(tool).splitlines()
        assert shown[0] == "node/a router: no limit"
        assert shown[1].split()[:4] == ["ROUTER", "ENDPOINT", "WORKER", "INSTANCE"]
        assert len(shown) == 4
        assert " free " in shown[2]
        assert said(tool, "--streams", "1") == (
            "node/a router: busy from 1 streams on (before: no limit)\n"
        )
        waits = tool.start("stream", "demo.patient.run")
        assert waits.stdout is not None
        assert waits.stdout.readline() == '"waiting"\n'
        refused = tool.run("stream", "demo.patient.run")
        assert refused.returncode == 1
        assert "its one worker is busy (1 at the limit (busy_streams=1))" in refused.stderr
        assert " busy " in said(tool)
        assert said(tool, "--streams", "none", "--fraction", "0.5", "--router", "router") == (
            "node/a router: busy from 50 % of its capacity on (before: busy from 1 streams on)\n"
        )
        wrong = tool.run("busy", "--router", "rooter")
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "has no router 'rooter'; did you mean 'router'? (it has: router)" in wrong.stderr
        said(tool, "--fraction", "none")
        refused = tool.run("stream", "demo.patient.run")
        assert "all 1 places and 0 queue places" in refused.stderr
        told = tool.run("ps").stdout.splitlines()[-1]
        assert "of demo.patient.run: left alone for a moment, for it had no room, at router" in told
        assert list(tool.actors()["router"]["away"].values()) == ["leased"]
        waits.kill()
        waits.communicate()
