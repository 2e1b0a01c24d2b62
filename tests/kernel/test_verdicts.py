"""Well, frozen or stalled: the table of ``actors.kernel.verdicts``, with a clock that the test
turns.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.kernel.verdicts import (
    FROZEN,
    HIDDEN,
    IDLE,
    LOOK,
    PERIOD,
    RUNNING,
    STALLED,
    STOPPED,
    UNREADY,
    WELL,
    Judge,
    Process,
    Sign,
)

LIMIT = 3.0


class Actor:
    """What one process does, second by second, and who looks at it."""

    def __init__(self, limit: float = LIMIT, skew: float = 0.0) -> None:
        self.judge = Judge(limit)
        self.now = 1000.0
        self.skew = skew
        self.beat = self.turn = self.now + skew
        self.used = 0.0
        self.asked = 0
        #: Since when its engine is not ready, and why.
        self.told = (0.0, "")

    def ask(self, state: str | None, rate: float) -> Process | None:
        self.asked += 1
        return None if state is None else Process(state, self.used)

    def live(
        self,
        seconds: float,
        *,
        beats: bool = True,
        turns: bool = True,
        state: str | None = IDLE,
        rate: float = 0.0,
    ) -> list[str]:
        """Let it be so for some time; the verdict of each look."""
        found = []
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            self.used += rate * LOOK
            if beats and self.now + self.skew - self.beat >= PERIOD:
                self.beat = self.now + self.skew
                self.turn = self.beat if turns else self.turn
            found.append(self.look(state, rate))
        return found

    def look(self, state: str | None = IDLE, rate: float = 0.0) -> str:
        sign = Sign(self.beat, self.turn, 0.0, *self.told)
        return self.judge.look(sign, lambda: self.ask(state, rate), self.now).code


def noticed(found: list[str], code: str) -> float:
    """Seconds until ``code`` was said, after nothing but WELL; it is said ever after."""
    first = found.index(code)
    assert set(found[:first]) <= {WELL}
    assert set(found[first:]) == {code}
    return (first + 1) * LOOK


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"beats": False, "state": STOPPED}, FROZEN),
        ({"beats": False, "state": IDLE}, FROZEN),
        ({"beats": False, "state": HIDDEN}, FROZEN),
        ({"beats": False, "state": RUNNING, "rate": 0.9}, STALLED),
        ({"beats": False, "state": IDLE, "rate": 0.9}, STALLED),
        ({"turns": False}, STALLED),
        ({"turns": False, "state": RUNNING, "rate": 1.0}, STALLED),
        ({"beats": False, "state": RUNNING, "rate": 0.01}, WELL),
        ({"beats": False, "state": None}, WELL),
        ({"state": RUNNING, "rate": 1.0}, WELL),
        ({}, WELL),
    ],
)
def test_each_row_of_the_table(what: dict[str, object], code: str) -> None:
    actor = Actor()
    assert set(actor.live(5.0)) == {WELL}
    assert actor.asked == 0, "who beats costs no system call"
    found = actor.live(10.0, **what)  # type: ignore[arg-type]
    if code == WELL:
        assert set(found) == {WELL}
        return
    assert LIMIT - 3 * LOOK <= noticed(found, code) <= LIMIT
    since = actor.judge.verdict.since
    assert 1004.5 <= since <= 1005.0
    assert actor.live(1.0)[-1] == WELL, "it is well again as soon as it beats and turns"
    assert set(actor.live(5.0)) == {WELL}


def test_who_is_killed_while_it_is_frozen_does_not_seem_to_go_on() -> None:
    actor = Actor()
    actor.live(1.0)
    assert actor.live(5.0, beats=False, state=STOPPED)[-1] == FROZEN
    assert set(actor.live(5.0, beats=False, state=None)) == {FROZEN}


@pytest.mark.parametrize("what", [{"beats": False, "state": STOPPED}, {"turns": False}])
def test_what_is_shorter_than_the_limit_is_nothing(what: dict[str, object]) -> None:
    actor = Actor()
    for _ in range(5):
        found = actor.live(1.5, **what)  # type: ignore[arg-type]
        assert set(found + actor.live(1.0)) == {WELL}


def test_since_when_does_not_move_and_the_cause_may_change() -> None:
    actor = Actor()
    actor.live(5.0)
    actor.live(4.0, beats=False, state=STOPPED)
    first = actor.judge.verdict
    actor.live(4.0, beats=False, state=STOPPED)
    assert actor.judge.verdict is first
    actor.live(1.0, beats=False, state=RUNNING, rate=1.0)
    assert actor.judge.verdict.code == STALLED
    assert actor.judge.verdict.since == pytest.approx(first.since)


def test_one_that_was_stopped_is_not_taken_for_one_that_computes() -> None:
    actor = Actor()
    actor.used = 100.0
    actor.live(5.0)
    actor.live(5.0, beats=False, state=STOPPED)
    assert actor.live(LOOK, beats=False, state=IDLE) == [FROZEN]
    assert actor.live(LOOK) == [WELL]


def test_who_begins_to_look_knows_a_stopped_one_at_once_and_others_after_two_beats() -> None:
    actor = Actor()
    actor.now += 60.0
    assert actor.look(STOPPED) == FROZEN
    assert actor.judge.verdict.since == pytest.approx(1000.0)
    idle = Actor()
    idle.now += 60.0
    assert idle.look() == WELL
    found = idle.live(2 * PERIOD + LOOK, beats=False)
    assert found[-1] == FROZEN
    assert WELL in found[:3]


def test_a_watcher_that_was_frozen_with_all_others_condemns_nobody() -> None:
    actor = Actor()
    actor.live(5.0)
    actor.now += 60.0  # nobody ran: neither it nor we
    assert actor.look(RUNNING) == WELL
    actor.now += LOOK
    assert actor.look(IDLE) == WELL
    assert set(actor.live(5.0)) == {WELL}


@pytest.mark.parametrize("skew", [1e6, -1e6, 1e-3])
def test_a_clock_that_is_another_one_harms_nothing(skew: float) -> None:
    actor = Actor(skew=skew)
    assert set(actor.live(10.0)) == {WELL}
    found = actor.live(10.0, beats=False)
    assert found[-1] == FROZEN
    assert actor.live(1.0)[-1] == WELL


def test_numbers_that_nobody_wrote_are_no_verdict_for_long() -> None:
    actor = Actor()
    actor.live(2.0)
    for beat, turn in [(0.0, 1e10), (1e10, 0.0), (1e10, 1e10), (0.0, 0.0)]:
        actor.judge.look(Sign(beat, turn), lambda: Process(IDLE, 0.0), actor.now)
    assert actor.live(1.0)[-1] == WELL
    assert actor.judge.look(None, lambda: Process(IDLE, 0.0), actor.now).code == WELL


def test_no_limit_no_verdict_and_a_short_one_waits_for_two_beats() -> None:
    never = Actor(limit=0.0)
    assert set(never.live(60.0, beats=False, state=STOPPED)) == {WELL}
    assert never.asked == 0
    short = Actor(limit=0.1)
    short.live(5.0)
    assert set(short.live(2 * PERIOD - LOOK, beats=False, state=STOPPED)) == {WELL}


def test_c36_an_engine_that_says_so_is_unready_until_it_says_otherwise() -> None:
    actor = Actor()
    actor.live(2.0)
    actor.told = (actor.now, "its canary gave no item within 3 s")
    assert set(actor.live(2.0)) == {UNREADY}
    assert actor.judge.verdict.text("it") == "it is unready: its canary gave no item within 3 s"
    assert noticed_last(actor.live(5.0, beats=False, state=STOPPED)) == FROZEN, "that is worse"
    assert noticed_last(actor.live(1.0)) == UNREADY, "it was frozen meanwhile, and says so still"
    assert noticed_last(actor.live(5.0, turns=False)) == STALLED
    actor.told = (0.0, "")
    assert noticed_last(actor.live(1.0)) == WELL


def test_c36_who_is_never_judged_can_be_unready() -> None:
    actor = Actor(limit=0.0)
    actor.told = (actor.now, "why")
    assert set(actor.live(9.0, beats=False, state=STOPPED)) == {UNREADY}


@pytest.mark.parametrize("how", [{"turns": False}, {"beats": False, "state": STOPPED}])
def test_one_trouble_is_one_verdict(how: dict[str, Any]) -> None:
    """Whoever compares verdicts by identity, as the ingress does, warns once of each."""
    actor = Actor()
    actor.live(1.0)
    actor.live(6.0, **how)
    found = actor.judge.verdict
    assert not found.well
    actor.live(3.0, **how)
    assert actor.judge.verdict is found


def noticed_last(found: list[str]) -> str:
    """What is thought of it in the end."""
    return found[-1]
