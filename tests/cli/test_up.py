"""up and stop: how a node comes, stays and goes; what is left after it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tool import LIMIT, ROOT, Tool, Up, up, write_spec
from tests.ports import free_address
from tests.waiting import wait_until_sync

PERMITTED = sorted(os.sched_getaffinity(0))


def assert_nothing_left(tool: Tool) -> None:
    wait_until_sync(lambda: os.listdir(tool.run_folder) == [], LIMIT, "the run folder is empty")


def node_pid(tool: Tool) -> int:
    found = tool.run("ps", "--json")
    return int(json.loads(found.stdout)["pid"])


def test_the_example_comes_up_on_its_cores_and_is_stopped(tool: Tool, tmp_path: Path) -> None:
    cores = PERMITTED[:2]
    text = ",".join(map(str, cores))
    spec = str(ROOT / "examples" / "cluster.toml")
    with up(tool, tmp_path / "log", spec, "--cores", text) as running:
        actors = tool.actors()
        assert actors["router"]["cores"] == [cores[0]]
        assert actors["demo.shout.generate-1"]["cores"] == [cores[-1]]
        assert "router router is ready (pid" in running.text
        assert "callhome stream demo." in running.text
        found = tool.run("stream", "demo.shout.generate", '{"text": "a b"}')
        assert found.stdout == '"A"\n"B"\n'
        stopped = tool.run("stop")
        assert (stopped.returncode, stopped.stdout) == (0, "")
        assert "node cluster/a has stopped" in stopped.stderr
        assert running.wait() == 0
    assert_nothing_left(tool)


@pytest.fixture
def hangup() -> Iterator[None]:
    """A closed terminal counts here, also when the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_b156_one_signal_stops_in_order(tool: Tool, tmp_path: Path, number: int, code: int) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same")) as running:
        assert running.end(number) == code
        assert "has stopped" in running.text
    assert_nothing_left(tool)


def test_a_node_that_dies_by_itself_is_told(tool: Tool, tmp_path: Path) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same")) as running:
        os.kill(node_pid(tool), signal.SIGKILL)
        assert running.wait() == 1
        assert "error: node node/a ended by itself: killed by SIGKILL" in running.text
    assert_nothing_left(tool)


def test_a_node_that_hangs_is_stopped_by_force(tool: Tool, tmp_path: Path) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, lasting="Lasting")) as running:
        stopped = tool.run("stop", "--grace", "0.3")
        assert stopped.returncode == 1
        assert "did not stop within 0.3 s and was killed" in stopped.stderr
        assert running.wait() == 1
    assert_nothing_left(tool)


@pytest.mark.parametrize("by", ["stop", "up"])
def test_a_node_that_somebody_has_stopped_still_ends_in_order(
    tool: Tool, tmp_path: Path, by: str
) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same")) as running:
        os.kill(node_pid(tool), signal.SIGSTOP)
        if by == "stop":
            stopped = tool.run("stop")
            assert stopped.returncode == 0, stopped.stderr
            assert running.wait() == 0
        else:
            assert running.end(signal.SIGTERM) == 0
        assert "has stopped" in running.text
    assert_nothing_left(tool)


def test_up_tells_of_a_node_that_did_not_stop_in_order(tool: Tool, tmp_path: Path) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, lasting="Lasting")) as running:
        pid = node_pid(tool)
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("once more ends it by force")
        os.kill(pid, signal.SIGKILL)
        assert running.wait() == 1
        assert "error: node node/a has not stopped in order: killed by SIGKILL" in running.text
    assert_nothing_left(tool)


def test_the_second_ctrl_c_is_force(tool: Tool, tmp_path: Path) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, lasting="Lasting")) as running:
        running.process.send_signal(signal.SIGINT)
        running.wait_for("once more ends it by force")
        assert running.end(signal.SIGINT) == 130
    assert_nothing_left(tool)


def test_a_node_that_does_not_answer_is_told(tool: Tool, tmp_path: Path) -> None:
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same")) as running:
        pid = node_pid(tool)
        os.kill(pid, signal.SIGSTOP)
        impatient = Tool(tool.run_folder)
        impatient.environ["CALLHOME_CONNECT_TIMEOUT"] = "0.2"
        said: list[str] = []

        def told() -> bool:
            found = impatient.run("ps")
            assert found.returncode == 1
            assert "did not answer within 0.2 s: it" in found.stderr
            said.append(found.stderr)
            return f"kill -CONT {pid}" in found.stderr

        wait_until_sync(told, LIMIT, "what to do is told")
        assert "is frozen: its process is stopped" in said[-1]
        os.kill(pid, signal.SIGCONT)
        assert running.end(signal.SIGINT) == 130


