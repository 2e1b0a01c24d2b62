"""Options and help of ``callhome health``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final

_TEXT: Final = """\
Says whether nodes are live (their own process works) and ready (every actor is up, no engine is
frozen, stalled or unready, the node does not stop), with a line for each reason and what to do.
Meant for probes: it answers within --timeout, also when a node hangs.
"""
_END: Final = """\
examples:
  callhome health                                 all nodes of this machine, both verdicts
  callhome health --ready --node a                may node a get traffic? (readiness probe)
  callhome health --live --node a                 must it be started anew? (liveness probe)
  callhome health --instance demo.shout.generate-0
  callhome health --json | jq .reasons            one JSON object a node

exit codes: 0 yes, for all that was asked; 1 no, or no such node runs; 2 wrong usage
A node that is starting, or stops, is live and not ready. What cannot be reached elsewhere (etcd, a
peer) makes nobody unready: it is a note.
"""


def add_health(
    add: Callable[[str, str, str, str, str], ArgumentParser], seconds: Callable[[str], float | None]
) -> None:
    """Add the command; called by the parser. ``seconds`` reads a time."""
    health = add("health", "health", "whether nodes are live and ready", _TEXT, _END)
    which = health.add_mutually_exclusive_group()
    which.add_argument("--live", action="store_true", help="only whether they are live")
    which.add_argument("--ready", action="store_true", help="only whether they are ready")
    which.add_argument("--instance", metavar="ID|NAME", help="only whether this engine is ready")
    health.add_argument("--json", action="store_true", help="one line of JSON a node")
    health.add_argument(
        "--timeout", type=seconds, default=2.0, metavar="SECONDS", help="for the answer (2)"
    )
