"""The same suites by callhome and by Dynamo's own wheel, in turn, and their ratios.

``plane.`` suites run over two nodes of ours, the others inside one; the wheel has but one road, TCP
on loopback. It lives in an interpreter of its own, which runs the very suites of ``perf.suites``
over ``perf.peers.wheel``. Every repetition measures both, one right after the other, so that a slow
minute of the machine is in both; the ratios are medians over the repetitions.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perf.figures import Sample, more_is_better, number, table
from perf.harness import BUSY, busy_percent, run_job
from perf.plan import DYNAMO, PLANE, PerfError, Plan

#: The version that the request plane is held against.
VERSION = "1.6.1"
#: Suites that Dynamo's Python client can run at all.
SUITES = (*(PLANE + name for name in ("unary", "stream", "frames", "cancel")), "agentic", "routing")
VARIABLE = "CALLHOME_PERF_DYNAMO"
_HOW = f"""\
make a venv for it (Linux on x86-64) and name its python:
  python3 -m venv dynamo-venv
  dynamo-venv/bin/pip install ai-dynamo-runtime=={VERSION}
  export {VARIABLE}=$PWD/dynamo-venv/bin/python"""
_PROBE = """\
import json
from importlib.metadata import version
import dynamo.runtime
print(json.dumps(version("ai-dynamo-runtime")))"""


class Limit(NamedTuple):
    """``bound`` on ours divided by Dynamo's: at most for times, at least for rates."""

    workload: str
    metric: str
    bound: float


LIMITS = (
    Limit("unary.c1", "p50_us", 0.9),
    Limit("unary.c64", "req_s", 4.0),
    Limit("stream.c1", "frames_s", 6.0),
    Limit("stream.c32", "frames_s", 4.5),
    Limit("agentic.list", "req_s", 4.0),
    Limit("agentic.array", "req_s", 9.0),
)


class Pair(NamedTuple):
    """One metric on both sides over the repetitions; ``ratios`` are ours divided by theirs."""

    workload: str
    metric: str
    unit: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """One for each repetition."""
        return [one / other for one, other in zip(self.ours, self.theirs, strict=True) if other]

    @property
    def ratio(self) -> float:
        """Their median, 0.0 where there are none."""
        return statistics.median(self.ratios) if self.ratios else 0.0


def probe(python: str) -> str:
    """Version of the wheel that ``python`` has. Raises PerfError saying how to get one."""
    if not python:
        raise PerfError(f"no interpreter with Dynamo's wheel is named; {_HOW}")
    try:
        found = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PerfError(f"{python} has no usable ai-dynamo-runtime ({error}); {_HOW}") from None
    return found.stdout.strip().strip('"')


def measure(
    suites: Sequence[str], plan: Plan, repeat: int, python: str, say: Callable[[str], None]
) -> tuple[list[Pair], list[str]]:
    """Both sides of every suite, in turn, ``repeat`` times; and the jobs that failed, with why.

    ``plan`` gives all but the job. A repetition counts only when both sides have it.
    """
    ours: dict[tuple[str, str], Pair] = {}
    failures = []
    for repetition in range(repeat):
        for suite in suites:
            busy = busy_percent(plan.cores)
            note = f"; others use {busy:.0f} % of a core" if busy > BUSY else ""
            say(f"{suite}, repetition {repetition + 1} of {repeat}{note}")
            name = suite.removeprefix(PLANE)
            try:
                # Who goes first changes, so that neither side always has the warmer machine.
                sides = [(suite, ""), (DYNAMO + name, python)]
                taken = {
                    job: run_job(replace(plan, job=job), python=interpreter)
                    for job, interpreter in (sides if repetition % 2 == 0 else sides[::-1])
                }
            except PerfError as error:
                failures.append(f"{suite}, repetition {repetition + 1}: {error}")
                say(f"    FAILED: {error}")
            else:
                _pair(ours, taken[suite], taken[DYNAMO + name])
    return list(ours.values()), failures


def _pair(pairs: dict[tuple[str, str], Pair], ours: list[Sample], theirs: list[Sample]) -> None:
    other = {(sample.workload.removeprefix(DYNAMO), sample.metric): sample for sample in theirs}
    for sample in ours:
        key = sample.workload.removeprefix(PLANE), sample.metric
        if key not in other:
            continue
        pair = pairs.setdefault(key, Pair(*key, sample.unit, [], []))
        pair.ours.append(sample.value)
        pair.theirs.append(other[key].value)


def judge(pair: Pair) -> str:
    """The limit of this pair in words, with ok or MISSED; "" where it has none."""
    for limit in LIMITS:
        if (limit.workload, limit.metric) == (pair.workload, pair.metric):
            more = more_is_better(pair.unit)
            ok = pair.ratio >= limit.bound if more else pair.ratio <= limit.bound
            return f"limit {'>=' if more else '<='} {limit.bound}x, {'ok' if ok else 'MISSED'}"
    return ""


def render(pairs: Sequence[Pair], facts: dict[str, Any], failures: Sequence[str]) -> str:
    """The table: medians of both sides, the median and range of the ratios, the limits."""
    rows = []
    for pair in pairs:
        spread = f"{min(pair.ratios):.2f}..{max(pair.ratios):.2f}" if pair.ratios else ""
        names = pair.workload, pair.metric
        middle = [number(statistics.median(values)) for values in (pair.ours, pair.theirs)]
        ratio = f"{pair.ratio:.2f}"
        rows.append([*names, *middle, pair.unit, ratio, spread, judge(pair)])
    head = ["workload", "metric", "callhome", "dynamo", "unit", "ratio", "range", "limit"]
    text = table(head, rows)
    text += "\n" + ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n"
    return text + "".join(f"FAILED {failure}\n" for failure in failures)
