"""Out of descriptors, in a process that has really none left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LONG, wait_until_sync
from transport.callhome import listener
from transport.wire.control import pack_handshake


class Requester:
    """The process of ``crowded.py``."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.callhome.crowded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": ""},
            text=True,
        )

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the requester has ended"
        return json.loads(line)

    def ask(self, command: str) -> Any:
        self.say(command)
        return self.hear()

    def call_home(self) -> socket.socket:
        """Await a call and make it; the connection."""
        info = self.ask("expect")
        host, _, port = info["address"].rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=LONG)
        sock.sendall(pack_handshake(info["subject"], "response"))
        return sock


@pytest.fixture
def requester() -> Iterator[Requester]:
    found = Requester()
    try:
        yield found
        found.say("end")
        assert found.process.wait(LONG) == 0
    finally:
        found.process.kill()
        found.process.communicate()


def test_b131_out_of_descriptors_in_accept(requester: Requester) -> None:
    with requester.call_home() as sock:
        assert "arrived" in requester.hear()
        address = sock.getpeername()
    requester.ask("limit 50")
    before = time.monotonic()
    crowd = [socket.create_connection(address, timeout=LONG) for _ in range(200)]
    wait_until_sync(lambda: requester.ask("report").get("accept.short", 0) > 8, LONG)
    after, took = requester.ask("report"), time.monotonic() - before
    # It costs no time: the pauses between two looks at the listener grow up to a second, and so
    # many looks cannot have come any sooner.
    first, longest = listener._PAUSES
    pauses = [min(first * 2**number, longest) for number in range(after["accept.short"] - 1)]
    assert took >= 0.9 * sum(pauses)
    assert after["accepted"] < 60
    assert after["lines"] <= 20
    # Descriptors come back: all that waited are taken, and a stream arrives within 2 s, for none
    # of the pauses is as long.
    assert max(listener._PAUSES) < 2
    for sock in crowd:
        sock.close()
    with requester.call_home():
        assert "arrived" in requester.hear()
    assert requester.ask("report")["lines"] <= 20
