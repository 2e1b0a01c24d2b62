"""The command line of ``python -m perf chaos``."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from perf.chaos.cast import LEAST
from perf.chaos.plan import DEEDS, TARGETS, Options, make
from perf.chaos.run import Result, Run, facts
from perf.plan import PerfError

_ABOUT: Final = """\
Streams of all shapes while everything around them dies, stops and comes back. A node with two
routers, eight engines (unary, stream, two-way, frames, forwarded frames, sync, tokens), an ingress
and a user's actor; a second node part of the time; clients in processes of their own, one of them
outside the node. Meanwhile actors and clients get SIGKILL, SIGTERM, or SIGSTOP with SIGCONT after
0.2 to 5 s, and streams are left, stopped, killed, cancelled by task and by id. (The node's own
process is spared: it takes everything with it, by design.)

Every item carries its stream and its number, and all its bytes follow from these. A stream must
bring its items in order, each once, to an end that says how many there were, or end in a typed
error. What else comes is a FAILURE: a clean end with an item missing, a wrong or repeated item, an
untyped exception, an error that nothing here explains, no end 10 s after the deadline. At the end
occupancy, permits, leases, tasks, threads, descriptors, memory, processes and files have to be back
to what they were after the warm-up.

All that is chosen (which stream when from whom, which signal when to whom, by role and index)
follows from the seed alone: the same seed and options give the same plan (see its digest, and
--plan). How far a stream is when a signal comes depends on the machine: a failure may need several
runs of its seed to show again.
"""
_EXAMPLES: Final = """\
examples:
  python -m perf chaos --minutes 2 --seed 1
  python -m perf chaos --minutes 10 --seed 7 --json chaos.json --plan plan.jsonl
  python -m perf chaos --minutes 1 --seed 3 --nodes 1 --every 0.2  # many signals
  python -m perf chaos --seed 3 --roles router,ingress --deeds stop  # only these
Ctrl-C ends a run in order and prints what was seen so far. Exit code: 0, or 1 after any failure.
"""


def add_chaos(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to ``python -m perf``."""
    command = commands.add_parser(
        "chaos",
        help="streams of all shapes while processes die, stop and come back",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--minutes", type=_above_zero, default=2.0, help="how long (2)")
    command.add_argument("--seed", type=int, default=1, help="what the plan follows from (1)")
    command.add_argument(
        "--engines", type=int, default=LEAST, help=f"engine processes, {LEAST} or more ({LEAST})"
    )
    command.add_argument(
        "--nodes", type=int, choices=(1, 2), default=2, help="2: a second one part of the time (2)"
    )
    command.add_argument("--clients", type=int, default=4, help="client processes, 2 or more (4)")
    command.add_argument("--rate", type=_above_zero, default=20.0, help="streams a second (20)")
    command.add_argument(
        "--every", type=_above_zero, default=0.5, help="seconds between signals, on average (0.5)"
    )
    command.add_argument(
        "--roles",
        type=lambda text: _some(text, TARGETS),
        default=tuple(TARGETS),
        metavar="engine,...",
        help=f"who gets signals: some of {', '.join(TARGETS)} (all)",
    )
    command.add_argument(
        "--deeds",
        type=lambda text: _some(text, DEEDS),
        default=tuple(DEEDS),
        metavar="stop,...",
        help=f"what is done to them: some of {', '.join(DEEDS)} (all)",
    )
    command.add_argument("--plan", type=Path, metavar="FILE", help="write the plan as JSON lines")
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was seen as JSON")


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _some(text: str, known: Collection[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
    return names


def chaos(arguments: argparse.Namespace) -> int:
    """Run it; the exit code."""
    if arguments.engines < LEAST or arguments.clients < 2:
        raise PerfError(f"chaos needs at least {LEAST} engines (--engines) and 2 clients")
    options = Options(
        arguments.seed,
        arguments.minutes * 60.0,
        arguments.engines,
        arguments.nodes,
        arguments.clients,
        arguments.rate,
        arguments.every,
        arguments.roles,
        arguments.deeds,
    )
    for path in (arguments.plan, arguments.json):
        if path is not None:
            path.touch()  # one that cannot be written fails now
    if arguments.plan is not None:
        arguments.plan.write_text("".join(f"{line}\n" for line in make(options).lines()))
    result = asyncio.run(_run(options))
    sys.stdout.write(render(result))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(facts(result), indent=1) + "\n")
    return 0 if result.ok else 1


async def _run(options: Options) -> Result:
    return await Run(options, _say).run()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def render(result: Result) -> str:
    """What was seen, for people."""
    tally, signals, options = result.tally, result.signals, result.plan.options
    text = tally.totals()
    log = signals.log if signals else []
    if signals is not None:
        sent = ", ".join(f"{key} {count}" for key, count in sorted(signals.counts.items()))
        text += f"signals: {sent or 'none'}; {signals.missed} found nobody\n"
    more = ", ".join(f"{key} {count}" for key, count in sorted(tally.statistics.items()))
    begun = sum(tally.outcomes.values())
    text += (
        f"{begun} of {len(result.plan.plays)} planned streams, {tally.items:,} items, "
        f"{tally.bytes / 1e9:.2f} GB in {result.seconds:.0f} s; {result.lives} client processes; "
        f"{more}\n"
    )
    text += tally.told(log)
    word = "interrupted; " if result.interrupted else ""
    text += (
        f"{word}seed {options.seed}, plan {result.plan.digest}: {len(tally.failures)} failures; "
        f"back to base after {result.waited:.1f} s\n"
    )
    return text
