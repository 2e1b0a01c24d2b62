"""Which dispatch hears what, and when: pure."""

from __future__ import annotations

import random
from collections.abc import Callable

from actors.messages import Record
from actors.router.lifecycle import Lifecycle
from transport.bus.address import Address


def record(instance: int, endpoint: str = "t.near.go", capacity: int = 0) -> Record:
    return Record(instance, Address("e", instance, 1, 1), "engine", endpoint, capacity=capacity)


A, B, C = record(1), record(2), record(3)


class Ear:
    """Writes down what it hears; equal to every other, as a dataclass without fields would be."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_instance_added(self, record: Record) -> None:
        self.heard.append(("added", record.instance))

    def on_instance_removed(self, record: Record, reason: str) -> None:
        self.heard.append(("removed", record.instance))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ear)

    def __hash__(self) -> int:
        return 1


class Told:
    """Keeps what is complained of."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.lifecycle = Lifecycle(lambda what, error: self.complaints.append(f"{what}: {error}"))


def test_conformance_30_two_dispatches_on_one_endpoint_both_hear() -> None:
    lifecycle = Told().lifecycle
    first, second = Ear(), Ear()
    lifecycle.subscribe(first)
    lifecycle.subscribe(second)
    lifecycle.added(A)
    lifecycle.removed(A, "it is gone")
    assert first.heard == second.heard == [("added", 1), ("removed", 1)]


def test_conformance_31_removed_and_added_at_once_are_both_told() -> None:
    lifecycle = Told().lifecycle
    ear = Ear()
    lifecycle.subscribe(ear)
    for _ in range(3):
        lifecycle.added(A)
        lifecycle.removed(A, "it is gone")
    lifecycle.added(A)
    assert ear.heard == [("added", 1), ("removed", 1)] * 3 + [("added", 1)]


def test_who_comes_late_hears_what_is_known_before_subscribe_returns() -> None:
    lifecycle = Told().lifecycle
    for each in (A, B, C):
        lifecycle.added(each)
    lifecycle.removed(B, "it is gone")
    ear = Ear()
    lifecycle.subscribe(ear)
    assert ear.heard == [("added", 1), ("added", 3)]
    lifecycle.added(B)
    assert ear.heard[2:] == [("added", 2)]


def test_one_that_hears_already_is_not_told_twice() -> None:
    lifecycle = Told().lifecycle
    ear = Ear()
    hearing = lifecycle.subscribe(ear)
    lifecycle.added(A)
    assert lifecycle.subscribe(ear) is hearing
    lifecycle.removed(A, "it is gone")
    assert ear.heard == [("added", 1), ("removed", 1)]


def test_one_dispatch_of_two_routers_hears_of_both() -> None:
    one, other = Told().lifecycle, Told().lifecycle
    ear = Ear()
    hearing = one.subscribe(ear)
    assert other.subscribe(ear) is not hearing
    one.added(A)
    other.added(A)
    hearing.cancel()
    one.removed(A, "it is gone")
    other.removed(A, "it is gone")
    assert ear.heard == [("added", 1), ("added", 1), ("removed", 1)]


def test_who_was_cancelled_hears_nothing_more_and_may_come_again() -> None:
    lifecycle = Told().lifecycle
    ear, other = Ear(), Ear()
    hearing = lifecycle.subscribe(ear)
    lifecycle.subscribe(other)
    lifecycle.added(A)
    hearing.cancel()
    hearing.cancel()
    lifecycle.removed(A, "it is gone")
    lifecycle.added(B)
    again = lifecycle.subscribe(ear)
    hearing.cancel()  # the old one: it must not take the new one with it
    lifecycle.added(C)
    assert ear.heard == [("added", 1), ("added", 2), ("added", 3)]
    assert again.active
    lifecycle.close()
    lifecycle.added(A)
    assert len(ear.heard) == 3
    assert other.heard == [("added", 1), ("removed", 1), ("added", 2), ("added", 3)]


def test_a_repeated_or_unknown_event_is_told_as_it_is() -> None:
    lifecycle = Told().lifecycle
    ear = Ear()
    lifecycle.subscribe(ear)
    lifecycle.added(A)
    lifecycle.added(record(1, capacity=7))
    lifecycle.removed(B, "nobody knew it")
    assert ear.heard == [("added", 1), ("added", 1), ("removed", 2)]


