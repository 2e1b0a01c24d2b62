"""Runs one command and turns its outcome into an exit code and at most one line of error.

Exit codes: 0 done; 1 a typed error (the node died, the engine raised, a limit ran out); 2 wrong
usage, spec or setting; 128 + N ended by signal N (130 is Ctrl-C; 141: nobody reads stdout).
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from actors.cli.parser import parser
from actors.cli.show import discard_stdout
from actors.errors import CallHomeError, EngineError, SpawnError, SpecError, Unsupported
from actors.kernel.descriptors import fill_descriptors
from actors.kernel.lines import name_lines

FAILED = 1
USAGE = 2


class Interrupted(Exception):
    """A signal ended the command; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``callhome`` with these arguments (those of the process by default); the exit code.

    Raises SystemExit for ``--help`` and for wrong usage, as argparse does.
    """
    try:
        return _main(argv)
    except KeyboardInterrupt:  # in whatever phase
        return 128 + signal.SIGINT


def _main(argv: Sequence[str] | None) -> int:
    fill_descriptors()
    if sys.stderr is None:  # closed by the shell: nobody wants to hear of mistakes
        sys.stderr = io.StringIO()
    options = _parsed(argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows fewer characters than a text has must not end the command.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    name_lines()
    try:
        return _run(options)
    except CallHomeError as error:
        _report(error, options)
        return USAGE if isinstance(error, SpecError) else FAILED
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except BrokenPipeError:
        discard_stdout()
        return 128 + signal.SIGPIPE


def _parsed(argv: Sequence[str] | None) -> Namespace:
    """The options; names of actors may stand on both sides of them, which argparse cannot tell."""
    found = parser()
    options, more = found.parse_known_args(argv)
    if more and options.command == "restart" and not any(each.startswith("-") for each in more):
        options.actors += more
    elif more:
        found.error(f"unrecognized arguments: {' '.join(more)}")
    return options


def _run(options: Namespace) -> int:
    # Only the module of the command that runs: `--help` and `ps` need no NumPy, no launcher.
    module = importlib.import_module(f"actors.cli.{options.module}")
    code: int = getattr(module, options.command)(options)
    return code


def _report(error: CallHomeError, options: Namespace) -> None:
    if options.traceback:
        traceback.print_exception(error)
        if there := error.details.get("traceback"):
            sys.stderr.write(f"\nin the other process:\n{there.rstrip()}\n\n")
    text = " ".join(str(error).split())
    if isinstance(error, EngineError) and error.remote_type:
        text = f"the engine raised {error.remote_type}: {text}"
    sys.stderr.write(f"callhome: error: {text}{_hint(error, options)}\n")


def _hint(error: CallHomeError, options: Namespace) -> str:
    """What the command line can add to an error that was worded for Python."""
    if isinstance(error, Unsupported) and "use open()" in str(error):
        return f" (here: callhome chat {options.endpoint})"
    if isinstance(error, Unsupported) and "use call()" in str(error):
        return f" (here: callhome call or callhome stream {options.endpoint})"
    remote = isinstance(error, EngineError | SpawnError) and error.details.get("traceback")
    return " (--traceback shows where)" if remote and not options.traceback else ""
