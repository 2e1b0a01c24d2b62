"""The suites of perf in the wheel's own interpreter."""

from __future__ import annotations

import os

import pytest

from perf import versus
from perf.harness import run_job
from perf.plan import Plan
from tests.interop.wheel import PYTHON, VERSION, needs_wheel, version

pytestmark = [needs_wheel, pytest.mark.timeout(240)]

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]


def test_the_wheel_is_the_one_that_the_request_plane_is_held_against() -> None:
    assert version() == VERSION == versus.VERSION == versus.probe(PYTHON)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_each_suite_runs_with_the_wheel(loop: str) -> None:
    for suite in versus.SUITES:
        name = suite.removeprefix("plane.")
        samples = run_job(Plan(f"dynamo.{name}", CORES, scale=0.01, loop=loop), python=PYTHON)
        assert samples
        assert all(sample.workload.startswith(f"dynamo.{name}.") for sample in samples)


def test_both_sides_are_measured_and_compared() -> None:
    plan = Plan("", CORES, scale=0.01)
    pairs, failures = versus.measure(["plane.unary"], plan, 1, PYTHON, lambda line: None)
    assert failures == []
    assert [(pair.workload, pair.metric) for pair in pairs] == [
        ("unary.c1", "p50_us"),
        ("unary.c1", "p99_us"),
        ("unary.c64", "req_s"),
    ]
    text = versus.render(pairs, {}, failures)
    assert "limit <= 0.9x" in text
    assert "limit >= 4.0x" in text
