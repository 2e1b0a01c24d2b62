"""``python -m perf run``, ``compare``, ``versus``, ``fuzz`` and ``chaos``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from perf import versus
from perf.chaos.command import add_chaos, chaos
from perf.checks import judge
from perf.comparing import add_compare, compare
from perf.figures import to_lines
from perf.fuzz import add_fuzz, fuzz
from perf.harness import SUITES, Options, render, run
from perf.plan import PerfError, Plan

_RUN = """\
Runs suites on pinned cores and prints a table. The client (and the router) run on the first core,
engines on the second. Every repetition is a fresh set of processes; floors (a bare ZeroMQ
ping-pong, bare msgpack) run before each, so that figures can be read as ratios.

suites:
  unary    one request, one answer: latency alone (c1), calls a second with 64 in flight (c64)
  stream   small items a second over 1, 32 and 256 streams of 1000 items
  bidi     round trips a second through one two-way stream, 1 and 64 under way
  frames   arrays of 64 KiB to 64 MiB in shared memory, copied in or written in place
  cancel   from stop() or leaving `async with` until the engine knows, alone and beside busy streams
  startup  seconds from launch until four engines have answered; idle memory of an engine
  agentic  512 requests in flight over four engines, each with 30,000 to 60,000 token ids as a
           list or an int32 array, 100 small items back: requests a second, p50, p99
  routing  what one selection costs in each mode with 10, 1,000 and 10,000 workers; how evenly each
           mode spreads calls that last 20 ms or 2 s, through 1, 2 and 4 routers

over two nodes on loopback (client and router on the first core, ingress and engine on the second):
  plane.unary, plane.stream, plane.bidi, plane.frames, plane.cancel: the same workloads; beside
  them runs floor.loopback, a plain blocking TCP socket that moves 8 MiB pieces
  plane.memory: what each of 512 open streams adds to router and ingress

membership (needs etcd in PATH): how soon a new worker gets its first request, a dead one and a node
that is silent none, beside the router and on nodes found in etcd; what 1,000 workers in a directory
and in etcd cost a router
"""
_RUN_END = """\
examples:
  python -m perf run --suite unary --cores 0,1
  python -m perf run --suite all --cores 0,1 --repeat 5 --json after.jsonl
  python -m perf run --suite stream --repeat 1 --profile engine   # perf-profile.0.engine.PID.pstats
"""
_VERSUS = f"""\
Runs suites by callhome, over two nodes (plane.) or inside one, and by the client and worker of
Dynamo's own wheel (ai-dynamo-runtime {versus.VERSION}), one right after the other, on the same
cores. Prints both, and the median of the ratios (callhome / dynamo) against the limits. The wheel
runs the very same suites; its client has no call for two-way streams, so there is no plane.bidi
here.

The wheel needs an interpreter of its own, named by --python or ${versus.VARIABLE}:
  python3 -m venv dynamo-venv
  dynamo-venv/bin/pip install ai-dynamo-runtime=={versus.VERSION}

What to know when reading: arrays of plane.frames are bytes to Dynamo, which has no arrays; the
token ids of agentic.array are a list there, as its users send them. A router of Dynamo's is a part
of its client, so the routers of routing.spread are client processes there. A stopped stream of
Dynamo's ends without its last item, and leaving a stream early is a stop there. The wheel runs on
asyncio's own loop, as callhome does; --loop uvloop gives it the faster one.
"""
_VERSUS_END = """\
examples:
  python -m perf versus dynamo --python dynamo-venv/bin/python --suite plane.unary,plane.stream
  python -m perf versus dynamo --repeat 5 --loop uvloop
"""


def _cores(text: str) -> tuple[int, ...]:
    from actors.cluster.cores import parse_cores
    from actors.errors import SpecError

    try:
        return parse_cores(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line of ``python -m perf``."""
    shape = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="python -m perf", description="Perf suites of callhome.")
    commands = top.add_subparsers(dest="command", required=True)
    runs = commands.add_parser(
        "run",
        help="run suites on pinned cores",
        description=_RUN,
        epilog=_RUN_END,
        formatter_class=shape,
    )
    runs.add_argument(
        "--suite", choices=(*SUITES, "all"), action="append", help="may be repeated (all)"
    )
    runs.add_argument(
        "--cores", type=_cores, default=None, metavar="0,1", help="cores to pin to (0,1)"
    )
    runs.add_argument("--repeat", type=_positive, default=3, help="repetitions of each suite (3)")
    runs.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a figure")
    runs.add_argument(
        "--router",
        choices=("here", "process"),
        default="process",
        help="router in the client's process, or in its own on the client's core (process)",
    )
    runs.add_argument("--strict", action="store_true", help="exit 1 when a limit is missed")
    runs.add_argument(
        "--profile",
        choices=("client", "engine"),
        default="",
        help="dump cProfile statistics of one side",
    )
    runs.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="multiply the amount of work; below 1 for smoke tests only",
    )
    _add_versus(commands)
    add_fuzz(commands)
    add_chaos(commands)
    add_compare(commands, _cores, _positive)
    return top


