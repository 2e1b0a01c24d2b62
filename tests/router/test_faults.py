"""Quarantines: how long, by whose failures, and how a worker comes back."""

from __future__ import annotations

import pytest

from actors.errors import (
    ActorDead,
    CallBackFailed,
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EngineError,
    Overloaded,
    TooLarge,
    Unsupported,
    WorkerLost,
    WorkerUnavailable,
)
from actors.router.faults import FAULTS, Faults, code_of

ONE, TWO, THREE = (7, 1), (7, 2), (7, 3)


def rested(faults: Faults, since: float) -> float:
    """Seconds until the quarantine of instance 1 is over."""
    return faults.until(1) - since


def test_a_quarantine_doubles_with_each_trial_that_fails_up_to_the_longest() -> None:
    faults, now = Faults(5.0, 30.0), 100.0
    assert faults.strike(1, ONE, [ONE], now)
    lengths = [rested(faults, now)]
    for number in range(4):
        now = faults.until(1)
        assert faults.over(now - 0.01) == []
        assert faults.over(now) == [1]
        assert faults.due(1)
        assert not faults.rests(1)
        trial = (8, number)
        faults.begin_trial(1, trial, now)
        assert faults.rests(1)
        assert faults.tried(1)
        assert faults.strike(1, trial, [trial], now)
        lengths.append(rested(faults, now))
    assert lengths == [5.0, 10.0, 20.0, 30.0, 30.0]


def test_a_trial_that_succeeds_forgets_what_has_been() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [ONE], 0.0)
    faults.over(5.0)
    faults.begin_trial(1, TWO, 0.0)
    assert faults.works(1, TWO)
    assert 1 not in faults
    assert not len(faults)
    faults.strike(1, THREE, [THREE], 100.0)
    assert rested(faults, 100.0) == 5.0


def test_streams_that_the_worker_had_already_neither_extend_nor_end_it() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [ONE, TWO, THREE], 0.0)
    assert not faults.strike(1, TWO, [TWO, THREE], 1.0)
    assert not faults.works(1, THREE)
    assert faults.until(1) == 5.0


def test_an_old_stream_that_fails_after_the_quarantine_does_not_begin_another() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [ONE, TWO], 0.0)
    faults.over(5.0)
    assert not faults.strike(1, TWO, [], 6.0)
    assert faults.due(1)


def test_only_the_trial_counts_of_what_is_sent_in_a_quarantine() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [], 0.0)
    faults.begin_trial(1, TWO, 0.0)  # for want of any other worker
    assert not faults.strike(1, THREE, [TWO], 1.0)
    assert faults.strike(1, TWO, [], 2.0)
    assert faults.until(1) == 12.0


def test_a_trial_that_says_nothing_is_tried_again() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [], 0.0)
    faults.over(5.0)
    faults.begin_trial(1, TWO, 0.0)
    faults.undecided(1, THREE)
    assert faults.tried(1)
    faults.undecided(1, TWO)
    assert faults.due(1)


def test_zero_switches_quarantines_off() -> None:
    faults = Faults(0.0, 60.0)
    assert not faults.strike(1, ONE, [], 0.0)
    assert not faults.rests(1)
    assert not faults.waits([1])


def test_who_left_while_it_was_tried_is_tried_again() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [], 0.0)
    faults.over(5.0)
    faults.begin_trial(1, TWO, 0.0)
    faults.leave(1)
    assert faults.due(1)


def test_who_does_not_come_back_is_forgotten_after_a_while() -> None:
    faults = Faults(5.0, 60.0)
    faults.strike(1, ONE, [], 0.0)
    faults.strike(2, ONE, [], 0.0)
    faults.over(5.0)
    assert faults.waits([2])
    faults.forget_strangers([2], 64.0)
    assert 1 in faults
    faults.forget_strangers([2], 65.0)
    assert 1 not in faults
    assert 2 in faults
    assert not faults.waits([2])


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.router.faults._KEPT", 10)
    faults = Faults(5.0, 60.0)
    for instance in range(25):
        faults.strike(instance, ONE, [], 0.0)
    assert len(faults) == 10
    assert 24 in faults


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConnectionLost("cut"), True),
        (CallBackFailed("nobody came"), True),
        (WorkerLost("died"), True),
        (WorkerUnavailable("stops"), True),
        (DeadlineExceeded("no reply", sent="maybe"), True),
        (DeadlineExceeded("no prologue", limit="prologue"), True),
        (DeadlineExceeded("the caller's own"), False),
        (WorkerUnavailable("said by the worker of another", origin="worker"), False),
        (EngineError("ConnectionError: mine", type="ConnectionError"), False),
        (TooLarge("a fat request"), False),
        (Cancelled("enough"), False),
        (Overloaded("full"), False),
        (Unsupported("many"), False),
        (ActorDead("the caller"), False),
        (CallHomeError("new", code="from.the.future"), False),
    ],
    ids=lambda each: str(each),
)
def test_errors_know_whether_they_speak_against_a_worker(error: CallHomeError, fault: bool) -> None:
    assert (code_of(error) in FAULTS) is fault
