"""Every dispatch of ours, and those of the example, against the suite that any dispatch can run."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from actors.errors import SpecError
from actors.testing import checks, dispatch
from actors.testing.__main__ import main
from actors.testing.checks import CHECKS, SKIPPED
from actors.testing.dispatch import DispatchCase, Factory, dispatch_case
from tests.router.dispatches import inside, record, standard
from tests.waiting import DEADLINE

Check = Callable[[DispatchCase], Awaitable[None]]


@pytest.mark.parametrize(
    ("factory", "road"),
    [(standard, "local"), (standard, "remote"), (record, "local"), (inside, "own")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_conformance_30_and_31_and_all_that_a_dispatch_must_do(
    factory: Factory, road: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORD_TO", str(tmp_path / "record"))
    failed = []
    async with dispatch_case(factory, road) as case:
        for name, check in CHECKS.items():
            if (road, name) not in SKIPPED:
                try:
                    await check(case)
                    await case.idle()
                except Exception as error:
                    failed.append(f"{name}: {type(error).__name__}: {error}")
    assert failed == []
    if factory is not standard:
        lines = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
        assert {"added", "unary", "bidirectional", "removed"} <= {line["what"] for line in lines}
        assert {line["router"] for line in lines} == {"router", "second"}


def test_the_command_tells_which_checks_a_dispatch_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dispatch", "tests.router.dispatches:stutters", "--road", "own"]) == 1
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines] == list(CHECKS)
    verdicts = {name: (verdict, text) for verdict, _, name, text in lines}
    assert verdicts["in-order"][0] == "FAILED"
    assert "2000 items were sent in order, 4000 came" in verdicts["in-order"][1]
    assert verdicts["both-ways"][0] == verdicts["stop"][0] == "ok"
    assert verdicts["worker-killed"] == ("skipped", "its workers live in the router")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tests.router.nowhere:make", "No module named 'tests.router.nowhere'"),
        ("tests.router.dispatches:nothing", "has no 'nothing'"),
        ("tests.router.dispatches", "module:attribute"),
        ("tests.router.dispatches:nobody", "nobody returned NoneType, which has no method gene"),
        ("tests.router.dispatches:fails", "fails raised ValueError: no luck"),
        ("tests.router.dispatches:Missing", "Missing returned Missing, which has no method on_i"),
    ],
)
def test_the_command_says_what_it_cannot_find(
    target: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dispatch", target]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_the_command_blames_the_check_that_leaks_and_says_no_more_than_that(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def impatient(name: str, check: Check) -> Check:
        """What is lost is waited for in vain for a second, and for nothing else so shortly."""

        async def run(case: DispatchCase) -> None:
            for module in (dispatch, checks):
                monkeypatch.setattr(module, "PATIENCE", 1.0 if name == "unary" else DEADLINE)
            await check(case)

        return run

    for name, check in list(CHECKS.items()):
        monkeypatch.setitem(CHECKS, name, impatient(name, check))
    monkeypatch.setenv("RECORD_TO", os.devnull)
    assert main(["dispatch", "tests.router.dispatches:loses", "--road", "own"]) == 1
    told = capsys.readouterr()
    verdicts = {line.split()[2]: line.split()[0] for line in told.out.splitlines()}
    assert [name for name, verdict in verdicts.items() if verdict == "FAILED"] == ["unary"]
    assert list(verdicts) == list(CHECKS)
    assert "on purpose" not in caplog.text
    assert "_Raising" not in caplog.text


async def test_a_road_that_nobody_knows() -> None:
    with pytest.raises(SpecError, match="road 'far' is unknown; use one of local, remote, own"):
        async with dispatch_case(standard, "far"):
            pass