def test_a_second_node_of_the_same_name_is_refused(tool: Tool, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, same="same")
    with up(tool, tmp_path / "log", spec):
        second = tool.run("up", spec)
        assert second.returncode == 1
        assert "node 'a' of cluster 'node' is running (pid" in second.stderr
        assert tool.run("call", "demo.same.run", "1").stdout == "1\n"


def test_with_two_clusters_a_command_must_choose(tool: Tool, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, same="same")
    with (
        up(tool, tmp_path / "one", spec),
        up(tool, tmp_path / "two", spec, "--cluster", "blue") as blue,
    ):
        assert "callhome stop --cluster blue" in blue.text
        assert len(tool.run("ps", "--json").stdout.splitlines()) == 2
        for command in (("call", "demo.same.run", "1"), ("stop",)):
            found = tool.run(*command)
            assert found.returncode == 2
            assert "--cluster" in found.stderr
        assert tool.run("call", "demo.same.run", "1", "--cluster", "blue").stdout == "1\n"
    assert_nothing_left(tool)


def test_a_script_is_a_spec_too(tool: Tool, tmp_path: Path) -> None:
    script = tmp_path / "my script.py"
    script.write_text(
        "from actors import EngineSpec, NodeSpec, RouterSpec\n"
        "async def same(request, ctx):\n    return request\n"
        "OTHER = NodeSpec(name='b', engines=[EngineSpec('demo.same.run', same)])\n"
    )
    with up(tool, tmp_path / "log", f"{script}:OTHER") as running:
        assert "node b of cluster my-script is ready" in running.text
        assert tool.run("call", "demo.same.run", "[2]").stdout == "[2]\n"


def test_a_start_can_be_interrupted(tool: Tool, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(30)\nasync def same(request):\n    return request\n")
    spec = write_spec(tmp_path, slow=f"{slow}:same")
    running = Up(tool, tmp_path / "log", spec)
    wait_until_sync(lambda: os.listdir(tool.run_folder) != [], LIMIT)
    assert running.end(signal.SIGINT) == 130
    assert_nothing_left(tool)


@pytest.mark.parametrize(
    ("extra", "arguments", "text"),
    [
        ("replica = 2", (), "engines[0].replica: unknown key; did you mean 'replicas'?"),
        ("capacity = 0", (), "engines[0].capacity: 0 is not allowed"),
        ("= 1", (), "line"),
        ("", ("--cores", "4095"), "core 4095 does not exist"),
        ("", ("--cores", "x"), "cores: 'x' is not allowed"),
        ("", ("--cluster", "a/b"), "cluster name: 'a/b'"),
        ("", ("--corse", "0"), "unrecognized arguments: --corse 0 (see callhome --help)"),
    ],
)
def test_a_wrong_spec_is_exit_code_2(
    tool: Tool, tmp_path: Path, extra: str, arguments: tuple[str, ...], text: str
) -> None:
    spec = Path(write_spec(tmp_path, same="same"))
    spec.write_text(spec.read_text() + "\n" + extra)
    found = tool.run("up", str(spec), *arguments)
    assert found.returncode == 2
    assert found.stderr.startswith("callhome: error: ")
    assert found.stderr.count("\n") == 1
    assert text in found.stderr
    assert found.stdout == ""
    assert os.listdir(tool.run_folder) == []


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("class Wrong:\n    pass\n", "is a class but no Engine"),
        ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        (
            "from actors import Engine\nclass Wrong(Engine):\n"
            "    def __init__(self):\n        raise OSError('no model here')\n"
            "    async def generate(self, request, ctx):\n        yield 1\n",
            "constructor raised: OSError: no model here",
        ),
    ],
)
def test_an_engine_that_does_not_come_up_is_exit_code_1(
    tool: Tool, tmp_path: Path, script: str, text: str
) -> None:
    (tmp_path / "wrong.py").write_text(script)
    found = tool.run("up", write_spec(tmp_path, wrong=f"{tmp_path}/wrong.py:Wrong"))
    assert found.returncode == 1
    assert text in found.stderr.splitlines()[-1]
    assert found.stderr.splitlines()[-1].startswith("callhome: error: ")
    assert_nothing_left(tool)


