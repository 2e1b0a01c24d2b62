"""A real etcd for one suite, and somebody else who writes records there.

The program is found in PATH (Debian: ``etcd-server``); its data go with it. Records are written
through etcd's JSON gateway and not by the client library that is measured, so that the writer costs
the reader's process nothing of its own.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from perf.plan import PerfError

#: Seconds until it answers after its start.
_PATIENCE: Final = 20.0
_PAUSE: Final = 0.02


class Writer:
    """Puts and deletes keys over one connection, one after the other; keys go with its lease."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
        self._lease = 0

    def grant(self, seconds: int) -> None:
        """A lease for what is put from now on."""
        self._lease = int(self.post("lease/grant", {"TTL": seconds})["ID"])

    def put(self, key: str, value: bytes) -> None:
        """Write one key, with the lease if there is one."""
        self.post("kv/put", {"key": _coded(key.encode()), "value": _coded(value), **self._leased()})

    def delete(self, key: str) -> None:
        """Remove one key."""
        self.post("kv/deleterange", {"key": _coded(key.encode())})

    def post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request of etcd's gateway. Raises PerfError when it is refused."""
        self._connection.request("POST", f"/v3/{what}", json.dumps(body))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != http.client.OK:
            raise PerfError(f"etcd refused {what}: {text[:200]!r}")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _leased(self) -> dict[str, int]:
        return {"lease": self._lease} if self._lease else {}


class Etcd:
    """A running etcd: ``address`` as a ``NodeSpec`` takes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.address = f"etcd://127.0.0.1:{port}"

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Somebody else who writes there."""
        writer = Writer("127.0.0.1", self._port)
        try:
            yield writer
        finally:
            writer.close()

    def _answers(self) -> bool:
        try:
            with self.writer() as writer:
                writer.post("maintenance/status", {})
        except (OSError, http.client.HTTPException, PerfError):
            return False
        return True

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Raises PerfError when it ends, or does not answer in time."""
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if process.poll() is not None:
                raise PerfError(f"etcd ended with exit code {process.returncode} as it started")
            if time.monotonic() > deadline:
                raise PerfError(f"etcd did not answer within {_PATIENCE:g} s")
            time.sleep(_PAUSE)


def program() -> str:
    """Where etcd is. Raises PerfError where there is none."""
    found = shutil.which("etcd")
    if found is None:
        raise PerfError("there is no etcd in PATH; on Debian: apt-get install etcd-server")
    return found


@contextmanager
def running() -> Iterator[Etcd]:
    """An etcd of our own for as long as the block lasts. Raises PerfError where there is none."""
    with tempfile.TemporaryDirectory(prefix="callhome-perf-etcd-") as folder:
        port, peers = _free_ports()
        command = [
            program(), "--name", "perf", "--data-dir", f"{folder}/data",
            "--listen-client-urls", f"http://127.0.0.1:{port}",
            "--advertise-client-urls", f"http://127.0.0.1:{port}",
            "--listen-peer-urls", f"http://127.0.0.1:{peers}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}",
            "--initial-cluster", f"perf=http://127.0.0.1:{peers}",
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            etcd = Etcd(port)
            etcd.wait_ready(process)
            yield etcd
        finally:
            process.kill()
            process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()
