"""What is done after an attempt has failed: the whole table, and the limits around it."""

from __future__ import annotations

import itertools

import pytest

from actors.errors import (
    ActorDead,
    AllBusy,
    NoWorkers,
    Overloaded,
    Unsupported,
    WorkerLost,
    WorkerUnavailable,
)
from actors.session import (
    ABSENT,
    BROKEN,
    FINAL,
    FRESH,
    LOST,
    MIGRATE,
    ONGOING,
    PAUSE,
    RAISE,
    REFUSED,
    RESUMED,
    RETRY,
    TABLE,
    WAIT,
    Session,
    instance_of,
    kind_of,
)
from transport.errors import (
    CallBackFailed,
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    EngineError,
    LocalProtocolError,
    OutboxFull,
    PeerLost,
    RemoteProtocolError,
)

#: One error of each kind.
OF_KIND: dict[int, CallHomeError] = {
    REFUSED: Overloaded("full", instance="7"),
    LOST: PeerLost("killed", instance="7"),
    BROKEN: ConnectionLost("cut", instance="7"),
    ABSENT: NoWorkers("none"),
    FINAL: EngineError("boom", type="ValueError"),
}
#: What the table says, in words of its own.
ALLOWED: dict[tuple[int, int], list[int]] = {
    (FRESH, REFUSED): [RETRY],
    (FRESH, LOST): [RETRY, MIGRATE],
    (FRESH, BROKEN): [MIGRATE],
    (FRESH, ABSENT): [WAIT],
    (RESUMED, REFUSED): [RETRY, WAIT],
    (RESUMED, LOST): [MIGRATE],
    (RESUMED, BROKEN): [MIGRATE],
    (RESUMED, ABSENT): [WAIT],
    (ONGOING, REFUSED): [MIGRATE],
    (ONGOING, LOST): [MIGRATE],
    (ONGOING, BROKEN): [MIGRATE],
}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Overloaded("x"), REFUSED),
        (WorkerUnavailable("x"), REFUSED),
        (ConnectionLost("refused", sent="no"), REFUSED),
        (DeadlineExceeded("connect", sent="no"), REFUSED),
        (OutboxFull("x", sent="no"), REFUSED),
        (ActorDead("x", sent="no"), REFUSED),
        (PeerLost("killed", instance="7"), LOST),
        (WorkerLost("killed", instance="7"), LOST),
        (PeerLost("the router"), BROKEN),
        (ConnectionLost("cut", sent="maybe"), BROKEN),
        (CallBackFailed("x"), BROKEN),
        (DeadlineExceeded("first", limit="first"), BROKEN),
        (DeadlineExceeded("gap", limit="gap"), BROKEN),
        (DeadlineExceeded("prologue", sent="maybe"), BROKEN),
        (NoWorkers("x"), ABSENT),
        (AllBusy("x"), ABSENT),
        (DeadlineExceeded("all of it", limit="total"), FINAL),
        (DeadlineExceeded("said the engine"), FINAL),
        (OutboxFull("x"), FINAL),
        (EngineError("x", sent="maybe"), FINAL),
        (EncodeError("x"), FINAL),
        (Cancelled("x"), FINAL),
        (Unsupported("x"), FINAL),
        (RemoteProtocolError("x"), FINAL),
        (LocalProtocolError("x", sent="no"), FINAL),
    ],
)
def test_what_an_error_says_about_its_request(error: CallHomeError, kind: int) -> None:
    assert kind_of(error) == kind


def test_only_a_number_is_an_instance() -> None:
    for text in ("", "-1", "x", "²", "٣", "1" * 5000):
        assert instance_of(PeerLost("x", instance=text)) == 0
    assert instance_of(PeerLost("x", instance="18446744073709551615")) == (1 << 64) - 1


def test_the_whole_table() -> None:
    cells = set(itertools.product((FRESH, RESUMED, ONGOING), OF_KIND))
    assert set(TABLE) == cells
    for phase, kind in cells:
        allowed = ALLOWED.get((phase, kind), [])
        assert list(TABLE[phase, kind]) == allowed
        # With every leave it is the first of them; with less and less, the next; at last the error.
        for retries, migrations in ((1, 1), (0, 1), (1, 0), (0, 0)):
            session, error = at(phase, retries, migrations), OF_KIND[kind]
            failed_before = session.failures > 0
            decision = session.ended(error, 1 if phase == ONGOING else 0)
            leave = {
                RETRY: retries > 0,
                MIGRATE: session.migrated < migrations or decision.step == MIGRATE,
                WAIT: migrations > 0 and failed_before,
            }
            expected = next((step for step in allowed if leave[step]), RAISE)
            assert decision.step == expected, (phase, kind, retries, migrations)
            assert (decision.error is None) == (expected != RAISE)


