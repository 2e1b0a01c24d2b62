"""The table of awaited stream halves, walked with a clock turned by hand."""

from __future__ import annotations

import contextlib
import math
import random

import pytest

from transport.callhome.pending import TOMBSTONE, Entry, Pending
from transport.errors import ConnectionLost, LocalProtocolError, OutboxFull, RemoteProtocolError

WORKER = ("dynamo", "backend", "generate", 7)
OTHER = ("dynamo", "backend", "generate", 8)


def table() -> Pending[str]:
    """Three halves: two of one worker, one that is bound to none."""
    pending: Pending[str] = Pending()
    pending.register("a", "response", WORKER, 5.0, "waiter a", 0.0)
    pending.register("b", "request", WORKER, 6.0, "waiter b", 0.0)
    pending.register("c", "mux", None, math.inf, "waiter c", 0.0)
    return pending


def subjects(entries: list[Entry[str]]) -> list[str]:
    return sorted(entry.subject for entry in entries)


def test_a_match_takes_the_entry_once() -> None:
    pending = table()
    assert pending.match("a", "response") == Entry("a", "response", WORKER, 5.0, "waiter a")
    assert len(pending) == 2
    with pytest.raises(RemoteProtocolError, match="unknown subject"):
        pending.match("a", "response")
    assert pending.expired(5.5) == []
    assert subjects(pending.removed(WORKER, 5.5)) == ["b"]


def test_the_wrong_half_is_refused_and_the_right_one_still_awaited() -> None:
    pending = table()
    with pytest.raises(RemoteProtocolError, match="'request' half came where 'response'"):
        pending.match("a", "request")
    assert pending.match("a", "response").waiter == "waiter a"


def test_what_expires_leaves_by_its_deadline() -> None:
    pending = table()
    assert pending.expired(4.99) == []
    assert subjects(pending.expired(5.0)) == ["a"]
    assert subjects(pending.expired(100.0)) == ["b"]
    assert pending.expired(1e12) == []
    assert len(pending) == 1  # without a deadline


def test_what_is_cancelled_is_not_heard_of_again() -> None:
    pending = table()
    cancelled = pending.cancel("a")
    assert cancelled is not None
    assert cancelled.waiter == "waiter a"
    assert pending.cancel("a") is None
    assert subjects(pending.expired(10.0)) == ["b"]
    with pytest.raises(RemoteProtocolError):
        pending.match("a", "response")


def test_a_subject_used_again_keeps_its_new_deadline() -> None:
    pending = table()
    pending.cancel("a")
    pending.register("a", "response", None, 50.0, "again", 1.0)
    assert subjects(pending.expired(10.0)) == ["b"]
    assert subjects(pending.expired(50.0)) == ["a"]


def test_a_removal_takes_both_halves_of_that_instance_only() -> None:
    pending = table()
    pending.register("d", "response", OTHER, 9.0, "waiter d", 0.0)
    assert subjects(pending.removed(WORKER, 1.0)) == ["a", "b"]
    assert pending.removed(WORKER, 1.0) == []
    assert subjects(pending.removed(OTHER, 1.0)) == ["d"]
    assert len(pending) == 1


@pytest.mark.parametrize(
    ("later", "refused"), [(0.0, True), (TOMBSTONE - 0.01, True), (TOMBSTONE, False), (99.0, False)]
)
def test_conformance_13_removal_within_5_s_before_association_fails_at_once(
    later: float, refused: bool
) -> None:
    pending: Pending[str] = Pending()
    pending.removed(WORKER, 100.0)
    if refused:
        with pytest.raises(ConnectionLost, match="nothing was sent"):
            pending.register("a", "response", WORKER, 200.0, "", 100.0 + later)
        assert len(pending) == 0
    else:
        pending.register("a", "response", WORKER, 200.0, "", 100.0 + later)
        assert len(pending) == 1


def test_a_tombstone_holds_back_neither_others_nor_the_unbound() -> None:
    pending: Pending[str] = Pending()
    pending.removed(WORKER, 0.0)
    pending.register("a", "response", OTHER, 9.0, "", 1.0)
    pending.register("b", "response", None, 9.0, "", 1.0)
    assert len(pending) == 2


def test_an_instance_that_is_added_again_has_no_tombstone() -> None:
    pending: Pending[str] = Pending()
    pending.removed(WORKER, 0.0)
    pending.added(WORKER)
    pending.added(OTHER)
    pending.register("a", "response", WORKER, 9.0, "", 0.1)
    assert len(pending) == 1


def test_a_second_removal_starts_the_tombstone_anew() -> None:
    pending: Pending[str] = Pending()
    pending.removed(WORKER, 0.0)
    pending.removed(WORKER, 4.0)
    with pytest.raises(ConnectionLost):
        pending.register("a", "response", WORKER, 9.0, "", 8.9)
    pending.register("a", "response", WORKER, 20.0, "", 9.0)


def test_a_subject_is_awaited_once() -> None:
    pending = table()
    with pytest.raises(LocalProtocolError):
        pending.register("a", "response", OTHER, 5.0, "", 0.0)
    assert subjects(pending.removed(WORKER, 0.0)) == ["a", "b"]


def test_the_table_is_bounded() -> None:
    pending: Pending[str] = Pending(most=3)
    for number in range(3):
        pending.register(str(number), "response", None, 5.0, "", 0.0)
    with pytest.raises(OutboxFull, match="3 stream halves"):
        pending.register("3", "response", None, 5.0, "", 0.0)
    pending.cancel("0")
    pending.register("3", "response", None, 5.0, "", 0.0)


def test_tombstones_are_bounded_in_number_and_time() -> None:
    pending: Pending[str] = Pending()
    for number in range(10_000):
        pending.removed(number, 0.0)
    assert len(pending._dead) <= 4096
    pending.removed("late", TOMBSTONE)
    assert list(pending._dead) == ["late"]


def test_cancelled_entries_do_not_pile_up() -> None:
    pending: Pending[str] = Pending()
    for number in range(10_000):
        pending.register(str(number), "response", WORKER, 1e9, "", 0.0)
        pending.cancel(str(number))
    assert len(pending._due) < 200
    assert pending._of == {}


def test_clear_takes_everything() -> None:
    pending = table()
    assert subjects(pending.clear()) == ["a", "b", "c"]
    assert len(pending) == 0
    assert pending.expired(1e12) == []
    assert pending.removed(WORKER, 0.0) == []


def test_every_entry_leaves_exactly_once_whatever_happens() -> None:
    draw = random.Random(11)
    pending: Pending[str] = Pending()
    now, made, left = 0.0, 0, []
    for _ in range(20_000):
        now += draw.random() / 10
        match draw.randrange(6):
            case 0 | 1 | 2:
                instance = draw.choice([None, 1, 2, 3])
                try:
                    pending.register(str(made), "response", instance, now + draw.random(), "", now)
                    made += 1
                except ConnectionLost:
                    assert instance is not None
            case 3:
                subject = str(draw.randint(max(0, made - 20), made))
                if draw.random() < 0.5:
                    with contextlib.suppress(RemoteProtocolError):
                        left.append(pending.match(subject, "response").subject)
                elif (entry := pending.cancel(subject)) is not None:
                    left.append(entry.subject)
            case 4:
                left += [entry.subject for entry in pending.expired(now)]
            case 5 if draw.random() < 0.05:
                left += [entry.subject for entry in pending.removed(draw.randint(1, 3), now)]
    left += [entry.subject for entry in pending.expired(now + 9)]
    assert len(pending) == 0
    assert sorted(left, key=int) == [str(number) for number in range(made)]
