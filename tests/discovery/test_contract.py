"""What every Discovery keeps, whatever stands behind it: the node's registry, a directory, etcd, an
ingress of another node that is followed, and several of them as one.

What is in between may coalesce (a directory is looked at, a slow reader of an ingress is told the
newest): a record that comes and goes between two looks need not be heard of. What is heard makes
sense in itself, is the same for everybody, and ends in what is true.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from actors import Settings
from actors.discovery.base import Change, Discovery, Subscription
from actors.discovery.directory import DirectoryDiscovery, DirectoryPublisher
from actors.discovery.merged import MergedDiscovery
from actors.discovery.publisher import Publisher as Registrar
from actors.discovery.registry import Registry, RegistryDiscovery
from actors.kernel.runtime import Runtime
from actors.messages import Added, Record, Removed, Snapshot
from tests.etcd import Etcd
from tests.ingress.rig import rig
from tests.router.rig import router_rig
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address
from transport.shm.segment import start_time

BACKENDS = ("registry", "directory", "etcd", "peers", "merged")
PATIENCE = LONG
Key = tuple[int, str]
Kind = tuple[str, Etcd | None]


class Source:
    """A Discovery, and the hand that changes what it finds."""

    def __init__(self, discovery: Discovery, tell: Callable[[Change], None]) -> None:
        self.discovery = discovery
        self._tell = tell
        self.true: set[Key] = set()

    def put(self, instance: int, endpoint: str = "t.one.go") -> None:
        self.true.add((instance, endpoint))
        self._tell(Added(record(instance, endpoint)))

    def drop(self, instance: int, endpoint: str = "t.one.go") -> None:
        self.true.discard((instance, endpoint))
        self._tell(Removed(record(instance, endpoint), "dropped by the test"))

    async def hear(self) -> Heard:
        """One subscriber more."""
        heard = Heard()
        heard.place = await self.discovery.subscribe(heard)
        assert len(heard.changes) == 1, "a Snapshot, and no more, before subscribe returns"
        return heard

    async def caught_up(self, *all: Heard) -> None:
        """Wait until what they have heard ends in what is true."""
        for heard in all:
            await wait_until(lambda heard=heard: heard.known == self.true, PATIENCE, "all is heard")


class Heard:
    """What a subscriber was told, and what in it makes no sense."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Key]] = []
        self.known: set[Key] = set()
        self.wrong: list[str] = []
        self.meddle: Callable[[Change], None] = lambda change: None
        self.place: Subscription

    def __call__(self, change: Change) -> None:
        if isinstance(change, Snapshot):
            if self.changes:
                self.wrong.append("a second Snapshot, though nothing was lost")
            self.known = {key(each) for each in change.records}
            self.changes.append(("snapshot", (0, "")))
        elif isinstance(change, Added):
            if key(change.record) in self.known:
                self.wrong.append(f"{change.record} was added twice")
            self.known.add(key(change.record))
            self.changes.append(("added", key(change.record)))
        else:
            if key(change.record) not in self.known:
                self.wrong.append(f"{change.record} was removed, and was not there")
            self.known.discard(key(change.record))
            self.changes.append(("removed", key(change.record)))
        self.meddle(change)


def key(record: Record) -> Key:
    return record.instance, record.endpoint


def record(instance: int, endpoint: str) -> Record:
    """The record of an engine that lives in this process."""
    pid = os.getpid()
    address = Address(f"engine-{instance}", instance, pid, start_time(pid))
    return Record(instance, address, "engine", endpoint, False, 4)


@asynccontextmanager
async def source(backend: str, etcd: Etcd | None, folder: Path) -> AsyncIterator[Source]:
    """A Discovery of a kind."""
    async with AsyncExitStack() as stack:
        if backend in ("registry", "merged"):
            yield await registry(stack, folder, merged=backend == "merged")
        elif backend == "directory":
            yield directory(stack, folder)
        elif backend == "etcd":
            assert etcd is not None
            yield in_etcd(stack, etcd)
        else:
            yield await peer(stack, folder)


async def registry(stack: AsyncExitStack, folder: Path, merged: bool) -> Source:
    settings = Settings()
    node = Runtime(run=str(folder), name="node", settings=settings)
    stack.callback(node.close)
    other = Runtime(run=str(folder), name="other", settings=settings)
    stack.callback(other.close)
    group = await stack.enter_async_context(asyncio.TaskGroup())
    table = Registry()
    Registrar(node, table, group)
    found = RegistryDiscovery(other, node.address)
    stack.callback(found.stop)
    if not merged:
        return Source(found, changing(table))
    several = MergedDiscovery(found)
    stack.callback(several.stop)
    return Source(several, changing(table))


