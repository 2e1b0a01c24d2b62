"""A thousand workers that are told of in etcd or in a directory, and what that costs a router.

The records are those of 125 hosts with eight workers each. The hosts are addresses of this machine,
and behind all of them is the ingress of one real node: a router follows each, as it would follow
125 nodes. The workers themselves are not there, and nobody calls them.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from perf import etcd as etcds
from perf.figures import Sample
from perf.launch import free_address
from perf.plan import PerfError, Plan, pin_to

if TYPE_CHECKING:
    from actors import Client, Cluster
    from actors.discovery.base import Discovery

WORKERS: Final = 1_000
CHANGES: Final = 1_000
_ON_A_HOST: Final = 8
_ENDPOINT: Final = "perf.crowd.answer"
_MARK: Final = "perf.crowd.mark"
_PATIENCE: Final = 30.0
_LOOK: Final = 0.05
#: Seconds between two signs of life of a record in a directory, as ours give it, and of a lease.
_BEAT: Final = 2.0
_LEASE: Final = 120


class _Place(Protocol):
    """Where the records stand."""

    def put(self, key: str, value: bytes) -> None: ...
    def delete(self, key: str) -> None: ...


class _Folder:
    """The files of a directory of records."""

    def __init__(self, directory: str) -> None:
        from actors.discovery.files import instances_folder

        self._folder = instances_folder(directory)
        self._new = os.path.join(directory, "new")
        os.makedirs(self._folder)

    def put(self, key: str, value: bytes) -> None:
        """Write one record as ours are written: at once or not at all."""
        with open(self._new, "wb") as file:
            file.write(value)
        os.replace(self._new, self._path(key))

    def delete(self, key: str) -> None:
        """Remove one."""
        os.unlink(self._path(key))

    def renew(self) -> None:
        """A sign of life of each."""
        for entry in os.scandir(self._folder):
            os.utime(entry.path)

    def _path(self, key: str) -> str:
        from urllib.parse import quote

        return os.path.join(self._folder, quote(key.removeprefix("v1/instances/"), safe=""))


class Crowd(NamedTuple):
    """A backend with a thousand records: who writes there, how a node's spec names it, how a
    process of its own reads it.
    """

    name: str
    place: _Place
    directory: str
    etcd: str
    discovery: Callable[[], Discovery]


def record(number: int, port: int, endpoint: str = _ENDPOINT) -> tuple[str, bytes]:
    """Key and value of one worker of ours."""
    from actors.discovery.record import pack_record
    from actors.messages import Record
    from transport.bus.address import Address

    instance = (number + 1) << 20
    host = f"127.0.{1 + number // _ON_A_HOST % 125}.1:{port}"
    made = Record(instance, Address("crowd", instance, 0, 0), "engine", endpoint, capacity=64)
    key = f"v1/instances/{endpoint.replace('.', '/')}/{instance:x}"
    return key, json.dumps(pack_record(made, host, 1)).encode()


@contextmanager
def in_directory() -> Iterator[Crowd]:
    """A directory for as long as the block lasts."""
    from actors.discovery.directory import DirectoryDiscovery

    with tempfile.TemporaryDirectory(prefix="callhome-perf-kv-") as folder:
        yield Crowd("directory", _Folder(folder), folder, "", lambda: DirectoryDiscovery(folder))


@contextmanager
def in_etcd(etcd: etcds.Etcd) -> Iterator[Crowd]:
    """Somebody who writes into ``etcd``; what he has written goes with his lease."""
    from actors.discovery.etcd import EtcdDiscovery

    with etcd.writer() as writer:
        writer.grant(_LEASE)
        yield Crowd("etcd", writer, "", etcd.address, lambda: EtcdDiscovery(etcd.address))


async def measure(plan: Plan, crowd: Crowd) -> list[Sample]:
    """``membership.NAME.1000``: the first list of a process that starts, and a router's memory and
    CPU.
    """
    workers, changes = plan.count(WORKERS, least=20), plan.count(CHANGES, least=20)
    door = free_address()
    port = int(door.rpartition(":")[2])
    await asyncio.to_thread(_write, crowd.place, range(workers), port)
    async with _beating(crowd.place):
        async with _standing(plan, crowd, port) as (cluster, client):
            await _mark(crowd, client, 1 << 30, port)
            router = _router(cluster)
            resident = _resident(router)
            began = _cpu(router)
            gone = range(min(workers, changes // 2))
            await asyncio.to_thread(_delete, crowd.place, gone, port)
            await _mark(crowd, client, (1 << 30) + 1, port)
            await asyncio.to_thread(_write, crowd.place, gone, port)
            await _mark(crowd, client, (1 << 30) + 2, port)
            cost = _cpu(router) - began
            resident = max(resident, _resident(router))
        seconds = await _snapshot(crowd, workers)
    workload = f"membership.{crowd.name}.{WORKERS}"
    return [
        Sample("membership", workload, "snapshot_ms", "ms", seconds * 1e3),
        Sample("membership", workload, "router_rss_mb", "MB", resident / 1e6),
        Sample(
            "membership", workload, "change_cpu_us", "us", max(1.0, cost / (2 * len(gone)) * 1e6)
        ),
    ]


def _write(place: _Place, numbers: range, port: int) -> None:
    for number in numbers:
        place.put(*record(number, port))


def _delete(place: _Place, numbers: range, port: int) -> None:
    for number in numbers:
        place.delete(record(number, port)[0])


async def _mark(crowd: Crowd, client: Client, number: int, port: int) -> None:
    """Write one record more, and wait until the router knows it, and so all before it."""
    key, value = record(number, port, _MARK)
    await asyncio.to_thread(crowd.place.put, key, value)
    deadline = time.monotonic() + _PATIENCE
    while (number + 1) << 20 not in [each.instance for each in await client.workers(_MARK)]:
        if time.monotonic() > deadline:
            raise PerfError(f"the router has not seen a record in {crowd.name} in {_PATIENCE:g} s")
        await asyncio.sleep(_LOOK)


@asynccontextmanager
async def _standing(plan: Plan, crowd: Crowd, port: int) -> AsyncIterator[tuple[Cluster, Client]]:
    """A node with one router that reads there, and the node behind all addresses."""
    from actors import Cluster, IngressSpec, NodeSpec, RouterSpec

    os.sched_setaffinity(0, plan.cores)
    ingress = IngressSpec(f"0.0.0.0:{port}", advertise="127.0.0.1", cpus=[plan.engine_core])
    nodes = [
        NodeSpec(
            name="perf",
            routers=[RouterSpec(cpus=[plan.client_core])],
            directory=crowd.directory,
            etcd=crowd.etcd,
        ),
        NodeSpec(name="perf-far", routers=[], ingress=ingress),
    ]
    async with Cluster(nodes) as cluster, cluster.client() as client:
        pin_to(plan.client_core)
        yield cluster, client


@asynccontextmanager
async def _beating(place: _Place) -> AsyncIterator[None]:
    """Keep the records of a directory alive; a lease is long enough by itself."""

    async def beat() -> None:
        while isinstance(place, _Folder):
            await asyncio.to_thread(place.renew)
            await asyncio.sleep(_BEAT)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _snapshot(crowd: Crowd, workers: int) -> float:
    """Seconds from the first word with the backend until all is known that stands there, what has
    to be imported included.
    """
    from actors.messages import Snapshot

    found = 0

    def listen(change: object) -> None:
        nonlocal found
        found += len(change.records) if isinstance(change, Snapshot) else 0

    discovery = crowd.discovery()
    began = time.perf_counter()
    await discovery.subscribe(listen)
    seconds = time.perf_counter() - began
    discovery.stop()  # type: ignore[attr-defined]
    if found < workers:
        raise PerfError(f"{found} of {workers} workers were in the snapshot of {crowd.name}")
    return seconds


def _router(cluster: Cluster) -> int:
    return next(
        child.pid for node in cluster.nodes for child in node.children if child.name == "router"
    )


def _resident(pid: int) -> int:
    import psutil

    return int(psutil.Process(pid).memory_info().rss)


def _cpu(pid: int) -> float:
    import psutil

    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)
