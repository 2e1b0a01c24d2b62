"""The command ``callhome``: start a node, look at it, talk to its endpoints, stop it.

What is printed on stdout is data only; all else goes to stderr. ``callhome COMMAND --help`` shows
examples, ``actors.cli.command`` the exit codes.
"""

from __future__ import annotations

from actors.cli.command import main

__all__ = ["main"]
