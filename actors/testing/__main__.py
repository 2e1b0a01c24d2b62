"""``python -m actors.testing dispatch module:factory``: hold a dispatch against the suite.

Prints a line for each check; the exit code is 0 when all of them hold, 1 when one does not, 2 when
the dispatch cannot be found or made.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence

from actors.cluster import rules
from actors.cluster.entry import load_target
from actors.errors import CallHomeError
from actors.testing.checks import CHECKS, SKIPPED
from actors.testing.dispatch import PATIENCE, ROADS, DispatchCase, Factory, dispatch_case

_EPILOG = """\
examples:
  python -m actors.testing dispatch mine.dispatch:make
  python -m actors.testing dispatch ./mine.py:make --road local
  python -m actors.testing dispatch mine.dispatch:serve_suite --road own
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m actors.testing", description=__doc__)
    suites = parser.add_subparsers(dest="suite", required=True)
    dispatch = suites.add_parser(
        "dispatch",
        help="what every StreamingDispatch must do",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    dispatch.add_argument("factory", help="module:attribute or file.py:attribute")
    dispatch.add_argument(
        "--road",
        choices=ROADS,
        action="append",
        help="where the workers are; local and remote by default. own: the dispatch publishes the "
        "endpoints of actors.testing.engines.HANDLERS itself",
    )
    return parser


def _tell(verdict: str, road: str, name: str, text: str) -> None:
    sys.stdout.write(f"{verdict:<8}{road:<8}{name:<24}{text}\n")
    sys.stdout.flush()


async def _run(factory: Factory, road: str) -> int:
    """Run all checks of one road, with a new case after each that has failed; how many have."""
    failed = 0
    left = list(CHECKS)
    while left:
        async with dispatch_case(factory, road) as case:
            holds = True
            while left and holds:
                holds = await _holds(case, left.pop(0))
            failed += not holds
    return failed


async def _holds(case: DispatchCase, name: str) -> bool:
    """Run one check and tell its verdict; False when the case is of no more use."""
    if (case.road, name) in SKIPPED:
        _tell("skipped", case.road, name, SKIPPED[case.road, name])
        return True
    began = time.monotonic()
    try:
        async with asyncio.timeout(3 * PATIENCE):
            await CHECKS[name](case)
            await case.idle()
    except Exception as error:
        _tell("FAILED", case.road, name, f"{type(error).__name__}: {error}")
        return False
    _tell("ok", case.road, name, f"{time.monotonic() - began:.2f} s")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite that the command line names; the exit code."""
    given = _parser().parse_args(arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = load_target(rules.target(given.factory, "factory"))
    except CallHomeError as error:
        return _refused(f"{error}")
    except Exception as error:  # whatever importing it raises
        return _refused(f"{given.factory}: {type(error).__name__}: {error}")
    try:
        failed = sum(asyncio.run(_run(factory, road)) for road in given.road or ("local", "remote"))
    except CallHomeError as error:
        return _refused(f"{given.factory}: {error}")
    return 1 if failed else 0


def _refused(text: str) -> int:
    sys.stderr.write(f"actors.testing: {text}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
