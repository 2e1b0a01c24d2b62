"""Becomes a program in a host's network: ``python -S -E enter.py NETWORK PROGRAM ARGUMENT...``.

The program takes the place of this one, so its pid, its signals and its end are its own. It dies
with the thread that has started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNET = 0x4000_0000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def enter(network: str) -> None:
    """Move the calling thread into a network, given as the path of a descriptor of it."""
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}", network)
    finally:
        os.close(descriptor)


def main() -> None:
    network, program = sys.argv[1], sys.argv[2:]
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # After it: whoever has started us and died before has taken the networks along.
    enter(network)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
