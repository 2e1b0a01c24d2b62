"""Statistics, JSON lines, limits, comparison and command line of perf, and very small real runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perf.__main__ import main, parser
from perf.checks import LIMITS, judge
from perf.compare import comparison, verdict
from perf.figures import Figure, Sample, from_lines, number, percentile, summarise, table, to_lines
from perf.harness import NODE_SUITES, SUITES, Options, Report, render, run, run_job
from perf.plan import PerfError, Plan
from tests.perf.jobs import two_at_once

KEYS = ["suite", "workload", "metric", "unit", "median", "min", "max", "runs", "cores"]


def figure(workload: str, metric: str, unit: str, median: float, spread: float = 0.0) -> Figure:
    suite = workload.partition(".")[0]
    return Figure(
        suite, workload, metric, unit, median, median - spread, median + spread, 3, (0, 1)
    )


PINGPONG = figure("floor.pingpong", "p50_us", "us", 100.0)
CODEC = figure("floor.codec", "items_s", "items/s", 500_000.0)


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([7.0], 0.01) == 7.0


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.5)])
def test_percentile_of_nothing_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_samples_become_figures_in_order_of_appearance() -> None:
    samples = [
        Sample("unary", "unary.c1", "p50_us", "us", 3.0),
        Sample("unary", "unary.c1", "p99_us", "us", 9.0),
        Sample("unary", "unary.c1", "p50_us", "us", 1.0),
        Sample("unary", "unary.c1", "p50_us", "us", 2.0),
    ]
    p50, p99 = summarise(samples, (0, 1))
    assert p50 == Figure("unary", "unary.c1", "p50_us", "us", 2.0, 1.0, 3.0, 3, (0, 1))
    assert (p99.median, p99.runs) == (9.0, 1)


def test_every_json_line_has_the_nine_keys_and_comes_back() -> None:
    figures = [PINGPONG, figure("unary.c1", "p50_us", "us", 300.0, 5.0)]
    text = to_lines(figures, {"cpus": 2, "kernel": "6"})
    head, *rows = map(json.loads, text.splitlines())
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert list(head) == [*KEYS, "facts"]
    assert from_lines(text) == (figures, {"cpus": 2, "kernel": "6"})


@pytest.mark.parametrize("line", ["{}", "[1]", "not json", '{"suite": "unary"}'])
def test_a_line_that_is_no_figure_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 is no figure"):
        from_lines(to_lines([], {}) + line)


def test_table_pads_names_left_and_numbers_right() -> None:
    text = table(["a", "b", "number", "remark"], [["long", "x", "1", "ok"]])
    assert text == "a     b  number  remark\nlong  x       1  ok\n"
    assert [number(value) for value in (0.0, 0.1234, 12.345, 1234.5)] == [
        "0",
        "0.123",
        "12.3",
        "1,234",
    ]


def test_limits_are_read_as_ratios_to_the_floors_of_the_run() -> None:
    held = figure("unary.c1", "p50_us", "us", 540.0)
    missed = figure("stream.c1", "frames_s", "frames/s", 80_000.0)
    verdicts = judge([PINGPONG, CODEC, held, missed], "process")
    assert verdicts[held.key].ok
    assert verdicts[held.key].text == "5.4x pingpong, limit <= 5.5x, ok"
    assert not verdicts[missed.key].ok
    assert verdicts[missed.key].text == "0.16x codec, limit >= 0.18x, MISSED"


def test_limits_follow_where_the_router_is() -> None:
    call = figure("unary.c1", "p50_us", "us", 450.0)
    rate = figure("unary.c64", "req_s", "req/s", 11_000.0)
    process = judge([PINGPONG, call, rate], "process")
    here = judge([PINGPONG, call, rate], "here")
    assert [process[call.key].ok, process[rate.key].ok] == [True, True]
    assert [here[call.key].ok, here[rate.key].ok] == [False, False]


def test_no_floor_no_verdict() -> None:
    assert judge([figure("unary.c1", "p50_us", "us", 1.0)], "process") == {}


def test_every_limit_names_a_known_suite() -> None:
    assert all(any(limit.workload.startswith(f"{suite}.") for suite in SUITES) for limit in LIMITS)


def test_better_and_worse_need_ranges_that_do_not_touch() -> None:
    before = figure("unary.c1", "p50_us", "us", 100.0, 10.0)
    assert verdict(before, figure("unary.c1", "p50_us", "us", 130.0, 10.0)) == "worse"
    assert verdict(before, figure("unary.c1", "p50_us", "us", 70.0, 10.0)) == "better"
    assert verdict(before, figure("unary.c1", "p50_us", "us", 115.0, 10.0)) == "same"
    assert verdict(before, before._replace(median=300.0, runs=1)) == "one run"
    slow = figure("unary.c64", "req_s", "req/s", 10_000.0)
    assert verdict(slow, figure("unary.c64", "req_s", "req/s", 12_000.0)) == "better"


def test_comparison_divides_by_the_floor_of_each_run() -> None:
    slower_machine = PINGPONG._replace(median=200.0)
    before = [PINGPONG, figure("unary.c1", "p50_us", "us", 300.0)]
    after = [slower_machine, figure("unary.c1", "p50_us", "us", 600.0), CODEC]
    lines = comparison(before, after).splitlines()
    row = next(line for line in lines if line.startswith("unary.c1"))
    assert row.split() == ["unary.c1", "p50_us", "300", "600", "us", "2.00", "1.00", "worse"]
    assert lines[-1] == "only in after: floor.codec items_s"


@pytest.mark.parametrize(
    ("text", "why"), [("4095", "does not exist"), ("0,0", "names a core twice"), ("x", "expected")]
)
def test_cores_must_be_ours(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--cores", text])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_plan_survives_its_json_and_scales_counts() -> None:
    plan = Plan("unary", (0, 1), "here", 0.01)
    assert Plan.from_json(plan.to_json()) == plan
    assert [plan.count(1_000), plan.count(10), plan.count(10, least=3)] == [10, 1, 3]
    assert [Plan("x", (3,)).engine_core, Plan("x", (3, 4)).engine_core] == [3, 4]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["run", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(suite in text for suite in SUITES)


def test_compare_reads_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, median in (("a", 300.0), ("b", 150.0)):
        lines = to_lines([PINGPONG, figure("unary.c1", "p50_us", "us", median)], {})
        (tmp_path / name).write_text(lines)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "0.50" in capsys.readouterr().out


def test_compare_names_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("nothing")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path / "a"), str(tmp_path / "a")])
    assert ended.value.code == 2
    assert "line 1 is no figure" in capsys.readouterr().err


def test_a_failed_worker_says_why() -> None:
    with pytest.raises(PerfError, match="cannot pin to core 4095"):
        run_job(Plan("codec", (4095,)))


def test_a_hung_worker_is_ended() -> None:
    with pytest.raises(PerfError, match="took longer than 0 s"):
        run_job(Plan("codec", (min(os.sched_getaffinity(0)),), scale=20.0), deadline=0.2)


def test_floors_run_for_real() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    (ping,) = run_job(Plan("pingpong", cores, scale=0.01))
    (pack,) = run_job(Plan("codec", cores, scale=0.05))
    assert (ping.workload, pack.workload) == ("floor.pingpong", "floor.codec")
    assert 1.0 < ping.value < 1e6
    assert pack.value > 1_000


def test_a_failed_job_does_not_hide_the_others() -> None:
    report = Report(Options(("unary",), (0, 1)), figures=[PINGPONG], failures=["unary: it broke"])
    text = render(report)
    assert "floor.pingpong" in text
    assert text.endswith("FAILED unary: it broke\n")


@pytest.mark.timeout(180)
def test_all_suites_run_small() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    said: list[str] = []
    first, *others = NODE_SUITES
    report = run(Options((first,), cores, repeat=1, scale=0.01), said.append)
    assert report.failures == []
    assert any(line.startswith("[1/1] unary") for line in said)
    # The floors have run before one of them: that is enough here.
    samples = two_at_once([Plan(suite, cores, scale=0.01) for suite in others])
    report.figures += summarise(samples, cores)
    assert {figure.suite for figure in report.figures} == {"floor", *NODE_SUITES}
    keys = {figure.key for figure in report.figures}
    limits = [limit for limit in LIMITS if limit.workload.partition(".")[0] in NODE_SUITES]
    assert {(limit.workload, limit.metric) for limit in limits} <= keys
    assert all(figure.median > 0 for figure in report.figures)


def test_the_router_may_stand_in_the_client() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    samples = run_job(Plan("unary", cores, "here", 0.01))
    assert {sample.metric for sample in samples} == {"p50_us", "p99_us", "req_s"}
