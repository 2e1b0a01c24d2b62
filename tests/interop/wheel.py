"""Processes of Dynamo's wheel as tests see them, in an interpreter of their own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import pytest

from tests.etcd import Etcd
from tests.waiting import wait_until, wait_until_sync

VARIABLE = "CALLHOME_TEST_DYNAMO"
PYTHON = os.environ.get(VARIABLE, "")
VERSION = "1.6.1"
WHY = f"needs an interpreter with ai-dynamo-runtime=={VERSION}, named by {VARIABLE}"
#: How long one of its processes may take to answer; seconds.
PATIENCE = 60.0
_ROOT = Path(__file__).resolve().parents[2]

#: Whether tests may be given an etcd (``tests.etcd.require_etcd`` says why not).
HAVE_ETCD = bool(which("etcd") and which("etcdctl") and find_spec("aetcd"))

needs_wheel = pytest.mark.skipif(not PYTHON, reason=WHY)

Fields = dict[str, Any]


def version() -> str:
    """Version of the wheel that the tests run against, or why there is none."""
    words = "from importlib.metadata import version; print(version('ai-dynamo-runtime'))"
    command = [PYTHON, "-c", words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"none, {VARIABLE} is of no use: {error}"
    return found.stdout.strip()


class Meeting(NamedTuple):
    """Where their processes and our nodes find each other: a folder, or an etcd."""

    directory: str = ""
    etcd: str = ""
    #: Seconds after which etcd forgets who is silent, on both sides.
    ttl: int = 10

    def variables(self) -> dict[str, str]:
        """As Dynamo's environment names it."""
        if self.directory:
            return {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": self.directory}
        return {
            "DYN_DISCOVERY_BACKEND": "etcd",
            "ETCD_ENDPOINTS": self.etcd.replace("etcd://", "http://"),
            "ETCD_LEASE_TTL": str(self.ttl),
        }

    def spec(self) -> dict[str, Any]:
        """As a NodeSpec of ours names it."""
        return {"directory": self.directory, "etcd": self.etcd}


def meeting(request: pytest.FixtureRequest, backend: str) -> Meeting:
    """A new place to meet: ``file`` or ``etcd``, where one is to be had, else a folder.

    For fixtures of a module, whose tests say something whichever it is.
    """
    if backend == "etcd" and HAVE_ETCD:
        server: Etcd = request.getfixturevalue("etcd_server")
        server.start()
        server.delete("", prefix=True)
        return Meeting(etcd=server.address)
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return Meeting(str(factory.mktemp("records")))


def environment(place: Meeting, codec: str) -> dict[str, str]:
    """Ours, and the variables by which its processes meet."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **place.variables(),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_REQUEST_PLANE_CODEC": codec,
        # One failure would otherwise hide the only worker from its client for five seconds.
        "DYN_RUNTIME_INHIBITED_DURATION_SECS": "0",
        "DYN_LOG": "warn",
        "PYTHONUNBUFFERED": "1",
    }


class Program:
    """A running program: what it said so far, and lines to tell it."""

    def __init__(self, process: subprocess.Popen[bytes], place: Meeting, codec: str) -> None:
        self.process = process
        self.place = place
        self.codec = codec
        self.said: list[Fields] = []
        self.noise: list[str] = []
        self._orders = 0
        self._reader = threading.Thread(target=self._read, name="wheel reader")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self.said.append(json.loads(line))
            else:
                self.noise.append(line.decode(errors="replace").rstrip())

    def find(self, **fields: Any) -> Fields | None:
        """The first thing it said that has these fields."""
        for said in list(self.said):
            if all(said.get(name) == value for name, value in fields.items()):
                return said
        return None

    def wait(self, timeout: float = PATIENCE, **fields: Any) -> Fields:
        """Wait until it says something with these fields."""

        def heard() -> bool:
            return self.find(**fields) is not None or self.process.poll() is not None

        wait_until_sync(heard, timeout, f"the wheel's process says {fields}")
        found = self.find(**fields)
        assert found is not None, f"it ended: {self.noise[-5:]}"
        return found

    async def hear(self, timeout: float = PATIENCE, **fields: Any) -> Fields:
        """As ``wait``, while the loop goes on."""

        def heard() -> bool:
            return self.find(**fields) is not None or self.process.poll() is not None

        await wait_until(heard, timeout, f"the wheel's process says {fields}")
        return self.wait(0.0, **fields)

    def order(self, **fields: Any) -> int:
        """Tell it to do something; the number by which its answer is known."""
        assert self.process.stdin is not None
        self._orders += 1
        line = json.dumps({"order": self._orders, **fields}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        return self._orders

    async def answer(self, number: int, timeout: float = PATIENCE) -> Fields:
        """What came of an order."""
        return await self.hear(timeout, event="done", order=number)

    async def do(self, request: Any, timeout: float = PATIENCE, **fields: Any) -> Fields:
        """One stream of its client from the order to what came of it."""
        return await self.answer(self.order(request=request, **fields), timeout)

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def program(
    name: str, place: Meeting, codec: str = "msgpack", *arguments: str, **variables: str
) -> Iterator[Program]:
    """Run one of the programs and wait until it is ready."""
    process = subprocess.Popen(
        [PYTHON, "-m", f"tests.interop.programs.{name}", *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment(place, codec), **variables},
    )
    running = Program(process, place, codec)
    try:
        running.wait(event="ready")
        yield running
    finally:
        running.close()


#: Values that both makes read and write alike, whoever sends them.
VALUES = [
    None,
    True,
    0,
    -(1 << 63),
    (1 << 64) - 1,
    1.5,
    "",
    "täxt ☃ \x00",
    [],
    {},
    {"a": [1, {"b": None}], "": "empty"},
    list(range(1000)),
]
