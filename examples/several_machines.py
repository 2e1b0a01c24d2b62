"""Three machines that know nothing of each other but where etcd is; here all three are this one.

Each node has a ``Cluster`` of its own, as it would have a script (or ``callhome up SPEC --node NAME
--join etcd://…``) of its own on its machine. They find each other's engines in etcd. Then etcd is
killed and comes back, one node is drained and another one restarted in turns, while calls go on.

Run it from anywhere: ``python examples/several_machines.py``. It needs ``callhome[etcd]``, and an
etcd: its own, if there is one in PATH (Debian: etcd-server), or that of ``ETCD_ENDPOINTS``, which
it leaves alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from engines import Tokens, length

from actors import (
    CallHomeError,
    Client,
    Cluster,
    EngineSpec,
    IngressSpec,
    NodeSpec,
    RouterSpec,
    Settings,
)

NAME = f"several-{os.getpid()}"
MACHINES = ("a", "b", "c")
TOKENS = 1_000
PERIOD = 0.02
PATIENCE = 30.0


def node(name: str, etcd: str) -> NodeSpec:
    """The same on each machine, but for its name. In etcd it reads and writes what is called
    ``several.…``: other deployments there are none of its business.
    """
    return NodeSpec(
        name=name,
        routers=[RouterSpec()],
        engines=[
            EngineSpec("several.tokens.generate", Tokens),
            EngineSpec("several.length.count", length, canary={"text": "are you there"}),
        ],
        ingress=IngressSpec("127.0.0.1:0"),  # on three machines: the address of each
        etcd=etcd,
        namespace="several",
        settings=Settings.load(lease_ttl=5.0, drain_grace=0.2),
    )


class Machine:
    """What would be a program of its own on a machine of its own: a node as long as it is wanted.

    ``started`` is its cluster, once it is up. All of them start and stop at the same time.
    """

    def __init__(self, spec: NodeSpec) -> None:
        self.started: asyncio.Future[Cluster] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._run(spec))

    async def _run(self, spec: NodeSpec) -> None:
        try:
            async with Cluster(spec, cluster=NAME) as cluster:
                self.started.set_result(cluster)
                await self._leave.wait()
        except CallHomeError as error:
            if self.started.done():
                raise
            self.started.set_exception(error)

    async def stop(self) -> None:
        """Stop the node in order."""
        self._leave.set()
        await self._task


def tell(what: str, text: str) -> None:
    print(f"{what:<10} {text}", flush=True)


class Etcd:
    """An etcd of our own, which may be killed and started again with what it had."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
            self._client, self._peer = (each.getsockname()[1] for each in (one, two))
        self.address = f"etcd://127.0.0.1:{self._client}"

    def start(self) -> None:
        """Returns when it listens."""
        client, peer = f"http://127.0.0.1:{self._client}", f"http://127.0.0.1:{self._peer}"
        self._process = subprocess.Popen(
            [
                "etcd", "--name", "one", "--data-dir", self._folder,
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"one={peer}",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._client)),
            ):
                return
            time.sleep(0.02)
        raise SystemExit("etcd does not start")

    def kill(self) -> None:
        """At once, as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def some_etcd() -> Iterator[tuple[str, Etcd | None]]:
    """Where etcd is, and ours, if it is ours. Ends the program where there is none."""
    if importlib.util.find_spec("aetcd") is None:
        raise SystemExit("missing: the client of etcd; pip install 'callhome[etcd]'")
    if endpoints := os.environ.get("ETCD_ENDPOINTS"):
        yield "etcd://" + ",".join(each.rpartition("/")[2] for each in endpoints.split(",")), None
        return
    if shutil.which("etcd") is None:
        raise SystemExit(
            "missing: etcd (Debian: etcd-server) in PATH, or ETCD_ENDPOINTS of another"
        )
    with tempfile.TemporaryDirectory(prefix="callhome-example-") as folder:
        etcd = Etcd(folder)
        etcd.start()
        try:
            yield etcd.address, etcd
        finally:
            etcd.kill()


async def found(client: Client, endpoint: str, count: int) -> list[int]:
    """The instances that serve it, as soon as there are so many."""
    deadline = time.monotonic() + PATIENCE
    while len(workers := await client.workers(endpoint)) != count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(workers)} of {count} workers are known: {workers}")
        await asyncio.sleep(0.01)
    return [worker.instance for worker in workers]


async def from_each_to_each(clients: list[Client]) -> None:
    """A stream from each machine to the engine of each machine."""
    began = time.monotonic()
    for client in clients:
        await found(client, "several.tokens.generate", len(MACHINES))
    tell("found", f"each of {len(clients)} knows all {time.monotonic() - began:.2f} s after that")
    streams = 0
    for client in clients:
        for instance in await found(client, "several.tokens.generate", len(MACHINES)):
            number = 0
            async with client.stream(
                "several.tokens.generate", {"count": TOKENS}, instance=instance
            ) as items:
                async for item in items:
                    if item["index"] != number:
                        raise SystemExit(f"token {number} is missing")
                    number += 1
            streams += number == TOKENS
    tell("streams", f"{streams} from each to each, {TOKENS} tokens each, in order")


class Load:
    """Calls at a steady rate from several machines in turn, and how many have failed."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = itertools.cycle(clients)
        self.done = self.failed = 0

    async def run(self) -> None:
        """Until it is cancelled; a failure is told."""
        async with asyncio.TaskGroup() as calls:
            while True:
                calls.create_task(self._call(next(self._clients)))
                await asyncio.sleep(PERIOD)

    async def _call(self, client: Client) -> None:
        try:
            await client.call("several.length.count", {"text": "callhome"}, timeout=10.0)
        except CallHomeError as error:
            self.failed += 1
            tell("failed", f"{type(error).__name__}: {error}")
        else:
            self.done += 1


