"""Several sources as one: the own node's records win, its own door is no way, nothing is lost."""

from __future__ import annotations

import pytest

from actors.discovery.base import Change, Listener
from actors.discovery.merged import MergedDiscovery
from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import ActorDead
from actors.messages import Added, Removed, Snapshot
from tests.discovery.samples import door, engine, far


class Source:
    """A registry as a Discovery."""

    def __init__(self) -> None:
        self.registry = Registry()

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        return self.registry.subscribe(listener)


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
    feed = merged.source()
    heard: list[Change] = []
    await merged.subscribe(heard.append)
    feed(Snapshot([far(1)]))
    feed(Removed(far(1), "restart"))
    feed(Added(far(1)))
    assert heard[1:] == [Added(far(1)), Removed(far(1), "restart"), Added(far(1))]


async def test_a_new_snapshot_of_a_source_is_told_as_its_difference() -> None:
    merged = MergedDiscovery(Source())
    one, two = merged.source(), merged.source()
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
    feed = merged.source()
    await merged.start()
    feed(Snapshot([far(1, endpoint="a.b.c"), far(1, endpoint="a.b.d")]))
    feed(Removed(far(1, endpoint="a.b.c"), "withdrawn"))
    assert merged.records == [far(1, endpoint="a.b.d")]


async def test_a_source_that_does_not_answer_is_told() -> None:
    with pytest.raises(ActorDead):
        await MergedDiscovery(Dead()).start()
