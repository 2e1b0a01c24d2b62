"""Runs suites in fresh processes with floors between them, and prints the table."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from perf.checks import judge
from perf.figures import Figure, Sample, number, summarise, table
from perf.plan import PLANE, PerfError, Plan
from perf.worker import FLOORS, PLANE_FLOORS

NODE_SUITES = ("unary", "stream", "bidi", "frames", "cancel", "startup", "agentic", "routing")
#: The same workloads over two nodes on loopback, and what an open stream costs there.
PLANE_SUITES = tuple(f"{PLANE}{name}" for name in ("unary", "stream", "bidi", "frames", "cancel"))
#: ``membership`` needs an etcd in PATH.
SUITES = (*NODE_SUITES, *PLANE_SUITES, "plane.memory", "membership")
#: A repetition of one job that takes longer has hung; seconds.
JOB_DEADLINE = 300.0
#: Above this share of a core used by others before a repetition, its figures are suspect; percent.
BUSY = 20.0
_ROOT = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True)
class Options:
    """What ``python -m perf run`` was asked for; ``cores`` are permitted to us."""

    suites: tuple[str, ...]
    cores: tuple[int, ...]
    repeat: int = 3
    router: str = "process"
    scale: float = 1.0
    profiled: str = ""
    profile: str = ""


@dataclass
class Report:
    """What a run found: its figures, the machine, and the jobs that failed with the reason."""

    options: Options
    figures: list[Figure] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def machine_facts(options: Options) -> dict[str, Any]:
    """What a reader needs to judge the figures: machine, versions, options."""
    from importlib.metadata import version

    names = ("pyzmq", "msgpack", "numpy", "psutil")
    return {
        "cpus": os.cpu_count() or 0,
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "router": options.router,
        "scale": options.scale,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def run(options: Options, say: Callable[[str], None]) -> Report:
    """All repetitions of all suites, floors before each.

    A job that fails is named in the report, and the rest goes on.
    """
    report = Report(options, facts=machine_facts(options))
    samples: list[Sample] = []
    busiest = 0.0
    rounds = [
        (repetition, suite) for repetition in range(options.repeat) for suite in options.suites
    ]
    for index, (repetition, suite) in enumerate(rounds):
        busy = busy_percent(options.cores)
        busiest = max(busiest, busy)
        note = f"; others use {busy:.0f} % of a core, figures are suspect" if busy > BUSY else ""
        say(f"[{index + 1}/{len(rounds)}] {suite}, repetition {repetition + 1}{note}")
        floors = (*FLOORS, *PLANE_FLOORS) if suite.startswith(PLANE) else FLOORS
        for job in (*floors, suite):
            started = time.monotonic()
            try:
                samples += run_job(_plan(options, job, repetition))
            except PerfError as error:
                report.failures.append(f"{job}, repetition {repetition + 1}: {error}")
                say(f"    {job} FAILED: {error}")
            else:
                say(f"    {job} took {time.monotonic() - started:.1f} s")
    report.facts["busy_percent"] = round(busiest, 1)
    report.figures = summarise(samples, options.cores)
    return report


def _plan(options: Options, job: str, repetition: int) -> Plan:
    profile = f"{options.profile}.{repetition}" if options.profiled else ""
    return Plan(job, options.cores, options.router, options.scale, options.profiled, profile)


def busy_percent(cores: Sequence[int], seconds: float = 0.2) -> float:
    """How much of the busiest of ``cores`` others use while we do nothing; percent."""
    import psutil

    shares: list[float] = psutil.cpu_percent(interval=seconds, percpu=True)
    return max((shares[core] for core in cores if core < len(shares)), default=0.0)


def run_job(plan: Plan, deadline: float = JOB_DEADLINE, python: str = "") -> list[Sample]:
    """One repetition of one job in a fresh process of ``python``, by default our own interpreter.

    Raises PerfError with the worker's own words when it failed, or when it took longer than
    ``deadline`` seconds.
    """
    return run_line(plan.to_json(), deadline, python, quiet=plan.dynamo)


def run_line(
    line: str,
    deadline: float = JOB_DEADLINE,
    python: str = "",
    *,
    root: str = _ROOT,
    quiet: bool = False,
) -> list[Sample]:
    """As ``run_job``, of the plan that ``line`` says and by the perf code below ``root``."""
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    command = [python or sys.executable, "-m", "perf.worker", line]
    env = {**os.environ, "PYTHONPATH": path}
    # The wheel writes a line a request on stderr, whatever it is told; ours speaks for people.
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=noise if quiet else None,
            env=env,
            # What -m finds first; our own code is found where the caller stands, as ever.
            cwd=None if root == _ROOT else root,
        ) as worker,
    ):
        try:
            output, _ = worker.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            raise PerfError(f"took longer than {deadline:.0f} s and was ended") from None
        finally:
            _end(worker)
        return _samples(output, worker.returncode, noise)


def _samples(output: bytes, code: int, noise: IO[bytes]) -> list[Sample]:
    """What the worker printed; raises PerfError with its words when that is no answer."""
    lines = output.decode().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        noise.seek(0)
        last = noise.read().decode(errors="replace").splitlines()[-1:]
        words = "".join(f": {line}" for line in last)
        raise PerfError(f"the worker ended with exit code {code} and no answer{words}") from None
    if "error" in answer:
        raise PerfError(str(answer["error"]))
    return [Sample(*fields) for fields in answer["samples"]]


def _end(worker: subprocess.Popen[bytes]) -> None:
    """See that the worker is gone: asked first, so that its cluster leaves nothing behind."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGINT)
        try:
            worker.wait(timeout=10)
        except subprocess.TimeoutExpired:
            worker.kill()


def render(report: Report) -> str:
    """The table of a run; beside each figure that has a limit its ratio, and ok or MISSED."""
    verdicts = judge(report.figures, report.options.router)
    rows = []
    for figure in report.figures:
        verdict = verdicts.get(figure.key)
        values = [number(value) for value in (figure.median, figure.min, figure.max)]
        rows.append([*figure.key, *values, figure.unit, verdict.text if verdict else ""])
    text = table(["workload", "metric", "median", "min", "max", "unit", "against its floor"], rows)
    missed = sum(not verdict.ok for verdict in verdicts.values())
    cores = ",".join(map(str, report.options.cores))
    text += (
        f"\ncores {cores}, router {report.options.router}, {report.options.repeat} runs of each; "
        f"{len(verdicts) - missed} of {len(verdicts)} limits held\n"
    )
    if report.options.scale != 1.0:
        text += f"scale {report.options.scale}: a smoke test, no figure of it may be quoted\n"
    return text + "".join(f"FAILED {failure}\n" for failure in report.failures)
