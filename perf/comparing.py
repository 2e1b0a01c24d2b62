"""The command line of ``python -m perf compare``: two files, or two revisions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perf import pairs, revisions
from perf.compare import comparison
from perf.figures import from_lines
from perf.harness import SUITES
from perf.plan import PerfError

_ABOUT: Final = """\
Two files: prints the ratio of every figure that two `run --json` files share. A figure is better or
worse only when the ranges of the two runs do not touch; `by floor` takes out a machine that was
slower as a whole.

Two revisions (--base): unpacks both into temporary folders (without --head the working tree as it
stands; your tree and .git are not touched) and runs the suites in turns, base first in one pair and
head first in the next, pinned as `run` does. Of every figure it prints the median of the ratios of
the pairs, above 1 when the head is better, with an interval of 95 % or more made of order
statistics, and a word: better or worse when the whole interval says so. The last line of a suite is
the geometric mean of its figures.

Of forty figures one or two are "better" or "worse" by chance: look at an A/A run (the same revision
twice) on your machine first. The two revisions run their own workloads: a figure whose workload was
changed in between says nothing, and one that only one of them has is left out.
"""
_EXAMPLES: Final = """\
examples:
  python -m perf compare before.jsonl after.jsonl
  python -m perf compare --base HEAD  # what my changes do
  python -m perf compare --base v0.1 --head main --suite unary --pairs 20 --json out.json
  python -m perf compare --base main --min-ratio 0.95         # exit 1 when something is slower
  python -m perf compare --base HEAD --head HEAD              # A/A: how much of it is noise
"""
_SUITES: Final = ("unary", "stream", "frames")


def add_compare(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    cores: Callable[[str], tuple[int, ...]],
    positive: Callable[[str], int],
) -> None:
    """Add the command to ``python -m perf``."""
    command = commands.add_parser(
        "compare",
        help="two revisions in turns, or ratios of two runs",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("before", type=Path, nargs="?", help="file of an earlier run --json")
    command.add_argument("after", type=Path, nargs="?", help="file of a later one")
    command.add_argument("--base", metavar="REV", help="what to compare with, as git names it")
    command.add_argument(
        "--head", metavar="REV", default=revisions.WORKING_TREE, help="(the working tree)"
    )
    command.add_argument(
        "--suite",
        type=_suites,
        default=_SUITES,
        metavar="unary,...",
        help=f"some of {', '.join(SUITES)} ({','.join(_SUITES)})",
    )
    command.add_argument("--pairs", type=positive, default=10, help="runs of each side (10)")
    command.add_argument(
        "--cores", type=cores, default=(0, 1), metavar="0,1", help="cores to pin to (0,1)"
    )
    command.add_argument(
        "--router", choices=("here", "process"), default="process", help="as of run (process)"
    )
    command.add_argument(
        "--min-ratio",
        type=float,
        default=0.0,
        metavar="0.95",
        help="exit 1 when a suite as a whole is below, or a figure that is surely worse",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was seen as JSON")
    command.add_argument(
        "--scale", type=float, default=1.0, help="multiply the amount of work; for smoke tests"
    )


def _suites(text: str) -> tuple[str, ...]:
    suites = tuple(dict.fromkeys(text.split(",")))
    if wrong := [suite for suite in suites if suite not in SUITES]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(SUITES)}")
    return suites


def compare(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Print the comparison; the exit code. Raises PerfError, OSError and ValueError."""
    if arguments.base is None:
        if arguments.after is None:
            raise PerfError("compare takes two files, or --base REV; see compare --help")
        before, after = (
            from_lines(path.read_text())[0] for path in (arguments.before, arguments.after)
        )
        sys.stdout.write(comparison(before, after))
        return 0
    if arguments.before is not None:
        raise PerfError("compare takes two files or --base REV, not both")
    if arguments.json is not None:
        arguments.json.touch()  # a path that cannot be written fails now, not after the run
    wanted = revisions.Wanted(
        arguments.base,
        arguments.head,
        arguments.suite,
        arguments.cores,
        arguments.pairs,
        arguments.scale,
        arguments.router,
    )
    result = revisions.compare(wanted, say)
    sys.stdout.write(_rendered(wanted, result, arguments.min_ratio))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(revisions.facts(wanted, result), indent=1) + "\n")
    if result.interrupted:
        return 130
    low = any(pairs.below(each, arguments.min_ratio) for each in result.verdicts)
    return 1 if result.failures or low else 0


def _rendered(wanted: revisions.Wanted, result: revisions.Compared, least: float) -> str:
    text = pairs.render(result.verdicts, least)
    cores = ",".join(map(str, wanted.cores))
    text += f"base {result.base}, head {result.head}; cores {cores}, router {wanted.router}\n"
    if result.busiest > 20.0:
        text += f"others used up to {result.busiest:.0f} % of a core: read ratios only\n"
    if wanted.scale != 1.0:
        text += f"scale {wanted.scale}: a smoke test, no figure of it may be quoted\n"
    if result.interrupted:
        text += "interrupted: what there was so far\n"
    return text + "".join(f"FAILED {failure}\n" for failure in result.failures)
