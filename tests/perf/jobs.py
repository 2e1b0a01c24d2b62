"""Small runs of perf suites whose figures do not matter."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from perf.figures import Sample
from perf.harness import run_job
from perf.plan import Plan


def two_at_once(plans: Sequence[Plan]) -> list[Sample]:
    """The samples of all jobs, in their order, two of which run beside each other: each spends
    half of its time in waiting for processes that start.
    """
    with ThreadPoolExecutor(2) as pool:
        return [each for samples in pool.map(run_job, plans) for each in samples]
