"""Several sources as one: the own node's records win, its own door is no way, nothing is lost."""

from __future__ import annotations

import pytest

from actors.discovery.base import Change, Listener
from actors.discovery.merged import MergedDiscovery
from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import ActorDead
from actors.messages import Added, Removed, Snapshot
from tests.discovery.samples import door, engine, far
from tests.waiting import TICK, wait_until


class Source:
    """A registry as a Discovery."""

    def __init__(self) -> None:
        self.registry = Registry()

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        return self.registry.subscribe(listener)


class Fed:
    """A source that tells what it is called with."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    async def subscribe(self, listener: Listener) -> Fed:
        self._listeners.append(listener)
        listener(Snapshot([]))
        return self

    def cancel(self) -> None:
        self._listeners.clear()

    def __call__(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change)


class Dead:
    """A source that does not answer."""

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        raise ActorDead("the node is dead")


async def test_the_snapshot_holds_all_sources_and_changes_follow() -> None:
    local, other = Source(), Source()
    local.registry.add(engine(1))
    other.registry.add(far(2))
    merged = MergedDiscovery(local, other)
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    assert heard == [Snapshot([engine(1), far(2)])]
    other.registry.add(far(3))
    local.registry.remove(1, None, "killed")
    other.registry.remove(2, None, "withdrawn")
    assert heard[1:] == [
        Added(far(3)),
        Removed(engine(1), "killed"),
        Removed(far(2), "withdrawn"),
    ]
    assert merged.records == [far(3)]
    merged.stop()
    other.registry.add(far(4))
    assert merged.records == [far(3)]


async def test_an_instance_known_twice_is_the_one_of_the_own_node() -> None:
    local, other = Source(), Source()
    merged = MergedDiscovery(local, other)
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    other.registry.add(far(1))
    local.registry.add(engine(1))
    assert merged.records == [engine(1)]
    other.registry.remove(1, None, "withdrawn")
    assert merged.records == [engine(1)]
    assert heard[1:] == [
        Added(far(1)),
        Removed(far(1), "replaced by a newer record"),
        Added(engine(1)),
    ]
    merged.stop()


async def test_the_own_door_is_no_way_to_an_engine() -> None:
    local, other = Source(), Source()
    merged = MergedDiscovery(local, other)
    await merged.start()
    other.registry.add(far(1, "10.0.0.7:7400"))
    other.registry.add(far(2, "10.0.0.8:7400"))
    local.registry.add(door(5, "10.0.0.7:7400"))
    assert [record.instance for record in merged.records if record.kind == "engine"] == [2]
    local.registry.add(engine(1))
    local.registry.remove(1, None, "killed")  # its file is still there for a moment
    assert [record.instance for record in merged.records if record.kind == "engine"] == [2]
    local.registry.remove(5, None, "killed")
    engines = [record.instance for record in merged.records if record.kind == "engine"]
    assert sorted(engines) == [1, 2]
    merged.stop()


async def test_a_quick_remove_and_add_is_told_twice() -> None:
    merged = MergedDiscovery(Source())
    feed = Fed()
    await merged.follow(feed)
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    feed(Snapshot([far(1)]))
    feed(Removed(far(1), "restart"))
    feed(Added(far(1)))
    assert heard[1:] == [Added(far(1)), Removed(far(1), "restart"), Added(far(1))]


async def test_a_new_snapshot_of_a_source_is_told_as_its_difference() -> None:
    merged = MergedDiscovery(Source())
    one, two = Fed(), Fed()
    await merged.follow(one)
    await merged.follow(two)
    one(Snapshot([far(1), far(2)]))
    two(Snapshot([far(2, "10.0.0.8:7400"), far(3)]))
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    one(Snapshot([far(1)]))
    assert heard[1:] == [
        Removed(far(2), "replaced by a newer record"),
        Added(far(2, "10.0.0.8:7400")),
    ]
    two(Snapshot([]))
    assert merged.records == [far(1)]


async def test_two_endpoints_under_one_instance_are_two() -> None:
    merged = MergedDiscovery(Source())
    feed = Fed()
    await merged.follow(feed)
    await merged.start()
    feed(Snapshot([far(1, endpoint="a.b.c"), far(1, endpoint="a.b.d")]))
    feed(Removed(far(1, endpoint="a.b.c"), "withdrawn"))
    assert merged.records == [far(1, endpoint="a.b.d")]


async def test_a_source_that_does_not_answer_is_told() -> None:
    with pytest.raises(ActorDead):
        await MergedDiscovery(Dead()).start()


async def test_what_a_followed_node_withdraws_no_directory_brings_back() -> None:
    local, directory = Source(), Source()
    merged = MergedDiscovery(local, directory)
    peer = Fed()
    await merged.follow(peer)
    await merged.start()
    directory.registry.add(far(1))
    peer(Added(far(1)))
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    peer(Removed(far(1), "the connection is lost"))
    assert merged.records == []
    assert heard[1:] == [Removed(far(1), "the connection is lost")]
    peer(Added(far(1)))  # it is back, at the same place
    assert merged.records == [far(1)]
    merged.stop()


async def test_a_snapshot_of_a_followed_node_withdraws_as_well() -> None:
    directory = Source()
    merged = MergedDiscovery(Source(), directory)
    peer = Fed()
    await merged.follow(peer)
    await merged.start()
    for instance in (1, 2):
        directory.registry.add(far(instance))
    peer(Snapshot([far(1), far(2)]))
    peer(Snapshot([far(2)]))
    assert merged.records == [far(2)]
    merged.stop()


async def test_what_the_directory_tells_anew_is_believed_and_so_is_another_address() -> None:
    directory = Source()
    merged = MergedDiscovery(Source(), directory)
    peer = Fed()
    await merged.follow(peer)
    await merged.start()
    directory.registry.add(far(1))
    directory.registry.add(far(2, "10.0.0.8:7400"))
    peer(Snapshot([far(1), far(2)]))
    peer(Snapshot([]))
    assert merged.records == [far(2, "10.0.0.8:7400")]
    directory.registry.remove(1, None, "it was withdrawn")
    directory.registry.add(far(1))
    assert far(1) in merged.records
    directory.registry.add(far(3))  # a newer incarnation at the same address
    assert far(3) in merged.records
    merged.stop()


async def test_a_record_that_is_renewed_for_long_is_believed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.discovery.merged.DOUBT", TICK)
    directory = Source()
    merged = MergedDiscovery(Source(), directory)
    peer = Fed()
    await merged.follow(peer)
    await merged.start()
    directory.registry.add(far(1))
    directory.registry.add(far(2))
    peer(Snapshot([far(1), far(2)]))
    peer(Removed(far(1), "lost"))
    peer(Removed(far(2), "lost"))
    directory.registry.remove(2, None, "not renewed")
    assert merged.records == []
    await wait_until(lambda: merged.records == [far(1)])
    assert merged._timer is None
    merged.stop()


async def test_who_follows_the_node_by_another_name_is_believed() -> None:
    merged = MergedDiscovery(Source())
    one, two = Fed(), Fed()
    await merged.follow(one)
    await merged.follow(two)
    await merged.start()
    one(Snapshot([far(1)]))
    two(Snapshot([far(1)]))
    one(Snapshot([]))
    assert merged.records == [far(1)]
    merged.stop()