def test_the_same_instance_of_two_endpoints_is_two() -> None:
    lifecycle = Told().lifecycle
    lifecycle.added(record(1, "t.near.a"))
    lifecycle.added(record(1, "t.near.b"))
    lifecycle.removed(record(1, "t.near.a"), "it is gone")
    ear = Ear()
    lifecycle.subscribe(ear)
    assert ear.heard == [("added", 1)]


class Bad(Ear):
    """Hears, and raises."""

    def on_instance_added(self, record: Record) -> None:
        super().on_instance_added(record)
        raise ValueError("not me")

    on_instance_removed = None  # type: ignore[assignment]


def test_a_callback_that_raises_costs_nobody_else() -> None:
    told = Told()
    before, bad, after = Ear(), Bad(), Ear()
    told.lifecycle.added(A)
    for each in (before, bad, after):
        told.lifecycle.subscribe(each)
    told.lifecycle.added(B)
    told.lifecycle.removed(A, "it is gone")
    assert before.heard == after.heard == [("added", 1), ("added", 2), ("removed", 1)]
    assert bad.heard == [("added", 1), ("added", 2)]
    assert [each.split(":")[0] for each in told.complaints] == [
        "Bad.on_instance_added for t.near.go",
        "Bad.on_instance_added for t.near.go",
        "Bad.on_instance_removed for t.near.go",
    ]


class Reacting(Ear):
    """Does something about each added instance."""

    def __init__(self, react: Callable[[Record], None], only: Record | None = None) -> None:
        super().__init__()
        self.react = react
        self.only = only

    def on_instance_added(self, record: Record) -> None:
        super().on_instance_added(record)
        if self.only in (None, record):
            self.react(record)


def test_what_happens_inside_a_callback_is_told_after_it_in_one_order_for_all() -> None:
    lifecycle = Told().lifecycle
    first = Reacting(lambda each: lifecycle.removed(each, "at once"), only=A)
    second = Ear()
    lifecycle.subscribe(first)
    lifecycle.subscribe(second)
    lifecycle.added(A)
    lifecycle.added(B)
    assert first.heard == second.heard == [("added", 1), ("removed", 1), ("added", 2)]


def test_who_subscribes_inside_a_callback_misses_nothing_and_hears_nothing_twice() -> None:
    lifecycle = Told().lifecycle
    late = Ear()

    def react(each: Record) -> None:
        lifecycle.added(C)  # it waits; the newcomer hears of it as an event
        lifecycle.subscribe(late)

    lifecycle.added(A)
    lifecycle.subscribe(opener := Ear())
    lifecycle.subscribe(once := Reacting(react, only=B))
    lifecycle.added(B)
    assert late.heard == [("added", 1), ("added", 2), ("added", 3)]
    assert once.heard == opener.heard == [("added", 1), ("added", 2), ("added", 3)]


def test_who_leaves_inside_a_callback_hears_no_rest_of_its_snapshot() -> None:
    lifecycle = Told().lifecycle
    other = Ear()
    hearing = lifecycle.subscribe(other)

    def leave(each: Record) -> None:
        hearing.cancel()
        lifecycle.subscribe(leaver).cancel()

    leaver = Reacting(leave)
    lifecycle.added(A)
    lifecycle.added(B)
    lifecycle.subscribe(leaver)
    lifecycle.added(C)
    assert leaver.heard == [("added", 1)]
    assert other.heard == [("added", 1), ("added", 2)]


def test_publishing_while_a_snapshot_is_told_keeps_the_order() -> None:
    lifecycle = Told().lifecycle
    lifecycle.added(A)
    lifecycle.added(B)
    ear = Reacting(lambda each: lifecycle.added(C), only=A)
    lifecycle.subscribe(ear)
    assert ear.heard == [("added", 1), ("added", 2), ("added", 3)]


def test_what_anybody_knows_at_the_end_is_what_is_known() -> None:
    """Random comings, goings and subscriptions: each ear's own book agrees with the lifecycle's."""
    draw = random.Random(7)
    lifecycle = Told().lifecycle
    ears: list[Ear] = []
    known: set[int] = set()
    for _ in range(2000):
        instance = draw.randrange(20)
        if draw.random() < 0.02:
            ears.append(Ear())
            lifecycle.subscribe(ears[-1])
        elif instance in known:
            known.discard(instance)
            lifecycle.removed(record(instance), "it is gone")
        else:
            known.add(instance)
            lifecycle.added(record(instance))
    assert len(ears) > 10
    for ear in ears:
        book: set[int] = set()
        for what, instance in ear.heard:
            (book.add if what == "added" else book.remove)(instance)
        assert book == known