def at(phase: int, retries: int, migrations: int) -> Session:
    """A session in that phase, with all its leave."""
    session = Session(retries, migrations, resumable=True)
    if phase == RESUMED:
        session.migrations += 1
        session.ended(PeerLost("before", instance="1"), 3)
        session.migrations, session.migrated = migrations, 0
        if not migrations:
            session.failures = 1
    return session


@pytest.mark.parametrize("kind", [REFUSED, LOST, BROKEN, ABSENT])
@pytest.mark.parametrize("phase", [FRESH, RESUMED, ONGOING])
def test_conformance_40_who_has_cancelled_gets_no_other_attempt(phase: int, kind: int) -> None:
    session = at(phase, 3, 3)
    session.failures = 1
    error = OF_KIND[kind]
    decision = session.ended(error, 1 if phase == ONGOING else 0, stopped="t.x.y: enough")
    assert decision.step == RAISE
    if TABLE[phase, kind]:
        assert isinstance(decision.error, Cancelled)
        assert decision.error.__cause__ is error
        assert str(decision.error) == "t.x.y: enough"
    else:
        assert decision.error is not None


def test_who_has_cancelled_a_stream_that_nobody_would_try_again_is_told_what_happened() -> None:
    session = Session(3, 0, resumable=False)
    error = PeerLost("killed", instance="7")
    assert session.ended(error, 3, stopped="enough") == (RAISE, error, 0.0)


def test_retries_end_and_the_first_error_is_told() -> None:
    session = Session(3, 0, resumable=False)
    errors = [Overloaded(f"full {number}", instance=str(number)) for number in range(1, 5)]
    for error in errors[:3]:
        assert session.ended(error, 0).step == RETRY
    assert session.avoid == {1: "overloaded", 2: "overloaded", 3: "overloaded"}
    last = session.ended(errors[3], 0)
    assert (last.step, last.error) == (RAISE, errors[0])
    assert errors[0].__cause__ is errors[3]


def test_what_a_worker_tells_of_others_is_not_passed_on_as_its_own_fault() -> None:
    session = Session(3, 0, resumable=False)
    for instance, error in enumerate(
        [
            WorkerUnavailable("said by its own engine", origin="worker"),
            Overloaded("full", origin="worker"),
            WorkerUnavailable("it stops"),
        ],
        1,
    ):
        error.details["instance"] = str(instance)
        session.ended(error, 0)
    assert session.avoid == {1: "", 2: "overloaded", 3: "worker.unavailable"}


def test_one_worker_that_is_full_is_told_as_that_and_several_as_all() -> None:
    busy = AllBusy("all 1 are busy")
    one, full = Session(3, 0, resumable=False), Overloaded("full", instance="1")
    one.ended(full, 0)
    assert one.ended(busy, 0).error is full
    many = Session(3, 0, resumable=False)
    for number in (1, 2):
        many.ended(Overloaded("full", instance=str(number)), 0)
    assert many.ended(busy, 0).error is busy


def test_a_death_with_nobody_left_is_told_as_the_death() -> None:
    session, lost = Session(3, 0, resumable=False), PeerLost("killed", instance="1")
    assert session.ended(lost, 0).step == RETRY
    decision = session.ended(NoWorkers("none is left"), 0)
    assert (decision.step, decision.error) == (RAISE, lost)


def test_nobody_from_the_start_is_told_at_once() -> None:
    for error in (NoWorkers("none"), AllBusy("all")):
        session = Session(3, 3, resumable=True)
        assert session.ended(error, 0) == (RAISE, error, 0.0)


def test_a_handlers_error_ends_the_request_whatever_came_before() -> None:
    session, boom = Session(3, 3, resumable=True), EngineError("boom")
    session.ended(PeerLost("killed", instance="1"), 3)
    assert session.ended(boom, 0) == (RAISE, boom, 0.0)


