"""Help and wrong usage."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from actors.cli import main

COMMANDS = (
    "up",
    "ps",
    "call",
    "stream",
    "chat",
    "busy",
    "stop",
    "doctor",
    "drain",
    "restart",
    "health",
)


class Pressed(list[str]):
    """Arguments that somebody presses Ctrl-C on while they are read."""

    def __iter__(self) -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return super().__iter__()


def test_ctrl_c_while_arguments_are_read_is_no_traceback() -> None:
    assert main(Pressed(["ps"])) == 130


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    _, _, examples = capsys.readouterr().out.partition("examples:\n")
    assert f"callhome {command}" in examples


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "required: COMMAND"),
        (["pss"], "invalid choice: 'pss'"),
        (["up"], "required: SPEC"),
        (["call"], "required: ENDPOINT"),
        (["ps", "x"], "unrecognized arguments: x"),
        (["restart", "x", "--rolling", "y", "--fast"], "unrecognized arguments: y --fast"),
        (["stop", "--grace", "0"], "expected seconds"),
        (["busy", "--streams", "0"], "expected a whole number above 0, or none"),
        (["busy", "--streams", "1.5"], "expected a whole number above 0, or none"),
        (["call", "a.b.c", "--instance", "x"], "expected the id of a worker, as callhome busy"),
        (["call", "a.b.c", "--instance", "0"], "expected the id of a worker, as callhome busy"),
        (["chat", "a.b.c", "--priority", "high"], "expected a whole number"),
        (["stream", "a.b.c", "--migration-limit", "x"], "expected a whole number from 0 to 1000"),
        (["busy", "--fraction", "-1"], "such as 0.5, or none"),
        (["busy", "--fraction", "x"], "such as 0.5, or none"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("callhome: error: ")
    assert found.err.count("\n") == 1
    assert text in found.err
    assert "--help)" in found.err
