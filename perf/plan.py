"""What one repetition of one job is told: its cores, where the router is, how much to do."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

#: What stands before a suite's name when it runs over two nodes, or with Dynamo's own wheel.
PLANE = "plane."
DYNAMO = "dynamo."


class PerfError(Exception):
    """A run cannot give an honest figure; the text says why and what to do."""


class CoreNotOurs(PerfError):
    """A core of ``--cores`` does not exist, is not permitted, or a process did not stay on it."""


@dataclass(frozen=True)
class Plan:
    """One repetition of one job, as the harness hands it to ``perf.worker`` on its command line.

    ``job`` is a suite or a floor; the client and a router run on the first core, engines on the
    second (on the first, when only one is given). ``plane.`` before a suite's name means two nodes
    on loopback: client and router as before, the engines behind an ingress of their own node, which
    shares their core. ``dynamo.`` means the client and worker of Dynamo's wheel, each on its core.
    ``scale`` multiplies the repetition counts: anything but 1.0 is for smoke tests. ``profile`` is
    a file prefix for cProfile dumps, ``profiled`` the side that writes them.
    ``loop`` is that of the wheel's processes.
    """

    job: str
    cores: tuple[int, ...]
    router: str = "process"
    scale: float = 1.0
    profiled: str = ""
    profile: str = ""
    loop: str = "asyncio"

    @property
    def plane(self) -> bool:
        """True when the engines are on another node."""
        return self.job.startswith(PLANE)

    @property
    def suite(self) -> str:
        """Name of the workloads: the job without its road."""
        return self.job.removeprefix(PLANE).removeprefix(DYNAMO)

    @property
    def dynamo(self) -> bool:
        """True when client and engines are those of Dynamo's wheel."""
        return self.job.startswith(DYNAMO)

    @property
    def client_core(self) -> int:
        """Core of the client, and of the router."""
        return self.cores[0]

    @property
    def engine_core(self) -> int:
        """Core of the engine."""
        return self.cores[1] if len(self.cores) > 1 else self.cores[0]

    def count(self, full: int, least: int = 1) -> int:
        """``full`` repetitions of something, scaled, but never fewer than ``least``."""
        return max(least, round(full * self.scale))

    def to_json(self) -> str:
        """The plan as one JSON line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Plan:
        """The plan that ``to_json`` wrote."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**{**fields, "cores": tuple(fields["cores"])})


def runner(loop: str) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """What runs a coroutine on ``loop``: ``asyncio``, or the ``uvloop`` that the wheel brings."""
    name = "uvloop" if loop == "uvloop" else "asyncio"
    run: Callable[[Coroutine[Any, Any, Any]], Any] = importlib.import_module(name).run
    return run


def pin_to(core: int) -> None:
    """Put every thread of this process, and all it starts from now on, on one core.

    Raises CoreNotOurs when the core does not exist or the process may not use it.
    """
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                os.sched_setaffinity(int(thread), {core})
    except OSError as error:
        allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise CoreNotOurs(
            f"cannot pin to core {core} ({error}); this process may use {allowed}"
        ) from None