def test_migrations_are_counted_over_the_stream_and_the_last_break_is_told() -> None:
    session = Session(3, 2, resumable=True)
    assert session.ended(PeerLost("one", instance="1"), 3).step == MIGRATE
    assert session.ended(ConnectionLost("two", instance="2"), 2).step == MIGRATE
    third = PeerLost("three", instance="3")
    assert session.ended(third, 1) == (RAISE, third, 0.0)
    assert (session.delivered, session.migrated, session.retried) == (6, 2, 0)
    assert session.used_up


def test_a_limit_is_used_up_only_where_that_is_the_reason() -> None:
    lost, full = PeerLost("killed", instance="1"), Overloaded("full", instance="2")
    never = Session(3, 0, resumable=True)
    assert never.ended(lost, 1).step == RAISE
    assert not never.used_up  # there was none
    nobody = Session(0, 1, resumable=True, patience=0.0)
    assert nobody.ended(lost, 1).step == MIGRATE
    assert nobody.ended(full, 0).step == RAISE
    assert not nobody.used_up  # it is for want of a worker
    unable = Session(3, 1, resumable=False)
    assert unable.ended(lost, 1).step == RAISE
    assert not unable.used_up


def test_the_newest_failure_is_told_last() -> None:
    session = Session(9, 0, resumable=False)
    for instance in (1, 2, 1):
        session.ended(Overloaded("full", instance=str(instance)), 0)
    assert list(session.avoid) == [2, 1]


def test_a_stream_that_nobody_can_continue_is_not_but_one_without_items_begins_anew() -> None:
    broken = ConnectionLost("cut", instance="1")
    assert Session(3, 3, resumable=False).ended(broken, 1).step == RAISE
    assert Session(3, 3, resumable=False).ended(broken, 0).step == MIGRATE
    # What it has been told it cannot be told again.
    assert Session(3, 3, resumable=False).ended(broken, 0, spoken=True).step == RAISE


def test_pauses_grow_and_end_and_begin_anew_behind_an_item() -> None:
    session = Session(1, 1, resumable=True, patience=4.0)
    lost = PeerLost("killed", instance="1")
    session.ended(lost, 3)
    pauses = []
    while (decision := session.ended(NoWorkers("none"), 0)).step == WAIT:
        assert not session.avoid  # whoever is there after a pause is welcome
        pauses.append(decision.pause)
    assert pauses[:6] == [PAUSE, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert sum(pauses) == pytest.approx(4.0)
    assert decision.error is lost
    session.migrations = 2
    session.ended(PeerLost("again", instance="2"), 1)
    assert session.ended(NoWorkers("none"), 0) == (WAIT, None, PAUSE)


def test_after_a_pause_only_those_are_avoided_where_the_handler_may_hang_still() -> None:
    session = Session(3, 9, resumable=True)
    session.ended(DeadlineExceeded("no first item", limit="first", instance="1"), 0)
    session.ended(DeadlineExceeded("no call-back", sent="maybe", instance="2"), 0)
    session.ended(ConnectionLost("cut", instance="3"), 0)
    session.ended(Overloaded("full", instance="4"), 0)
    session.ended(PeerLost("killed", instance="5"), 0)
    assert list(session.avoid) == [1, 2, 3, 4, 5]
    for _ in range(3):
        assert session.ended(NoWorkers("each has failed it"), 0).step == WAIT
        assert session.avoid == {1: "deadline", 2: "deadline"}


def test_what_an_earlier_worker_was_told_counts_as_delivered() -> None:
    session = Session(3, 1, resumable=True)
    assert session.ended(PeerLost("killed", instance="1"), 0, spoken=True).step == MIGRATE
    assert session.ended(Overloaded("full", instance="2"), 0).step == RETRY
    lost = PeerLost("killed", instance="3")
    assert session.ended(lost, 0).step == RAISE  # a retry it would be if nothing had been said
    assert (session.migrated, session.retried) == (1, 1)


def test_refusals_behind_a_break_cost_no_migration() -> None:
    session = Session(1, 1, resumable=True)
    session.ended(PeerLost("killed", instance="1"), 3)
    assert session.ended(Overloaded("full", instance="2"), 0).step == RETRY
    assert session.ended(Overloaded("full", instance="3"), 0).step == WAIT
    assert session.migrated == 1
