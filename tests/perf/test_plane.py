"""Suites over two nodes, and the comparison with Dynamo's wheel without the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perf import versus
from perf.__main__ import main, parser
from perf.checks import LIMITS
from perf.figures import Sample, summarise
from perf.harness import SUITES, Options, run, run_job
from perf.plan import PerfError, Plan
from tests.perf.jobs import two_at_once

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]


def test_a_plan_knows_its_road_and_its_workload() -> None:
    plans = [Plan(job, (0, 1)) for job in ("unary", "plane.unary", "dynamo.unary")]
    assert [plan.suite for plan in plans] == ["unary"] * 3
    assert [plan.plane for plan in plans] == [False, True, False]
    assert [plan.dynamo for plan in plans] == [False, False, True]


@pytest.mark.timeout(240)
def test_all_suites_run_small_over_two_nodes() -> None:
    suites = tuple(suite for suite in SUITES if suite.startswith("plane."))
    first, *others = suites
    report = run(Options((first,), CORES, repeat=1, scale=0.01), lambda line: None)
    assert report.failures == []
    # The floors have run before one of them: that is enough here.
    samples = two_at_once([Plan(suite, CORES, scale=0.01) for suite in others])
    report.figures += summarise(samples, CORES)
    assert {figure.suite for figure in report.figures} == {"floor", *suites}
    keys = {figure.key for figure in report.figures}
    limits = [limit for limit in LIMITS if limit.workload.startswith("plane.")]
    assert {(limit.workload, limit.metric) for limit in limits} <= keys
    assert ("floor.loopback", "gb_s") in keys


def test_memory_needs_a_router_to_look_at() -> None:
    with pytest.raises(PerfError, match="needs the router in a process of its own"):
        run_job(Plan("plane.memory", CORES, router="here"))


# --------------------------------------------------------------------------- beside Dynamo's wheel


def pair(metric: str, unit: str, ours: list[float], theirs: list[float]) -> versus.Pair:
    return versus.Pair(
        "unary.c1" if metric == "p50_us" else "unary.c64", metric, unit, ours, theirs
    )


def test_ratios_are_taken_repetition_by_repetition() -> None:
    slow_minute = pair("p50_us", "us", [100.0, 1_000.0, 110.0], [200.0, 2_000.0, 220.0])
    assert slow_minute.ratios == [0.5, 0.5, 0.5]
    assert versus.judge(slow_minute) == "limit <= 0.9x, ok"
    assert versus.judge(pair("req_s", "req/s", [300.0], [100.0])) == "limit >= 4.0x, MISSED"
    assert versus.judge(slow_minute._replace(metric="p99_us")) == ""
    assert pair("p50_us", "us", [1.0], [0.0]).ratio == 0.0


@pytest.mark.parametrize(("ids", "bound"), [("agentic.list", 4.0), ("agentic.array", 9.0)])
def test_requests_with_many_token_ids_have_limits_beside_dynamo(ids: str, bound: float) -> None:
    at = versus.Pair(ids, "req_s", "req/s", [bound * 100.0], [100.0])
    assert versus.judge(at) == f"limit >= {bound}x, ok"
    assert versus.judge(at._replace(ours=[bound * 99.0])) == f"limit >= {bound}x, MISSED"
    assert "agentic" in versus.SUITES


def test_the_table_shows_both_sides_the_ratio_and_its_range() -> None:
    both = pair("req_s", "req/s", [1_000.0, 500.0], [100.0, 100.0])
    text = versus.render([both], {"dynamo": "1.6.1"}, ["plane.stream, repetition 1: it broke"])
    row = text.splitlines()[1].split()
    assert row[:6] == ["unary.c64", "req_s", "750", "100", "req/s", "7.50"]
    assert row[6:] == ["5.00..10.00", "limit", ">=", "4.0x,", "ok"]
    assert "dynamo 1.6.1" in text
    assert text.endswith("FAILED plane.stream, repetition 1: it broke\n")


def test_each_repetition_runs_both_sides_and_counts_only_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs: list[tuple[str, str]] = []

    def job(plan: Plan, python: str) -> list[Sample]:
        jobs.append((plan.job, python))
        if len(jobs) == 4:
            raise PerfError("it broke")
        value = 50.0 if plan.plane else 100.0
        return [Sample(plan.job, f"{plan.job}.c1", "p50_us", "us", value)]

    monkeypatch.setattr(versus, "run_job", job)
    monkeypatch.setattr(versus, "busy_percent", lambda cores: 0.0)
    pairs, failures = versus.measure(["plane.unary"], Plan("", (0, 1)), 3, "py", lambda line: None)
    first, second = ("plane.unary", ""), ("dynamo.unary", "py")
    assert jobs == [first, second, second, first, first, second]
    assert [one.ratios for one in pairs] == [[0.5, 0.5]]
    assert failures == ["plane.unary, repetition 2: it broke"]


def test_who_has_no_wheel_is_told_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(versus.VARIABLE, raising=False)
    for more, why in (
        ([], "no interpreter with Dynamo's wheel is named"),
        (["--python", sys.executable], "has no usable ai-dynamo-runtime"),
        (["--python", str(tmp_path / "none")], "has no usable ai-dynamo-runtime"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["versus", "dynamo", *more])
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert why in told
        assert f"pip install ai-dynamo-runtime=={versus.VERSION}" in told


def test_a_suite_that_dynamo_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["versus", "dynamo", "--suite", "plane.unary,plane.bidi"])
    assert "Dynamo's Python client cannot open two-way streams" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["versus", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in text for word in ("uvloop", "dynamo-venv", versus.VARIABLE, "examples:"))
