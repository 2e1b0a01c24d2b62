"""The restart policy walked with a clock turned by hand."""

from __future__ import annotations

import pytest

from actors.kernel.restart import (
    STRATEGIES,
    Backoff,
    GiveUp,
    Intensity,
    Rest,
    Restart,
    RestartPolicy,
    Strategy,
)


@pytest.mark.parametrize(
    ("strategy", "clean", "verdict"),
    [
        ("always", True, Restart),
        ("always", False, Restart),
        ("on-failure", True, Rest),
        ("on-failure", False, Restart),
        ("never", True, Rest),
        ("never", False, Rest),
    ],
)
def test_strategy_decides_on_first_exit(
    strategy: Strategy, clean: bool, verdict: type[object]
) -> None:
    assert strategy in STRATEGIES
    assert isinstance(RestartPolicy(strategy).on_exit(0.0, clean=clean), verdict)


def test_rest_says_why() -> None:
    verdict = RestartPolicy("never").on_exit(0.0, clean=False)
    assert isinstance(verdict, Rest)
    assert "'never'" in verdict.reason


def test_first_restart_is_immediate_and_the_next_back_off() -> None:
    policy = RestartPolicy(intensity=Intensity(6, 1000.0), backoff=Backoff(0.1, 2.0, 0.5))
    delays = []
    for second in range(6):
        verdict = policy.on_exit(float(second), clean=False)
        assert isinstance(verdict, Restart)
        delays.append(verdict.delay)
    assert delays == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.5, 0.5])
    assert policy.total == 6


def test_one_exit_more_than_the_intensity_gives_up() -> None:
    policy = RestartPolicy(intensity=Intensity(max_restarts=2, period=10.0))
    assert isinstance(policy.on_exit(0.0, clean=False), Restart)
    assert isinstance(policy.on_exit(1.0, clean=False), Restart)
    verdict = policy.on_exit(2.0, clean=False)
    assert isinstance(verdict, GiveUp)
    assert "2 restarts are its limit, and it did not serve for 10 s" in verdict.reason
    assert policy.total == 2


def test_a_life_of_the_period_begins_a_new_row() -> None:
    policy = RestartPolicy(intensity=Intensity(max_restarts=2, period=10.0))
    for second in range(0, 1000, 11):
        policy.up(second - 11.0)
        assert policy.on_exit(float(second), clean=False) == Restart(0.0), second
    assert policy.total == 91


def test_a_life_of_exactly_the_period_is_enough() -> None:
    policy = RestartPolicy(intensity=Intensity(max_restarts=1, period=10.0))
    assert policy.on_exit(0.0, clean=False) == Restart(0.0)
    policy.up(0.0)
    assert policy.on_exit(10.0, clean=False) == Restart(0.0)
    policy.up(10.0)
    assert isinstance(policy.on_exit(19.9, clean=False), GiveUp)


@pytest.mark.parametrize("start", [0.0, 3.0, 11.0, 600.0])
@pytest.mark.parametrize("life", [0.0, 1.0, 2.5, 9.9, None])
def test_b57_short_lives_are_a_row_however_long_the_row_takes(
    life: float | None, start: float
) -> None:
    """``start``: seconds that it loads before it serves; ``life`` None: it does not come up."""
    policy = RestartPolicy(intensity=Intensity(max_restarts=5, period=10.0))
    now, delays = 0.0, []
    while True:
        now += start
        if life is not None:
            policy.up(now)
            now += life
        if not isinstance(verdict := policy.on_exit(now, clean=False), Restart):
            break
        delays.append(verdict.delay)
        now += verdict.delay
    assert isinstance(verdict, GiveUp)
    assert delays == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8])


def test_the_pause_is_no_part_of_a_life() -> None:
    policy = RestartPolicy(intensity=Intensity(3, 1.0), backoff=Backoff(5.0, 2.0, 5.0))
    now = 0.0
    for _ in range(3):
        verdict = policy.on_exit(now, clean=False)
        assert isinstance(verdict, Restart)
        now += verdict.delay
        policy.up(now)
        now += 0.5
    assert isinstance(policy.on_exit(now, clean=False), GiveUp)


def test_clean_exits_of_always_count_too() -> None:
    policy = RestartPolicy("always", Intensity(max_restarts=1, period=10.0))
    assert isinstance(policy.on_exit(0.0, clean=True), Restart)
    assert isinstance(policy.on_exit(0.1, clean=True), GiveUp)


def test_zero_restarts_allowed() -> None:
    policy = RestartPolicy(intensity=Intensity(max_restarts=0, period=10.0))
    assert isinstance(policy.on_exit(0.0, clean=False), GiveUp)


def test_back_off_survives_absurd_counts() -> None:
    assert Backoff(limit=5.0).delay(10_000) == 5.0
