"""Lines of the log that nobody has asked for in another form."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
from actors.kernel.lines import name_lines
{first}
name_lines({name!r})
ours, other = logging.getLogger("callhome.net"), logging.getLogger("callhomes")
ours.warning("a connection of %s is turned away", "x")
ours.warning("router: cannot see it")
ours.warning("router (pid 7) dropped it")
ours.info("never seen")
other.warning("not ours")
"""


def said(name: str, first: str = "") -> list[str]:
    program = PROGRAM.format(name=name, first=first)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr.splitlines()


def test_each_line_of_ours_says_once_who_says_it() -> None:
    assert said("router") == [
        "callhome: router: a connection of x is turned away",
        "callhome: router: cannot see it",
        "callhome: router (pid 7) dropped it",
        "not ours",
    ]


def test_the_command_line_has_no_name() -> None:
    assert said("")[:2] == [
        "callhome: a connection of x is turned away",
        "callhome: router: cannot see it",
    ]


def test_who_has_set_up_logging_keeps_it() -> None:
    first = "logging.basicConfig(format='%(name)s|%(message)s')"
    assert said("router", first)[0] == "callhome.net|a connection of x is turned away"
