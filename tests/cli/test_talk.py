"""ps, call, stream and chat against a node that is up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.tool import LIMIT, Tool, up, write_spec
from tests.ports import free_address
from tests.waiting import wait_until_sync


@pytest.fixture(scope="module", autouse=True)
def node(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("talk")
    names = ("words", "same", "odd", "patient", "stubborn", "broken", "echo", "once")
    with up(tool, folder / "log", write_spec(folder, **{name: name for name in names})):
        yield


def in_flight(tool: Tool, name: str) -> int:
    count: int = tool.actors()[f"demo.{name}.run"]["in_flight"]
    return count


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_call_prints_the_answer_as_json(tool: Tool) -> None:
    found = tool.run("call", "demo.same.run", '{"a": [1, "é"]}')
    assert (found.returncode, found.stdout, found.stderr) == (0, '{"a": [1, "é"]}\n', "")


def test_a_request_may_come_from_stdin_or_be_left_out(tool: Tool) -> None:
    assert tool.run("call", "demo.same.run", "-", stdin='{"a": 1}').stdout == '{"a": 1}\n'
    assert tool.run("call", "demo.same.run").stdout == "null\n"


def test_a_worker_a_priority_and_a_migration_limit_may_be_asked_for(tool: Tool) -> None:
    words = ("demo.words.run", '{"text": "a"}')
    assert tool.run("stream", *words, "--priority", "5").stdout == '"A"\n'
    gone = tool.run("call", "demo.same.run", "1", "--instance", "7")
    assert gone.returncode == 1
    assert "7" in gone.stderr
    assert tool.run("call", "demo.same.run", "1", "--migration-limit", "2").stdout == "1\n"
    unable = tool.run("stream", *words, "--migration-limit", "2")
    assert unable.returncode == 1
    assert "a request with token_ids" in unable.stderr
    assert tool.run("call", "demo.same.run", "1", "--instance", "x").returncode == 2


def test_stream_prints_an_item_a_line(tool: Tool) -> None:
    found = tool.run("stream", "demo.words.run", '{"text": "a b c"}')
    assert (found.returncode, found.stdout) == (0, '"A"\n"B"\n"C"\n')


def test_what_json_has_not_is_shown_as_text(tool: Tool) -> None:
    found = tool.run("stream", "demo.odd.run")
    assert [json.loads(line) for line in found.stdout.splitlines()] == [
        {"bytes": "<bytes 3: 616263>", "nan": "NaN", "7": [1, None]},
        "2026-01-02",
        ["<ndarray float32 2x3>"],
        "<Frame uint8 4>",
    ]


def test_ctrl_c_once_is_a_stop(tool: Tool) -> None:
    with tool.start("stream", "demo.patient.run") as process:
        assert first_line(process) == '"waiting"\n'
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (0, '"stopped: Ctrl-C on the command line"\n')
    assert "to stop after 1 items" in err


def test_ctrl_c_twice_is_a_kill(tool: Tool) -> None:
    with tool.start("stream", "demo.stubborn.run") as process:
        assert process.stderr is not None
        first_line(process)
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, "")
    wait_until_sync(lambda: in_flight(tool, "stubborn") == 0, LIMIT)


def test_sigterm_drops_the_stream(tool: Tool) -> None:
    with tool.start("stream", "demo.patient.run") as process:
        first_line(process)
        process.terminate()
        assert process.communicate(timeout=LIMIT) == ("", "")
    assert process.returncode == 143


def test_a_reader_that_has_enough_ends_the_stream(tool: Tool) -> None:
    with tool.start("stream", "demo.stubborn.run") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert first_line(process) == "0\n"
        process.stdout.close()
        assert process.wait(LIMIT) == 141
        assert process.stderr.read() == ""
    wait_until_sync(lambda: in_flight(tool, "stubborn") == 0, LIMIT)


def test_items_before_an_error_are_printed(tool: Tool) -> None:
    found = tool.run("stream", "demo.broken.run")
    assert (found.returncode, found.stdout) == (1, "1\n")
    assert found.stderr == (
        "callhome: error: the engine raised ValueError: no second item in this engine "
        "(--traceback shows where)\n"
    )


def test_traceback_shows_the_place_in_the_engine(tool: Tool) -> None:
    found = tool.run("stream", "demo.broken.run", "--traceback")
    assert found.returncode == 1
    assert "in the other process:" in found.stderr
    assert "engines.py" in found.stderr


def test_chat_sends_lines_and_prints_text(tool: Tool) -> None:
    found = tool.run("chat", "demo.echo.run", stdin="hello\nhow are you")
    assert (found.returncode, found.stdout) == (0, "hello\nhow are you\ngoodbye\n")


def test_chat_in_json(tool: Tool) -> None:
    found = tool.run("chat", "demo.echo.run", "--json", stdin='1\n{"a": null}\n')
    assert (found.returncode, found.stdout) == (0, '1\n{"a": null}\n"goodbye"\n')


def test_a_line_that_is_no_json_is_the_error(tool: Tool) -> None:
    found = tool.run("chat", "demo.echo.run", "--json", stdin="1\nhello\n")
    assert found.returncode == 2
    assert found.stderr.startswith("callhome: error: line 2 of stdin is no JSON")
    assert found.stderr.count("\n") == 1


def test_chat_ends_when_the_engine_hangs_up(tool: Tool) -> None:
    with tool.start("chat", "demo.once.run") as process:
        assert process.stdin is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.wait(LIMIT) == 0  # stdin is still open
        assert process.stdout is not None
        assert process.stdout.read() == "hello\n"


def test_ctrl_c_in_a_chat_is_a_stop(tool: Tool) -> None:
    with tool.start("chat", "demo.echo.run") as process:
        assert process.stdin is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert first_line(process) == "hello\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        process.stderr.readline()
        process.stdin.close()  # the engine listens to our end, not to the stop
        assert process.wait(LIMIT) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "goodbye\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("call", "demo.sam.run", "1"), 1, "did you mean 'demo.same.run'?"),
        (("call", "demo.echo.run", "1"), 1, "(here: callhome chat demo.echo.run)"),
        (("chat", "demo.same.run"), 1, "callhome stream demo.same.run)"),
        (("call", "demo.words.run", '{"text": "a b"}'), 1, "more than one answer"),
        (("stream", "demo.patient.run", "--timeout", "0.3"), 1, "0.3"),
        (("call", "demo.same.run", "hello"), 2, "text needs its quotes"),
        (("call", "demo.same.run", "1", "--timeout", "-1"), 2, "expected seconds, or none"),
        (("call", "demo.same.run", "--cluster", "nope"), 1, "running below"),
        (("ps", "--node", "nope"), 1, "running below"),
    ],
)
def test_errors_are_one_line(tool: Tool, arguments: tuple[str, ...], code: int, text: str) -> None:
    found = tool.run(*arguments)
    assert found.returncode == code
    assert found.stderr.startswith("callhome: error: ")
    assert found.stderr.count("\n") == 1
    assert text in found.stderr


def test_ps_shows_actors_and_their_counters(tool: Tool) -> None:
    tool.run("call", "demo.same.run", "1")
    wait_until_sync(lambda: in_flight(tool, "same") == 0, LIMIT, "its end is counted")
    found = tool.run("ps", "--counters")
    lines = found.stdout.splitlines()
    assert lines[0].split()[:4] == ["NODE", "ACTOR", "STATE", "PID"]
    same = next(line for line in lines if " demo.same.run " in line).split()
    assert same[:3] == ["node/a", "demo.same.run", "up"]
    assert "0/64" in same
    assert any(line.split()[:3] == ["node/a", "demo.same.run", "requests"] for line in lines)
    counters = tool.actors("--counters")["demo.same.run"]["counters"]
    assert counters["requests"] >= 1


def shell(tool: Tool, command: str) -> subprocess.CompletedProcess[str]:
    """A command with redirections of the shell; ``callhome`` in it is ours."""
    words = command.replace("callhome", f"{sys.executable} -m actors")
    return subprocess.run(
        ["bash", "-c", words], text=True, env=tool.environ, capture_output=True, timeout=LIMIT
    )


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("chat demo.echo.run <&-", 2, "stdin is closed"),
        ("call demo.same.run - <&-", 2, "stdin is closed"),
        ("call demo.same.run 1 >&-", 1, "stdout is closed"),
        ('stream demo.words.run \'{"text": "a b"}\' >&-', 1, "stdout is closed"),
        ('stream demo.words.run \'{"text": "a b"}\' >/dev/full', 1, "No space left"),
        ("ps >/dev/full", 1, "No space left"),
    ],
)
def test_a_stream_of_the_shell_that_is_no_use(
    tool: Tool, command: str, code: int, words: str
) -> None:
    found = shell(tool, f"callhome {command}")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (code, "", 1)
    assert found.stderr.startswith("callhome: error: ")
    assert words in found.stderr


def test_nothing_to_complain_to(tool: Tool) -> None:
    assert shell(tool, "callhome call demo.same.run 1 <&- 2>&-").stdout == "1\n"
    assert shell(tool, "callhome call demo.nosuch.run 1 2>&-").returncode == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--connect", "127.0.0.1:1"], "--connect: '127.0.0.1:1' is not of the form tcp://"),
        (["--connect", "tcp://h"], "connect 'h' is not of the form host:port"),
        (["--connect", "tcp://h:1", "--node", "a"], "leave out --cluster and --node"),
    ],
)
def test_a_wrong_connect_is_usage(tool: Tool, options: list[str], words: str) -> None:
    found = tool.run("call", "demo.same.run", *options)
    assert (found.returncode, found.stdout) == (2, "")
    assert words in found.stderr


def test_a_connect_that_fails_is_one_line(tool: Tool) -> None:
    door = free_address()
    found = tool.run("stream", "demo.same.run", "--connect", f"tcp://{door}")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"callhome: error: nobody listens at {door} (Connection ")
    assert found.stderr.count("\n") == 1
