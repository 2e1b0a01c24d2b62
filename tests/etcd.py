"""A real etcd for tests: one for the session, or one of a test's own, to be killed and frozen.

The fixture ``etcd`` gives the session's, without keys. ``Etcd`` starts one anywhere, in a network
namespace too. The servers are children of a small keeper, not of pytest, and do not carry the
marker of this session: so one that is started again within a test is nothing that the test left
behind, and none outlives pytest, however that ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.leaks import MARKER
from tests.ports import free_address
from tests.waiting import PATIENCE, wait_until_sync

#: Elections of one voter need no second each, by which a lease may be as short as one.
_QUICK = (
    "--unsafe-no-fsync",
    "--bcrypt-cost=4",
)
#: Reads a command line (JSON) and starts it, or an empty line and waits for what it started.
_KEEPER = """
import json, subprocess, sys
process = None
for line in sys.stdin:
    if line.strip():
        command, log = json.loads(line)
        with open(log, "ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        print(process.pid, flush=True)
    else:
        print(process.wait(), flush=True)
if process is not None:
    process.kill()
    process.wait()
"""


def require_etcd() -> None:
    """Skips the running test, visibly, where no etcd is to be had."""
    for program in ("etcd", "etcdctl"):
        if shutil.which(program) is None:
            pytest.skip(f"needs etcd: no {program!r} in PATH (Debian: etcd-server, etcd-client)")
    pytest.importorskip("aetcd", reason="needs the extra: pip install 'callhome[etcd]'")


class Stored(NamedTuple):
    """What etcd holds at a key."""

    value: bytes
    lease: int
    mod_revision: int


class Etcd:
    """One etcd server and its data; ``start`` it, and ``close`` it in the end.

    ``host`` is where it listens. ``enter`` is put before its command and those of ``etcdctl``:
    ``("ip", "netns", "exec", NAME)`` makes it run in a network namespace. ``members``: the URL of
    each member of its cluster for the others, the own one first; it is alone without.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        enter: tuple[str, ...] = (),
        members: tuple[str, ...] = (),
    ) -> None:
        self._enter = enter
        self._members = members
        self._folder = tempfile.mkdtemp(prefix="etcd-", dir="/tmp")
        self._log = os.path.join(self._folder, "log")
        self._data = os.path.join(self._folder, "data")
        self._env = {key: value for key, value in os.environ.items() if key != MARKER}
        #: ``host:port``, as clients of etcd take it.
        self.endpoint = f"{host}:{port or free_address().rpartition(':')[2]}"
        #: As a NodeSpec takes it.
        self.address = f"etcd://{self.endpoint}"
        self.pid = 0
        self._frozen = False
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._env,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends this one
        )

    def start(self, *, fresh: bool = False, wait: bool = True) -> None:
        """Start it if it does not run; ``fresh``: without the data that it had."""
        if self.pid:
            return
        if fresh:
            shutil.rmtree(self._data, ignore_errors=True)
        url = f"http://{self.endpoint}"
        command = [
            *self._enter,
            "etcd",
            f"--data-dir={self._data}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            *self._membership(),
            "--log-level=error",
            *_QUICK,
            # Several that beat quickly choose another leader each time that the machine is busy.
            f"--heartbeat-interval={100 if self._members else 20}",
            f"--election-timeout={1000 if self._members else 200}",
        ]
        self.pid = int(self._ask(json.dumps([command, self._log])))
        if wait:
            wait_until_sync(self.answers, 4 * PATIENCE, f"etcd answers; its log: {self._log}")

    def _membership(self) -> list[str]:
        # Where no other will ever come any port does, and the one told is nobody's.
        listen, told = "http://127.0.0.1:0", "http://127.0.0.1:1"
        if self._members:
            listen = told = self._members[0]
        all_of_it = ",".join(f"{each[7:]}={each}" for each in sorted(self._members or (told,)))
        return [
            f"--name={told[7:]}",
            f"--listen-peer-urls={listen}",
            f"--initial-advertise-peer-urls={told}",
            f"--initial-cluster={all_of_it}",
        ]

    def _ask(self, line: str) -> str:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(line.encode() + b"\n")
        self._keeper.stdin.flush()
        return self._keeper.stdout.readline().decode()

    def answers(self) -> bool:
        """Whether it takes reads and writes now."""
        return self._ctl("endpoint", "health", timeout="500ms").returncode == 0

    def kill(self) -> None:
        """SIGKILL; its data stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; its data stays."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)
            self.thaw()
            self._ask("")
            self.pid = 0

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered from when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        self._frozen = True
        wait_until_sync(self._stands, what="all threads of etcd have stopped")

    def _stands(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
        try:
            return all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in tasks)
        except OSError:  # one has just ended
            return False

    def thaw(self) -> None:
        """SIGCONT."""
        if self._frozen:
            os.kill(self.pid, signal.SIGCONT)
            self._frozen = False

    def close(self) -> None:
        """End it and remove its data; a second call does nothing."""
        self._end(signal.SIGKILL)
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, prefix: str = "") -> dict[str, Stored]:
        """What it holds under keys that begin with ``prefix``."""
        told = json.loads(self.ctl("get", "--prefix", prefix, "--write-out=json"))
        return {
            base64.b64decode(each["key"]).decode(): Stored(
                base64.b64decode(each.get("value", "")),
                each.get("lease", 0),
                each["mod_revision"],
            )
            for each in told.get("kvs", ())
        }

    def put(self, key: str, value: str, lease: int = 0) -> None:
        """Store ``value``, with a lease if one is named."""
        self.ctl("put", *([f"--lease={lease:x}"] if lease else ()), "--", key, value)

    def delete(self, key: str, prefix: bool = False) -> None:
        """Remove a key, or all that begin with it."""
        self.ctl("del", *(["--prefix"] if prefix else ()), "--", key)

    def ctl(self, *arguments: str) -> str:
        """What ``etcdctl`` prints. Raises AssertionError with its complaint when it fails."""
        done = self._ctl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _ctl(self, *arguments: str, timeout: str = "30s") -> subprocess.CompletedProcess[str]:
        command = ["etcdctl", f"--endpoints={self.endpoint}", f"--command-timeout={timeout}"]
        return subprocess.run(
            [*self._enter, *command, *arguments],
            env=self._env | {"ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
        )


@contextlib.contextmanager
def running_etcd(
    host: str = "127.0.0.1", port: int = 0, enter: tuple[str, ...] = ()
) -> Iterator[Etcd]:
    """An etcd of one's own, for programs and for tests of whole machines."""
    server = Etcd(host, port, enter)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def etcd_cluster(size: int) -> Iterator[list[Etcd]]:
    """The members of an etcd that outlives the loss of some of them."""
    urls = [f"http://{free_address()}" for _ in range(size)]
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(size):
            servers.append(Etcd(members=(*urls[number:], *urls[:number])))
            stack.callback(servers[-1].close)
            servers[-1].start(wait=False)
        for server in servers:
            wait_until_sync(server.answers, 4 * PATIENCE, "all members answer")
        yield servers


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Etcd]:
    """The etcd of the session; tests take ``etcd``."""
    require_etcd()
    with running_etcd() as server:
        yield server


@pytest.fixture
def etcd(etcd_server: Etcd) -> Iterator[Etcd]:
    """The session's etcd: it runs, and holds nothing. The test may do with it what it likes."""
    etcd_server.start()
    etcd_server.ctl("del", "--prefix", "")
    yield etcd_server
    etcd_server.thaw()