@contextlib.asynccontextmanager
async def calling(clients: Sequence[Client], what: str) -> AsyncIterator[None]:
    """Calls go on during the block; afterwards it is told how they went."""
    load = Load(clients)
    task = asyncio.create_task(load.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    tell("", f"{load.done} calls meanwhile, {load.failed} failed")
    if load.failed:
        raise SystemExit(f"calls have failed while {what}")


async def command(*words: str) -> None:
    """A command of ``callhome``, as it is typed on that machine."""
    line = ["-m", "actors", *words, "--cluster", NAME]
    tell("$", f"callhome {' '.join(words)}")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *line, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    for text in said.decode().splitlines():
        tell("", text)
    if process.returncode:
        raise SystemExit(f"callhome {' '.join(words)} has ended with {process.returncode}")


async def away(clients: Sequence[Client], etcd: Etcd) -> None:
    """etcd is gone for a second: who is known goes on."""
    async with calling(clients, "etcd was away"):
        etcd.kill()
        tell("etcd", "killed")
        await asyncio.sleep(1.0)
        await asyncio.to_thread(etcd.start)
        tell("etcd", "is there again")
        await asyncio.sleep(0.5)


def left_behind(pids: list[int]) -> list[int]:
    """Processes that should be gone by now."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


async def main() -> int:
    with some_etcd() as (address, etcd):
        began = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            machines = [Machine(node(name, address)) for name in MACHINES]
            for machine in machines:
                stack.push_async_callback(machine.stop)
            clusters = [await asyncio.shield(machine.started) for machine in machines]
            clients = [await stack.enter_async_context(each.client()) for each in clusters]
            tell("up", f"three nodes after {time.monotonic() - began:.2f} s, joined in {address}")
            for cluster in clusters:
                (info,) = cluster.nodes
                tell("", f"node {info.node} (pid {info.address.pid}), listens at {info.listen}")
            await from_each_to_each(clients)
            if etcd is not None:
                await away(clients, etcd)
            callers = [clients[0], clients[2]]
            async with calling(callers, "a node drained"):
                await command("drain", "--node", "b")
            async with calling(callers, "a node restarted"):
                await command("restart", "--rolling", "--node", "c")
            await command("health", "--node", "c")
            pids = [each.pid for one in clusters for info in one.nodes for each in info.children]
            began = time.monotonic()
        tell("down", f"after {time.monotonic() - began:.2f} s")
    left = left_behind(pids)
    tell("left", f"processes {left}" if left else "nothing: processes, sockets and etcd are gone")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
