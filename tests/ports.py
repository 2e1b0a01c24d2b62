"""Addresses for tests that must know where something will listen before it does."""

from __future__ import annotations

import socket


def free_address() -> str:
    """``127.0.0.1:port`` at which nothing listens; the system hands out others for a while."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
