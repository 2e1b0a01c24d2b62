"""What the tests of etcd share: nodes that publish, also in processes of their own, and readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

from actors.discovery.base import Change
from actors.discovery.etcd import EtcdDiscovery
from actors.discovery.etcd_publisher import EtcdPublisher
from actors.discovery.etcd_records import record_key
from actors.messages import Added, Removed, Snapshot
from tests.discovery.samples import engine
from tests.etcd import Etcd
from tests.waiting import LONG, wait_until_sync

#: The shortest lease that the etcd of the tests grants, in seconds.
TTL = 1.0
#: One that ends in no test: who stands still on a busy machine for a moment loses a short one.
LEASE = 60.0
#: How long changes may take that pass through two processes and a disk.
PATIENCE = LONG

ROOT = "v1/instances/"


def key(instance: int) -> str:
    return record_key("demo.shout.generate", instance).decode()


class Heard:
    """What a subscriber was told; it fails when something is told twice, or gone before it came."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.known: dict[int, str] = {}
        self.wrong: list[str] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        if isinstance(change, Snapshot):
            self.known = {each.instance: each.via for each in change.records}
        elif isinstance(change, Added):
            if change.record.instance in self.known:
                self.wrong.append(f"told twice: {change}")
            self.known[change.record.instance] = change.record.via
        elif self.known.pop(change.record.instance, None) != change.record.via:
            self.wrong.append(f"gone and was not there: {change}")

    @property
    def instances(self) -> set[int]:
        return set(self.known)

    @property
    def removed(self) -> list[int]:
        return [each.record.instance for each in self.changes if isinstance(each, Removed)]


@contextlib.asynccontextmanager
async def reader(
    address: str, namespace: str = "", ttl: float = LEASE
) -> AsyncIterator[tuple[EtcdDiscovery, Heard]]:
    """A discovery and what it tells; whatever it told made sense."""
    discovery, heard = EtcdDiscovery(address, namespace=namespace, ttl=ttl), Heard()
    try:
        await discovery.subscribe(heard)
        yield discovery, heard
        assert heard.wrong == []
    finally:
        discovery.stop()


@contextlib.asynccontextmanager
async def publisher(
    address: str, *instances: int, ingress: int = 9, ttl: float = LEASE, namespace: str = ""
) -> AsyncIterator[EtcdPublisher]:
    """A publisher of these instances, which stand there when it is known."""
    made = EtcdPublisher(
        address, reached="10.0.0.7:7400", ingress=ingress, ttl=ttl, namespace=namespace
    )
    made.start()
    try:
        made.changed(Snapshot([engine(each) for each in instances]))
        await made.settle(LONG)
        yield made
    finally:
        await made.close()


def publish(address: str, ttl: str, *instances: str) -> None:
    """The program of a node of its own: it publishes, and reads what all do, until its standard
    input ends; to each line it answers with what it has heard.
    """

    async def run() -> None:
        async with (
            publisher(address, *map(int, instances), ttl=float(ttl)),
            reader(address, ttl=float(ttl)) as (_, heard),
        ):
            while await asyncio.to_thread(sys.stdin.readline):
                told = {"known": [*heard.known], "removed": heard.removed, "wall": time.time()}
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()

    asyncio.run(run())


@contextlib.contextmanager
def node(
    etcd: Etcd, *instances: int, ttl: float = TTL, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that publishes these; they stand there when it is known."""
    command = [sys.executable, "-m", __name__, etcd.address, str(ttl), *map(str, instances)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | (environ or {}),
    )
    try:
        for instance in instances:
            wait_until_sync(partial(standing, etcd, instance), PATIENCE, f"{instance} is published")
        yield process
    finally:
        process.kill()
        process.communicate()


def standing(etcd: Etcd, instance: int) -> bool:
    return key(instance) in etcd.get(ROOT)


if __name__ == "__main__":
    publish(*sys.argv[1:])


class Cable:
    """A relay to etcd that can be cut so that nobody is told, or lose what etcd answers."""

    def __init__(self, etcd: Etcd) -> None:
        self._port = int(etcd.endpoint.rpartition(":")[2])
        self.whole = asyncio.Event()
        self.whole.set()
        self.answers = True

    @contextlib.asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """Where etcd is, by this cable."""
        server = await asyncio.start_server(self._carry_both, "127.0.0.1", 0)
        yield f"etcd://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        await server.wait_closed()

    async def _carry_both(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._carry(near, forth), self._carry(far, back))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        answers = sink.get_extra_info("peername")[1] != self._port
        while data := await source.read(65536):
            await self.whole.wait()
            if self.answers or not answers:
                sink.write(data)
        sink.close()
