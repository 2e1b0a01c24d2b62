"""Policies are pure: the same workers, loads and draws give the same choice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from actors.router.policy import POLICIES, LeastLoaded, Random, RoundRobin


class Seen(NamedTuple):
    """A worker as a policy sees it."""

    instance: int
    load: int
    capacity: int = 8


def workers(*loads: int) -> list[Seen]:
    return [Seen(number, load) for number, load in enumerate(loads)]


def never(_: int) -> int:
    """For a policy that must not need chance."""
    raise AssertionError("no draw was due")


def test_the_names_are_those_that_a_spec_may_give() -> None:
    assert sorted(POLICIES) == ["least_loaded", "random", "round_robin"]


def test_round_robin_takes_one_after_the_other() -> None:
    policy = RoundRobin(never)
    assert [policy.choose(workers(9, 0, 0)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_bears_workers_that_come_and_go() -> None:
    policy = RoundRobin(never)
    draw = random.Random(1)
    for _ in range(500):
        count = draw.randrange(1, 6)
        assert 0 <= policy.choose(workers(*[0] * count)) < count


def test_random_asks_for_one_of_all_workers() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return count - 1

    policy = Random(draw)
    assert policy.choose(workers(0, 0, 9)) == 2
    assert policy.choose(workers(0)) == 0
    assert asked == [3, 1]


def test_random_is_fair() -> None:
    policy = Random(random.Random(7).randrange)
    chosen = Counter(policy.choose(workers(0, 50, 100)) for _ in range(3000))
    assert all(900 < count < 1100 for count in chosen.values())


@pytest.mark.parametrize(
    ("loads", "expected"),
    [([0], 0), ([5], 0), ([3, 1, 2], 1), ([0, 1], 0), ([9, 9, 8], 2), ([-1, 0], 0)],
)
def test_least_loaded_takes_the_one_that_carries_least(loads: Sequence[int], expected: int) -> None:
    assert LeastLoaded(never).choose(workers(*loads)) == expected


def test_least_loaded_draws_among_equals_only() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return 1

    assert LeastLoaded(draw).choose(workers(2, 1, 3, 1, 1)) == 3
    assert asked == [3]


def test_several_routers_do_not_all_take_the_first_of_equals() -> None:
    policies = [LeastLoaded(random.Random(seed).randrange) for seed in range(32)]
    assert len({policy.choose(workers(0, 0, 0, 0)) for policy in policies}) > 1


def test_least_loaded_keeps_loads_within_one_of_each_other() -> None:
    policy = LeastLoaded(random.Random(3).randrange)
    loads = [0, 0, 0, 0, 0]
    for _ in range(503):
        loads[policy.choose(workers(*loads))] += 1
    assert max(loads) - min(loads) <= 1
