"""The hosts of a test: programs in them, functions in their networks, their cables.

    with lay_hosts("a", "b", "c") as hosts:
        hosts.cable("b").delay(0.02).loss(0.01)
        process = hosts["a"].start([sys.executable, "-m", "actors", "up", "node.toml"])
        hosts.cable("c").cut()

A host is a network of its own: an address, a loopback, no way out but its cable. Processes, files
and shared memory are those of the machine, so a client of this process reaches a host's node by
the host's run folder, whatever becomes of its cable.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import pytest

from tests.hosts.enter import enter
from tests.leaks import MARKER
from tests.waiting import LONG, require_root

P = ParamSpec("P")
R = TypeVar("R")

_ROOT: Final = Path(__file__).resolve().parents[2]
_ENTER: Final = str(Path(__file__).with_name("enter.py"))
#: How long the switch of a busy machine may take to answer, in seconds.
_LIMIT: Final = LONG
BOTH: Final = ("out", "in")


class Host:
    """One host; made by ``lay_hosts``."""

    def __init__(self, name: str, address: str, network: str, run: str) -> None:
        self.name = name
        self.address = address
        """Where the other hosts reach it."""
        self.network = network
        """The path of a descriptor of its network, for ``nsenter --net=PATH``, say."""
        self.prefix: Final = [sys.executable, "-S", "-E", _ENTER, network]
        """Before the words of a program: it runs in this host, with the pid that was started.
        Start it in the main thread, for it is killed when the thread ends that has started it.
        """
        self.run = run
        """The run folder of its nodes."""

    @property
    def environ(self) -> dict[str, str]:
        """For programs of this host: as ours, with the host's run folder, and without the marker
        of this session: what a node there starts anew within a test was not left by the test.
        """
        own = {"CALLHOME_RUN": self.run, "PYTHONPATH": str(_ROOT)}
        return {key: value for key, value in os.environ.items() if key != MARKER} | own

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """A program in this host; without ``options`` its output is ours to read."""
        given = {"env": self.environ, "cwd": _ROOT, "text": True, "stdin": subprocess.DEVNULL}
        if not {"stdout", "stderr"} & set(options):
            given |= {"stdout": subprocess.PIPE}
        return subprocess.Popen([*self.prefix, *command], **{**given, **options})

    def pids(self) -> list[int]:
        """All processes that are in this host."""
        network = self.call(os.readlink, "/proc/thread-self/ns/net")
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _in(pid, network)
        ]

    def call(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call in this host's network, in a thread of this process. A socket that it makes and
        returns stays one of the host.
        """
        found: list[R] = []
        failed: list[BaseException] = []

        def inside() -> None:
            try:
                enter(self.network)
                found.append(function(*arguments, **named))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=inside, name=f"in host {self.name}")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]


def _in(pid: int, network: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == network
    except OSError:  # it has ended
        return False


class Cable:
    """The cable of one host. Every setting holds at once, also for connections that stand; ``way``
    is "out" (from the host), "in", or both.
    """

    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self._name = name

    def delay(self, seconds: float, way: str = "") -> Cable:
        """Each frame takes so long over this cable: from one host to another the delays of two
        cables add up.
        """
        return self._set(way, delay=seconds)

    def loss(self, chance: float, way: str = "") -> Cable:
        """Each frame is lost with this chance, by a generator with the kit's seed."""
        return self._set(way, loss=chance)

    def cut(self, way: str = "") -> Cable:
        """Nothing gets through, nor what is on its way now; nobody is told."""
        return self._set(way, cut=True)

    def mend(self, way: str = "") -> Cable:
        """It is as before the cut."""
        return self._set(way, cut=False)

    def reset(self) -> Cable:
        """Whole, quick and without loss."""
        return self._set("", delay=0.0, loss=0.0, cut=False)

    def counts(self) -> dict[str, dict[str, int]]:
        """Frames "out" and "in": ``passed``, ``lost`` by chance, ``cut``, and ``dropped`` because
        too many bytes were on their way.
        """
        found: dict[str, dict[str, int]] = self._hosts.ask({})[self._name]
        return found

    def _set(self, way: str, **settings: float | bool) -> Cable:
        ways = (way,) if way else BOTH
        self._hosts.ask({"host": self._name, "ways": ways, "set": settings})
        return self


class Hosts:
    """All hosts of a kit, by name."""

    def __init__(self, process: subprocess.Popen[str], folder: str) -> None:
        self._process = process
        self._folder = folder
        self._hosts: dict[str, Host] = {}
        for name, (network, address) in self._answer().items():
            path = f"/proc/{process.pid}/fd/{network}"
            self._hosts[name] = Host(name, address, path, os.path.join(folder, name))

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def cable(self, name: str) -> Cable:
        """The cable of a host."""
        if name not in self._hosts:
            raise KeyError(f"no host {name!r}; there are {', '.join(self._hosts)}")
        return Cable(self, name)

    def reset(self) -> None:
        """All cables as they were laid; for hosts that several tests share."""
        for name in self._hosts:
            self.cable(name).reset()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command to the switch; its answer. For ``Cable``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _LIMIT)[0]:
            raise AssertionError(f"the switch of the hosts has not answered within {_LIMIT:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the switch of the hosts has ended: {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise OSError(found["error"])
        return found


@contextlib.contextmanager
def lay_hosts(*names: str, seed: int = 1) -> Iterator[Hosts]:
    """Hosts with these names, joined by cables that are whole, quick and without loss.

    Skips the test where they cannot be made, and says why. Nothing is left after the block, nor
    after a kill of this process: the kernel removes a network that nobody holds. Programs must have
    ended before.
    """
    require_root("networks of its own")
    # Short, for sockets' sake; and not below the session's run root, whose files tests answer for.
    folder = tempfile.mkdtemp(prefix="h-", dir="/tmp")
    process = subprocess.Popen(
        [sys.executable, "-S", "-m", "tests.hosts.switch", folder, str(seed), *names],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        try:
            hosts = Hosts(process, folder)
        except OSError as error:
            pytest.skip(f"no networks of their own can be made here: {error}")
        yield hosts
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_LIMIT)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
