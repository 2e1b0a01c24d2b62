"""``python -m perf compare --base REV``: two checkouts, measured in turns.

Each revision is unpacked into a folder of its own below a temporary one, the working tree copied as
it stands; nothing is written into the tree or into ``.git``. The perf code of each checkout runs
its own workloads, by what both of them know of a Plan.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from perf.figures import Sample
from perf.harness import BUSY, busy_percent, run_line
from perf.pairs import Verdict, verdicts
from perf.plan import PerfError, Plan

#: Stands for the tree as it is, with what has not been committed.
WORKING_TREE: Final = ""
_GIT_DEADLINE: Final = 120.0
_ASK: Final = (
    "import dataclasses, json, actors, perf.plan, perf.worker;"
    "print(json.dumps([[f.name for f in dataclasses.fields(perf.plan.Plan)],"
    " actors.__file__, perf.plan.__file__]))"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What to compare: two revisions (``WORKING_TREE``: as it stands), suites, how often."""

    base: str
    head: str
    suites: tuple[str, ...]
    cores: tuple[int, ...]
    pairs: int = 10
    scale: float = 1.0
    router: str = "process"


@dataclass
class Compared:
    """What was seen: a verdict a figure, the jobs that failed, and which commits these were."""

    base: str = ""
    head: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    busiest: float = 0.0
    interrupted: bool = False


@dataclass(frozen=True)
class Checkout:
    """One revision in a folder of its own; ``fields`` are those of its Plan."""

    name: str
    root: str
    fields: frozenset[str]


def compare(wanted: Wanted, say: Say, tree: Path | None = None) -> Compared:
    """Measure both, in turns: base first in one pair, head in the next. ``tree`` is the repository,
    by default the one that this file stands in.

    Raises PerfError for a revision that does not exist, that cannot run one of the suites, or whose
    own code would not be what runs. Ctrl-C ends it early, with what there is so far.
    """
    repository = tree or Path(__file__).resolve().parent.parent
    with _terminated(), tempfile.TemporaryDirectory(prefix="callhome-compare-") as folder:
        base = _checkout(repository, wanted.base, Path(folder, "base"))
        head = _checkout(repository, wanted.head, Path(folder, "head"))
        for each in (base, head):
            _check_suites(each, wanted.suites)
        result = Compared(base.name, head.name)
        pairs: dict[str, list[tuple[list[Sample], list[Sample]]]] = {
            suite: [] for suite in wanted.suites
        }
        try:
            _measure(wanted, base, head, pairs, result, say)
        except KeyboardInterrupt:
            result.interrupted = True
        result.verdicts = verdicts(pairs)
        return result


def _measure(
    wanted: Wanted,
    base: Checkout,
    head: Checkout,
    pairs: dict[str, list[tuple[list[Sample], list[Sample]]]],
    result: Compared,
    say: Say,
) -> None:
    common = base.fields & head.fields
    for number in range(wanted.pairs):
        order = (base, head) if number % 2 == 0 else (head, base)
        for suite in wanted.suites:
            busy = busy_percent(wanted.cores)
            result.busiest = max(result.busiest, busy)
            note = f"; others use {busy:.0f} % of a core" if busy > BUSY else ""
            first = "base" if order[0] is base else "head"
            say(f"[pair {number + 1}/{wanted.pairs}] {suite}, {first} first{note}")
            line = _line(Plan(suite, wanted.cores, wanted.router, wanted.scale), common)
            try:
                samples = {id(side): run_line(line, root=side.root) for side in order}
            except PerfError as error:
                result.failures.append(f"{suite}, pair {number + 1}: {error}")
                say(f"    FAILED: {error}")
            else:
                pairs[suite].append((samples[id(base)], samples[id(head)]))


def _line(plan: Plan, common: frozenset[str]) -> str:
    """The plan in the words that both revisions know."""
    return json.dumps({key: value for key, value in asdict(plan).items() if key in common})


def _checkout(repository: Path, revision: str, folder: Path) -> Checkout:
    folder.mkdir()
    if revision == WORKING_TREE:
        name = "working tree"
        _copy_tree(repository, folder)
    else:
        name = _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        if not name:
            raise PerfError(f"{revision!r} is no revision of {repository}; see git log")
        _unpack(repository, name, folder)
        name = f"{revision} ({name[:10]})"
    return Checkout(name, str(folder), _fields(name, folder))


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_DEADLINE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PerfError(f"git {arguments[0]} does not work here: {error}") from error
    if done.returncode and done.stderr:
        raise PerfError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode().strip() if not done.returncode else ""


def _unpack(repository: Path, commit: str, folder: Path) -> None:
    archive = folder.with_suffix(".tar")
    _git(repository, "archive", "--format=tar", f"--output={archive}", commit)
    shutil.unpack_archive(archive, folder, "tar")
    archive.unlink()


def _copy_tree(repository: Path, folder: Path) -> None:
    """All that git knows or would take in, as it stands now."""
    names = _git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # removed, or a submodule
            shutil.copy2(repository / name, target, follow_symlinks=False)


def _fields(name: str, folder: Path) -> frozenset[str]:
    """Fields of the checkout's Plan; raises PerfError unless its own code is what runs there."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_DEADLINE,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise PerfError(f"{name} has no perf suites that can be run: {''.join(last)}")
    fields, *files = json.loads(done.stdout)
    for file in files:
        if not Path(file).resolve().is_relative_to(folder.resolve()):
            raise PerfError(f"{name}: {file} would run in place of its own code; is it installed?")
    return frozenset(fields)


def _check_suites(checkout: Checkout, suites: tuple[str, ...]) -> None:
    for suite in suites:
        module = suite.removeprefix("plane.")
        if not Path(checkout.root, "perf", "suites", f"{module}.py").exists():
            raise PerfError(f"{checkout.name} has no suite {suite!r}; leave it out (--suite)")


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM cleans up, too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def facts(wanted: Wanted, result: Compared) -> dict[str, Any]:
    """The comparison as data, for ``--json``."""
    rows = []
    for each in result.verdicts:
        row = {**each._asdict(), "interval": each.interval._asdict()}
        row["base"] = None if math.isnan(each.base) else each.base
        row["head"] = None if math.isnan(each.head) else each.head
        rows.append(row)
    return {
        "base": result.base,
        "head": result.head,
        "wanted": asdict(wanted),
        "busy_percent": round(result.busiest, 1),
        "figures": rows,
        "failures": result.failures,
        "interrupted": result.interrupted,
    }
