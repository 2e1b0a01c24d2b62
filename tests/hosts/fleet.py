"""A node of ours on each of several hosts, started by ``callhome up`` there as a person would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from actors import Client, Settings
from actors.cluster.folder import NodeInfo, live_nodes
from tests.hosts.kit import Host, Hosts
from tests.waiting import LONG, wait_until_sync

#: Seconds for a node of a busy machine to be up.
START: Final = 2 * LONG
THERE: Final = "t.there.go"
BACK: Final = "t.back.go"
_SPEC: Final = """
[settings]
start_timeout = 100.0
lease_ttl = {ttl}

[[engines]]
endpoint = "t.there.go"
engine = "tests.e2e.host_engines:There"
args = {{ host = "{host}" }}
name = "there"
capacity = 1024

[[engines]]
endpoint = "t.back.go"
engine = "tests.e2e.host_engines:Back"
name = "back"
"""


class Machine:
    """A host and the node on it."""

    def __init__(self, host: Host, ttl: float, options: Sequence[str]) -> None:
        self.host = host
        os.makedirs(host.run, exist_ok=True)
        self._log = Path(host.run).with_name(f"{host.name}.log")
        spec = Path(host.run).with_name(f"{host.name}.toml")
        spec.write_text(_SPEC.format(host=host.name, ttl=ttl))
        self._command = [sys.executable, "-m", "actors", "up", str(spec), "--cluster", "fleet"]
        self._command += [each.format(address=host.address, name=host.name) for each in options]
        self._up: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the node; ``wait`` for it then."""
        with self._log.open("w") as log:
            self._up = self.host.start(self._command, stdout=log, stderr=log)

    def wait(self) -> None:
        """Until it is up."""
        wait_until_sync(self._is_up, START, f"the node of host {self.host.name} is up")

    def _is_up(self) -> bool:
        assert self._up is not None
        if self._up.poll() is not None:
            raise AssertionError(f"callhome up has ended with {self._up.returncode}: {self.text}")
        return "try, from another shell" in self.text

    @property
    def text(self) -> str:
        """What its ``callhome up`` has said."""
        return self._log.read_text()

    @property
    def info(self) -> NodeInfo:
        """What its node.json says."""
        return live_nodes(self.host.run)[0]

    def pid(self, actor: str) -> int:
        """The process of one of its actors."""
        return next(each.pid for each in self.info.children if each.name == actor)

    def client(self, **settings: Any) -> Client:
        """A client of its node, which comes to it by files and not over the host's cable."""
        return Client(run=self.info.folder, settings=Settings.load(**settings))

    def stop(self) -> None:
        """As Ctrl-C does; ``wait_stopped`` then."""
        if self._up is not None and self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)

    def wait_stopped(self) -> None:
        """Until it has ended, as it should."""
        code = 0 if self._up is None else self._up.wait(START)
        if code not in (0, 128 + signal.SIGINT):
            raise AssertionError(f"callhome up has ended with {code}: {self.text}")

    def kill(self) -> None:
        """SIGKILL to all that runs on the host, as a power cut would be."""
        for pid in self.host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._up is not None:
            self._up.wait()
            wait_until_sync(lambda: not self.host.pids(), START, "all of the host is gone")


class Fleet:
    """The nodes of all hosts, by the host's name."""

    def __init__(self, hosts: Hosts, machines: dict[str, Machine]) -> None:
        self.hosts = hosts
        self._machines = machines

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    @property
    def names(self) -> list[str]:
        """All hosts."""
        return list(self._machines)


@contextlib.contextmanager
def fleet(hosts: Hosts, join: str = "", ttl: float = 2.0) -> Iterator[Fleet]:
    """A node on each host; ``join``: where they find each other (``etcd://…``), else they are
    told each other's addresses.
    """
    machines = {}
    for host in hosts:
        if join:
            options = ["--node", "{name}", "--join", join]
        else:
            options = ["--listen", "{address}:7400"]
            others = [each for each in hosts if each is not host]
            options += [word for each in others for word in ("--peer", f"{each.address}:7400")]
        machines[host.name] = Machine(host, ttl, options)
    try:
        for machine in machines.values():
            machine.start()
        for machine in machines.values():
            machine.wait()
        yield Fleet(hosts, machines)
        hosts.reset()
        for machine in machines.values():
            machine.stop()
        for machine in machines.values():
            machine.wait_stopped()
    finally:
        for machine in machines.values():
            machine.kill()
