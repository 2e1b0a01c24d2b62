"""Which cores a node may use, which actor runs on which, and whether it really does.

``read_machine`` looks, ``parse_cores`` and ``plan`` decide, ``pin`` and ``threads_outside`` act
and check. Called by the command line, the launcher and perf. Every mistake is a ``SpecError`` that
names the cores there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from actors.cluster.spec import NodeSpec
from actors.errors import SpecError

#: Names of actors that a line shows.
_NAMED = 8
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


class Machine(NamedTuple):
    """What this process may use of the machine.

    ``cores`` are the permitted core numbers, ``online`` how many the machine has, ``physical`` how
    many of them are no hyper-threads (None: unknown). ``quota`` is a container's share in cores
    (None: no limit). ``memory`` is the machine's in bytes.
    """

    cores: tuple[int, ...]
    online: int
    physical: int | None
    quota: float | None
    memory: int


def read_machine() -> Machine:
    """The machine as this process sees it: affinity mask, container quota, cores and memory."""
    import psutil

    cores = permitted()
    return Machine(
        cores=cores,
        online=psutil.cpu_count() or len(cores),
        physical=psutil.cpu_count(logical=False),
        quota=cpu_quota(),
        memory=int(psutil.virtual_memory().total),
    )


def permitted() -> tuple[int, ...]:
    """The cores that this process may run on, in ascending order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_quota(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """The smallest CPU quota of this process's control groups, in cores; None: there is none."""
    try:
        lines = Path(membership).read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = Path(root)
        elif "cpu" in controllers.split(","):
            base = Path(root) / "cpu"
        else:
            continue
        place = base / path.lstrip("/")
        # Inside a container the path may be the host's and lead nowhere; the base still counts.
        for folder in [place, *place.parents]:
            if folder == base or base in folder.parents:
                quotas += _quota_of(folder)
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return []
    if quota == "max" or int(quota) <= 0 or int(period) <= 0:
        return []
    return [int(quota) / int(period)]


def show(cores: Collection[int]) -> str:
    """Core numbers as people write them: ``0-3,6``."""
    parts: list[str] = []
    run: list[int] = []
    for core in [*sorted(cores), None]:
        if run and core != run[-1] + 1:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if core is not None:
            run.append(core)
    return ",".join(parts)


def parse_cores(text: str, available: Sequence[int] | None = None) -> tuple[int, ...]:
    """Core numbers out of ``"0,1"`` or ``"0-3,6"``, in the order written.

    Raises SpecError for anything else, for a core written twice and for one that does not exist or
    is not permitted to this process; ``available`` is ``permitted()`` by default.
    """
    there = permitted() if available is None else available
    hint = f"available: {show(there)}"
    cores: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise SpecError(f"cores: {text!r} is not allowed; expected '0,1' or '0-3' ({hint})")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SpecError(f"cores: {part.strip()!r} runs backwards ({hint})")
        cores += range(first, last + 1)
    if len(set(cores)) < len(cores):
        raise SpecError(f"cores: {text!r} names a core twice ({hint})")
    _refuse_absent(cores, there, "cores")
    return tuple(cores)


def _refuse_absent(cores: Sequence[int], there: Collection[int], key: str) -> None:
    absent = [core for core in cores if core not in there]
    if absent:
        many = len(absent) > 1
        raise SpecError(
            f"{key}: {'cores' if many else 'core'} {show(absent)} "
            f"{'do' if many else 'does'} not exist or {'are' if many else 'is'} not permitted to "
            f"this process (available: {show(there)})"
        )


def plan(
    node: NodeSpec,
    cores: Sequence[int] | None = None,
    available: Sequence[int] | None = None,
) -> dict[str, tuple[int, ...] | None]:
    """The cores of every actor of ``node`` by its name; None for one that is not pinned.

    An actor with ``cpus`` of its own gets these. With ``cores``, the others are spread over them:
    routers and the ingress on the first, engines and users' actors in turn over the rest, all on
    the first if there is no other. Without, they run anywhere; so do actors in the caller's process
    in either case.
    Raises SpecError for ``cpus`` outside ``cores``, or absent from ``available`` (``permitted()``).
    """
    there = permitted() if available is None else available
    if cores is not None:
        if not cores:
            raise SpecError(f"cores: none given (available: {show(there)})")
        _refuse_absent(cores, there, "cores")
    rest = list(cores[1:] or cores) if cores else []
    turn = 0
    planned: dict[str, tuple[int, ...] | None] = {}
    for name, role, spec in node.instances():
        if spec.cpus is not None:
            wanted = tuple(spec.cpus)
            _refuse_absent(wanted, there, f"{name}.cpus")
            outside = [core for core in wanted if cores is not None and core not in cores]
            if outside:
                raise SpecError(
                    f"{name}.cpus: {show(outside)} lies outside the given cores "
                    f"{show(cores or ())}; change cpus in the spec or give more cores"
                )
            planned[name] = wanted
        elif cores is None or spec.place == "here":
            planned[name] = None
        elif role in ("router", "ingress"):
            planned[name] = (cores[0],)
        else:
            planned[name] = (rest[turn % len(rest)],)
            turn += 1
    return planned


def told(
    planned: Mapping[str, Sequence[int] | None],
    processes: int,
    quota: float | None,
    there: Sequence[int],
) -> list[str]:
    """The plan in words, for who starts a node: who runs where, and what stands against it.

    ``processes`` are those that the node will have, ``quota`` is ``cpu_quota()`` and ``there``
    ``permitted()``.
    """
    by_cores: dict[tuple[int, ...], list[str]] = {}
    for name, own in planned.items():
        if own is not None:
            by_cores.setdefault(tuple(own), []).append(name)
    lines = []
    for own, names in by_cores.items():
        rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        many = "cores" if len(own) > 1 else "core"
        lines.append(f"{many} {show(own)}: {', '.join(names[:_NAMED])}{rest}")
    used = len({core for own in by_cores for core in own})
    pinned = sum(map(len, by_cores.values()))
    if pinned > used:
        one = used == 1
        lines.append(
            f"{pinned} actors share {used} {'core' if one else 'cores'} "
            f"({show(there)} permitted); permit more, give more with cores, or start fewer"
        )
    if quota is not None and min(processes, used or len(there)) > quota:
        lines.append(
            f"a quota (cpu.max of the control group) allows {quota:g} cores' worth of time, and "
            f"{processes} processes are started on {used or len(there)} cores: they are throttled "
            "together; raise the container's CPU limit, or start fewer replicas"
        )
    return lines


def pin(cores: Collection[int]) -> None:
    """Keeps this process on ``cores``; call it before NumPy or ZeroMQ have started threads.

    Raises SpecError when the machine does not grant exactly these.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise SpecError(f"cores: cannot run on {show(cores)}: {error.strerror}") from error
    if set(permitted()) != set(cores):
        raise SpecError(f"cores: asked for {show(cores)}, got {show(permitted())}")


def threads_outside(pid: int, cores: Collection[int]) -> list[str]:
    """Threads of a process that may run outside ``cores``, each with its name and its own cores."""
    found: list[str] = []
    for task in sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/task")):
        try:
            own = os.sched_getaffinity(task)
            name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
        except (OSError, ProcessLookupError):  # it has just ended
            continue
        if not own <= set(cores):
            found.append(f"{name} ({task}) on {show(own)}")
    return found
