"""One repetition of one job in a fresh process: pins itself, runs, prints one JSON line.

Called by ``perf.harness`` as ``python -m perf.worker PLAN``. The line is ``{"samples": [...]}``
or, when the job failed, ``{"error": "..."}`` with exit code 1 and the traceback on stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable

from perf.figures import Sample
from perf.plan import Plan, pin_to, runner

FLOORS = ("pingpong", "codec")
#: Floors that only the suites over two nodes need.
PLANE_FLOORS = ("loopback",)


def perform(plan: Plan) -> list[Sample]:
    """Run the job of ``plan`` in this process; numpy and zmq are loaded here and not before."""
    if plan.job in (*FLOORS, *PLANE_FLOORS):
        floor: Callable[[Plan], list[Sample]] = getattr(
            importlib.import_module("perf.floors"), plan.job
        )
        return floor(plan)
    suite = importlib.import_module(f"perf.suites.{plan.suite}")
    if plan.profiled == "engine":
        os.environ["CALLHOME_PERF_PROFILE"] = plan.profile
    if plan.profiled != "client":
        return _named(plan, runner(plan.loop)(suite.run(plan)))
    import cProfile

    profile = cProfile.Profile()
    try:
        return _named(plan, profile.runcall(asyncio.run, suite.run(plan)))
    finally:
        profile.dump_stats(f"{plan.profile}.client.{plan.job}.pstats")


def _named(plan: Plan, samples: Iterable[Sample]) -> list[Sample]:
    """The samples of a suite under the names of the road that it took."""
    road = plan.job.removesuffix(plan.suite)
    return [
        sample._replace(suite=road + sample.suite, workload=road + sample.workload)
        for sample in samples
    ]


def main(argument: str) -> int:
    """Exit code of the worker."""
    plan = Plan.from_json(argument)
    try:
        pin_to(plan.client_core)
        answer: dict[str, object] = {"samples": perform(plan)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if "samples" in answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
