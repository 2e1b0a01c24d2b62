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
from collections.abc import Callable

from perf.figures import Sample
from perf.plan import Plan, pin_to

FLOORS = ("pingpong", "codec")


def perform(plan: Plan) -> list[Sample]:
    """Run the job of ``plan`` in this process; numpy and zmq are loaded here and not before."""
    if plan.job in FLOORS:
        floor: Callable[[Plan], list[Sample]] = getattr(
            importlib.import_module("perf.floors"), plan.job
        )
        return floor(plan)
    suite = importlib.import_module(f"perf.suites.{plan.job}")
    if plan.profiled == "engine":
        os.environ["CALLHOME_PERF_PROFILE"] = plan.profile
    if plan.profiled != "client":
        return list(asyncio.run(suite.run(plan)))
    import cProfile

    profile = cProfile.Profile()
    try:
        return list(profile.runcall(asyncio.run, suite.run(plan)))
    finally:
        profile.dump_stats(f"{plan.profile}.client.{plan.job}.pstats")


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
