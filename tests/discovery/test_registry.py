"""The registry's table: a snapshot, then every change, in one order for everybody."""

from __future__ import annotations

from actors.discovery.base import Change
from actors.discovery.registry import Registry, RegistrySubscription
from actors.messages import Added, Record, Removed, Snapshot
from transport.bus.address import Address


def record(instance: int, endpoint: str = "a.b.c", capacity: int = 1) -> Record:
    address = Address(f"engine-{instance}", instance, 100 + instance, 1)
    return Record(instance, address, "engine", endpoint, capacity=capacity)


def test_snapshot_comes_first_and_changes_follow() -> None:
    registry = Registry()
    registry.add(record(1))
    heard: list[Change] = []
    registry.subscribe(heard.append)
    registry.add(record(2))
    registry.remove(1, None, "killed")
    assert heard == [Snapshot([record(1)]), Added(record(2)), Removed(record(1), "killed")]
    assert registry.records == [record(2)]


def test_every_subscriber_hears_every_change() -> None:
    registry = Registry()
    first: list[Change] = []
    second: list[Change] = []
    registry.subscribe(first.append)
    registry.subscribe(second.append)
    registry.add(record(1))
    assert first == second == [Snapshot([]), Added(record(1))]


def test_an_instance_may_serve_several_endpoints() -> None:
    registry = Registry()
    registry.add(record(1, "a.b.c"))
    registry.add(record(1, "a.b.d"))
    registry.remove(1, "a.b.c", "withdrawn")
    assert registry.records == [record(1, "a.b.d")]
    registry.remove(1, None, "stopped")
    assert registry.records == []


def test_the_same_record_is_told_once_and_a_changed_one_replaces_it() -> None:
    registry = Registry()
    heard: list[Change] = []
    registry.subscribe(heard.append)
    registry.add(record(1))
    registry.add(record(1))
    registry.add(record(1, capacity=9))
    assert heard[1:] == [
        Added(record(1)),
        Removed(record(1), "replaced by a newer record"),
        Added(record(1, capacity=9)),
    ]


def test_removing_what_is_not_there_tells_nobody() -> None:
    registry = Registry()
    heard: list[Change] = []
    registry.subscribe(heard.append)
    registry.remove(1, None, "gone")
    assert heard == [Snapshot([])]


def test_changes_made_by_a_listener_keep_one_order_for_all() -> None:
    registry = Registry()
    first: list[Change] = []
    second: list[Change] = []

    def meddle(change: Change) -> None:
        first.append(change)
        if change == Added(record(1)):
            registry.remove(1, None, "meddled")

    registry.subscribe(meddle)
    registry.subscribe(second.append)
    registry.add(record(1))
    assert first == second == [Snapshot([]), Added(record(1)), Removed(record(1), "meddled")]


def test_a_cancelled_subscription_is_silent_at_once() -> None:
    registry = Registry()
    heard: list[Change] = []
    later: RegistrySubscription | None = None

    def cut(change: Change) -> None:
        if later is not None:
            later.cancel()

    registry.subscribe(cut)
    later = registry.subscribe(heard.append)
    registry.add(record(1))
    later.cancel()
    assert heard == [Snapshot([])]


def test_a_replaced_table_is_told_as_a_snapshot() -> None:
    registry = Registry()
    registry.add(record(1))
    heard: list[Change] = []
    registry.subscribe(heard.append)
    registry.replace([record(2), record(3)])
    assert heard[1:] == [Snapshot([record(2), record(3)])]
    assert registry.records == [record(2), record(3)]