def _add_versus(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "versus",
        help="callhome beside Dynamo in the same run",
        description=_VERSUS,
        epilog=_VERSUS_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("other", choices=("dynamo",), help="what to compare with")
    command.add_argument(
        "--suite",
        type=_versus_suites,
        default=versus.SUITES,
        metavar="plane.unary,...",
        help=f"some of {', '.join(versus.SUITES)} (all)",
    )
    command.add_argument(
        "--python",
        default=os.environ.get(versus.VARIABLE, ""),
        metavar="PATH",
        help=f"interpreter that has the wheel (${versus.VARIABLE})",
    )
    command.add_argument(
        "--cores", type=_cores, default=None, metavar="0,1", help="cores to pin to (0,1)"
    )
    command.add_argument("--repeat", type=_positive, default=3, help="repetitions (3)")
    command.add_argument(
        "--loop", choices=("asyncio", "uvloop"), default="asyncio", help="loop of the wheel"
    )
    command.add_argument(
        "--scale", type=float, default=1.0, help="multiply the amount of work; for smoke tests"
    )
    command.add_argument("--strict", action="store_true", help="exit 1 when a limit is missed")


def _versus_suites(text: str) -> tuple[str, ...]:
    suites = tuple(dict.fromkeys(text.split(",")))
    if wrong := [suite for suite in suites if suite not in versus.SUITES]:
        raise argparse.ArgumentTypeError(
            f"{wrong[0]!r} is none of {', '.join(versus.SUITES)}"
            + (" (Dynamo's Python client cannot open two-way streams)" if "bidi" in text else "")
        )
    return suites


def _versus(arguments: argparse.Namespace) -> int:
    version = versus.probe(arguments.python)
    if version != versus.VERSION:
        _say(f"the wheel is {version}, the limits are those for {versus.VERSION}")
    plan = Plan("", arguments.cores or _cores("0,1"), scale=arguments.scale, loop=arguments.loop)
    pairs, failures = versus.measure(
        arguments.suite, plan, arguments.repeat, arguments.python, _say
    )
    facts = {
        "dynamo": version,
        "its loop": arguments.loop,
        "cores": ",".join(map(str, plan.cores)),
        "repetitions": arguments.repeat,
        "scale": arguments.scale,
    }
    sys.stdout.write(versus.render(pairs, facts, failures))
    missed = any(versus.judge(pair).endswith("MISSED") for pair in pairs)
    return 1 if failures or (arguments.strict and missed) else 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _run(arguments: argparse.Namespace) -> int:
    asked = arguments.suite or ["all"]
    suites = SUITES if "all" in asked else tuple(dict.fromkeys(asked))
    options = Options(
        suites,
        arguments.cores or _cores("0,1"),
        arguments.repeat,
        arguments.router,
        arguments.scale,
        arguments.profile,
        "perf-profile",
    )
    if arguments.json is not None:
        arguments.json.touch()  # a path that cannot be written fails now, not after the run
    report = run(options, _say)
    sys.stdout.write(render(report))
    if arguments.json is not None:
        arguments.json.write_text(to_lines(report.figures, report.facts))
    missed = any(not verdict.ok for verdict in judge(report.figures, options.router).values())
    return 1 if report.failures or (arguments.strict and missed) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 (a job failed; ``--strict``: a limit was missed), 2 for a wrong call."""
    top = parser()
    parsed = top.parse_args(arguments)
    try:
        if parsed.command == "run":
            return _run(parsed)
        if parsed.command == "versus":
            return _versus(parsed)
        if parsed.command == "chaos":
            return chaos(parsed)
        if parsed.command == "fuzz":
            code, text = fuzz(parsed, _say)
            sys.stdout.write(text)
            return code
        return compare(parsed, _say)
    except (OSError, ValueError, PerfError, argparse.ArgumentTypeError) as error:
        top.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