def test_without_a_node_commands_say_how_to_start_one(tool: Tool) -> None:
    for command in (("ps",), ("stop",), ("call", "demo.same.run", "1")):
        found = tool.run(*command)
        assert found.returncode == 1
        assert "start one with 'callhome up'" in found.stderr


def test_two_nodes_and_a_client_outside_both(tool: Tool, tmp_path: Path) -> None:
    door = free_address()
    (tmp_path / "far").mkdir()
    far = write_spec(tmp_path / "far", same="same", echo="echo")
    near = tmp_path / "near.toml"
    near.write_text('name = "a"\n')
    options = ("--cluster", "far", "--listen", door, "--directory", str(tmp_path / "kv"))
    with up(tool, tmp_path / "far.log", far, *options) as running:
        assert f"listens at {door}" in running.text
        running.wait_for(f"--connect tcp://{door}")
        shown = tool.run("ps", "--cluster", "far")
        assert f"ingress {door}" in shown.stdout
        found = tool.run("call", "demo.same.run", "[1]", "--connect", f"tcp://{door}")
        assert (found.returncode, found.stdout, found.stderr) == (0, "[1]\n", "")
        found = tool.run("chat", "demo.echo.run", "--connect", f"tcp://{door}", stdin="a\nb\n")
        assert (found.returncode, found.stderr) == (0, "")
        with up(tool, tmp_path / "near.log", str(near), "--peer", f"tcp://{door}") as running:
            running.wait_for("callhome chat demo.echo.run --cluster near\n")
            running.wait_for("callhome stream demo.same.run JSON --cluster near\n")
            assert tool.run("call", "demo.same.run", "7", "--cluster", "near").stdout == "7\n"
            wait_until_sync(lambda: "peer" not in tool.run("ps", "--cluster", "near").stdout, LIMIT)
        by_files = ("--directory", str(tmp_path / "kv"))
        with up(tool, tmp_path / "near.log", str(near), *by_files):
            wait_until_sync(
                lambda: tool.run("call", "demo.same.run", "7", "--cluster", "near").stdout == "7\n",
                LIMIT,
            )
    assert_nothing_left(tool)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "7400"], "--listen: '7400' is not allowed; expected 'host:port'"),
        (["--peer", "h"], "--peer 'h' is not of the form"),
        (["--peer", "h:99999"], "--peer 'h:99999': a port is at most 65535"),
        (["--peer", "h:1", "--peer", "tcp://h:1"], "--peer: 'h:1' stands twice"),
        (["--directory", ""], "--directory"),
        (["--directory", "/etc/passwd"], "--directory: '/etc/passwd' is no folder"),
    ],
)
def test_wrong_roads_are_usage(tool: Tool, tmp_path: Path, options: list[str], words: str) -> None:
    found = tool.run("up", write_spec(tmp_path, same="same"), *options)
    assert (found.returncode, found.stdout) == (2, "")
    assert words in found.stderr


def test_a_peer_that_cannot_be_seen_is_told_by_ps(tool: Tool, tmp_path: Path) -> None:
    door = free_address()
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same"), "--peer", door):
        line = f"\npeer {door}: cannot be seen: Connection refused\n"
        wait_until_sync(lambda: line in tool.run("ps").stdout, LIMIT, "ps tells of the peer")
        router = tool.actors()["router"]
        assert router["peers"] == {door: "Connection refused"}
        assert tool.actors()["demo.same.run"]["peers"] is None


def test_a_line_of_the_log_says_who_says_it(tool: Tool, tmp_path: Path) -> None:
    records = tmp_path / "kv" / "v1" / "instances"
    records.mkdir(parents=True)
    (records / "demo%2Fsame%2Frun%2F1").write_text("{}")
    by_files = ("--directory", str(tmp_path / "kv"))
    with up(tool, tmp_path / "log", write_spec(tmp_path, same="same"), *by_files) as running:
        running.wait_for(" is left: ")
        (line,) = [line for line in running.text.splitlines() if " is left: " in line]
        assert line.startswith("callhome: router: /")
