"""Addresses for tests that must know where something will listen before it does."""

from __future__ import annotations

import itertools
import os
import random
import socket

#: Ports below those that the system hands out by itself (32768 on, as Linux comes), of which every
#: one of up to eight workers of pytest has its own.
_FIRST, _SHARE = 16_000, 2_000
_mine = _FIRST + _SHARE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8)
_ports = itertools.cycle(random.sample(range(_mine, _mine + _SHARE), _SHARE))


def free_address() -> str:
    """``127.0.0.1:port`` at which nothing listens, and which nobody else is given."""
    for port in itertools.islice(_ports, _SHARE):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
    raise AssertionError(f"all ports from {_mine} to {_mine + _SHARE} are taken")