def directory(stack: AsyncExitStack, folder: Path) -> Source:
    publisher = DirectoryPublisher(str(folder), reached="127.0.0.1:7400", ingress=1)
    publisher.start()
    stack.push_async_callback(publisher.close)
    found = DirectoryDiscovery(str(folder), look=TICK / 20)
    stack.callback(found.stop)
    return Source(found, publisher.changed)


def in_etcd(stack: AsyncExitStack, etcd: Etcd) -> Source:
    from actors.discovery.etcd import EtcdDiscovery
    from actors.discovery.etcd_publisher import EtcdPublisher

    publisher = EtcdPublisher(etcd.address, reached="127.0.0.1:7400", ingress=1, ttl=LONG)
    publisher.start()
    stack.push_async_callback(publisher.close)
    found = EtcdDiscovery(etcd.address, ttl=LONG)
    stack.callback(found.stop)
    return Source(found, publisher.changed)


async def peer(stack: AsyncExitStack, folder: Path) -> Source:
    (folder / "there").mkdir()
    there = await stack.enter_async_context(rig(folder / "there"))
    here = await stack.enter_async_context(
        router_rig(folder / "here", peers=(there.ingress.reached,))
    )
    await wait_until(lambda: here.actor.peers.connected, PATIENCE, "the peer answers")
    return Source(here.actor.peers, changing(there.known.registry))


def changing(table: Registry) -> Callable[[Change], None]:
    def tell(change: Change) -> None:
        if isinstance(change, Added):
            table.add(change.record)
        elif isinstance(change, Removed):
            table.remove(change.record.instance, change.record.endpoint, change.reason)

    return tell


@pytest.fixture(scope="session")
def any_etcd(request: pytest.FixtureRequest) -> Etcd | str:
    """The etcd of the session, or why there is none: the other kinds need it not."""
    try:
        server: Etcd = request.getfixturevalue("etcd_server")
    except pytest.skip.Exception as why:
        return str(why)
    return server


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, any_etcd: Etcd | str) -> Kind:
    """Each kind in turn, with an etcd where it needs one."""
    kind: str = request.param
    if kind != "etcd":
        return kind, None
    if isinstance(any_etcd, str):
        pytest.skip(any_etcd)
    any_etcd.start()
    any_etcd.delete("", prefix=True)
    return kind, any_etcd


async def test_a_snapshot_comes_first_and_late_subscribers_catch_up(
    backend: Kind, tmp_path: Path
) -> None:
    async with source(*backend, tmp_path) as at:
        at.put(1)
        at.put(1, "t.two.go")
        at.put(2)
        early = await at.hear()
        await at.caught_up(early)
        late = await at.hear()
        assert late.known == at.true
        at.drop(1, "t.two.go")  # the other endpoint of the instance stays
        at.put(3)
        await at.caught_up(early, late)
        assert late.changes[1:] == early.changes[-2:]
        assert sorted(late.changes[1:]) == [
            ("added", (3, "t.one.go")),
            ("removed", (1, "t.two.go")),
        ]
        assert early.wrong == late.wrong == []


async def test_who_leaves_hears_no_more_and_a_listener_may_change_things(
    backend: Kind, tmp_path: Path
) -> None:
    async with source(*backend, tmp_path) as at:
        first, second, third = [await at.hear() for _ in range(3)]

        def meddle(change: Change) -> None:
            if change == first_of(1, change):
                third.place.cancel()
                third.place.cancel()
                at.put(2)
                at.drop(1)

        first.meddle = meddle
        at.put(1)
        await wait_until(lambda: ("removed", (1, "t.one.go")) in second.changes, PATIENCE)
        await at.caught_up(first, second)
        assert first.changes == second.changes
        assert ("added", (1, "t.one.go")) in first.changes
        assert at.true == {(2, "t.one.go")}
        # It may have heard what was made before it was cancelled, and nothing behind.
        assert len(third.changes) <= 2
        assert first.wrong == second.wrong == []


def first_of(instance: int, change: Change) -> Change | None:
    return change if isinstance(change, Added) and change.record.instance == instance else None


async def test_a_thousand_quick_changes_end_in_what_is_true(backend: Kind, tmp_path: Path) -> None:
    async with source(*backend, tmp_path) as at:
        early, other = await at.hear(), await at.hear()
        for number in range(400):
            at.put(10 + number)
            if number % 2:
                at.drop(10 + number)
            if number == 200:
                await asyncio.sleep(0)
        late = await at.hear()
        for _ in range(200):
            at.put(1)
            at.drop(1)
        at.put(1)
        await at.caught_up(early, other, late)
        assert len(at.true) == 201
        assert early.changes == other.changes
        assert late.changes[1:] == early.changes[len(early.changes) - len(late.changes) + 1 :]
        assert early.wrong == other.wrong == late.wrong == []
