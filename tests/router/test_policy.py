"""Modes are pure: the same workers, loads and draws give the same choice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from actors.errors import SpecError, Unsupported
from actors.router.options import Options
from actors.router.policy import MODES, make_policy
from tests.router.choosing import Chooser, Seen, first, never, request, seeded, seen

#: What a request needs in order to be routed by any mode.
NAMED: dict[str, Any] = {"instance": 3, "metadata": {"session": "s"}}
LOAD_AWARE = ("power_of_two_choices", "least_loaded", "device_aware_weighted")


def test_the_modes_are_those_that_a_spec_may_name() -> None:
    assert MODES == (
        "least_loaded", "round_robin", "random", "power_of_two_choices", "device_aware_weighted",
        "direct", "sticky",
    )  # fmt: skip
    with pytest.raises(SpecError, match="'fastest' is unknown; use one of least_loaded, round"):
        make_policy(Options(policy="fastest"), never)


@pytest.mark.parametrize("mode", MODES)
def test_b117_nobody_one_worker_and_one_that_comes_back(mode: str) -> None:
    chooser = Chooser(mode, [])
    assert chooser.find(request(**NAMED)) is None
    if mode != "direct":
        assert chooser.find() is None
    worker = Seen(3)
    for _ in range(2):
        chooser.policy.add(worker)
        chooser.policy.add(worker)
        assert [chooser.hold(request(**NAMED)) for _ in range(5)] == [worker] * 5
        chooser.policy.remove(worker)
        chooser.policy.remove(worker)
        assert chooser.find(request(**NAMED)) is None


# -- round robin ------------------------------------------------------------------------


def test_round_robin_takes_one_after_the_other() -> None:
    chooser = Chooser("round_robin", seen(9, 0, 0))
    order = [chooser.pick() for _ in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert [chooser.pick() for _ in range(6)] == order * 2


def test_several_routers_do_not_go_round_in_step() -> None:
    orders = set()
    for seed in range(32):
        chooser = Chooser("round_robin", seen(0, 0, 0, 0), seeded(seed))
        orders.add(tuple(chooser.pick() for _ in range(4)))
    assert len(orders) > 8


def test_a_newcomer_is_next_and_gets_no_second_turn_before_the_others() -> None:
    chooser = Chooser("round_robin", seen(0, 0))
    order = [chooser.pick() for _ in range(2)]
    chooser.policy.add(Seen(7))
    assert [chooser.pick() for _ in range(4)] == [7, *order, 7]


def test_b123_shares_are_even_while_workers_come_and_go() -> None:
    for seed in range(20):
        workers = seen(0, 0, 0)
        chooser = Chooser("round_robin", workers, seeded(seed))
        for _ in range(seed % 3):
            chooser.pick()
        chooser.policy.remove(workers[1])
        shares = Counter(chooser.pick() for _ in range(100))
        assert set(shares) == {0, 2}
        assert all(48 <= share <= 52 for share in shares.values()), shares
        chooser.policy.add(workers[1])
        shares = Counter(chooser.pick() for _ in range(99))
        assert all(31 <= shares[number] <= 35 for number in range(3)), shares


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("pattern", ["one", "in turn", "any"])
def test_b123_no_worker_gains_by_others_coming_and_going(every: int, pattern: str) -> None:
    for seed in range(20):
        workers = seen(0, 0, 0)
        chooser = Chooser("round_robin", workers, seeded(seed))
        draw, turns, away = random.Random(seed), 0, None
        shares: Counter[int] = Counter()
        for call in range(300):
            if call % every == 0:
                if away is not None:
                    chooser.policy.add(away)
                    away = None
                else:
                    number = {"one": 1, "in turn": turns % 3, "any": draw.randrange(3)}[pattern]
                    away, turns = workers[number], turns + 1
                    chooser.policy.remove(away)
            shares[chooser.pick()] += 1
        assert max(shares.values()) <= 135, shares
        assert min(shares.values()) >= 45, shares  # whoever comes and goes is not passed over


def test_round_robin_bears_any_coming_and_going_and_remembers_no_more_than_a_round() -> None:
    draw = random.Random(1)
    chooser = Chooser("round_robin", [])
    there: list[Seen] = []
    for number in range(5000):
        if draw.randrange(2) or not there:
            there.append(Seen(number))
            chooser.policy.add(there[-1])
        else:
            chooser.policy.remove(there.pop(draw.randrange(len(there))))
        found = chooser.find()
        assert (found in there) if there else found is None
    assert len(chooser.policy._left) <= 1024  # type: ignore[attr-defined]


# -- random and two choices -------------------------------------------------------------


def test_random_asks_for_one_of_all_workers() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return count - 1

    workers = seen(0, 0, 9)
    chooser = Chooser("random", workers, draw)
    assert chooser.find() is workers[2]
    for worker in workers[:2]:
        chooser.policy.remove(worker)
    assert chooser.find() is workers[2]
    assert asked == [3]


def test_random_is_fair() -> None:
    chooser = Chooser("random", seen(0, 50, 100), seeded(7))
    chosen = Counter(chooser.pick() for _ in range(3000))
    assert all(900 < count < 1100 for count in chosen.values())


def test_two_choices_takes_the_first_of_equals_and_else_the_one_that_carries_less() -> None:
    workers = seen(1, 1, 0)
    chooser = Chooser("power_of_two_choices", workers, first)  # draws workers 0 and 1
    assert chooser.find() is workers[0]
    workers[1].load = 0
    assert chooser.find() is workers[1]
    with pytest.raises(AssertionError, match="no draw was due"):
        Chooser("power_of_two_choices", workers, never).find()


def test_b117_two_choices_are_two_different_workers() -> None:
    busy, *others = seen(50, 0, 0, 0)
    for seed in range(5):
        chooser = Chooser("power_of_two_choices", [busy, *others], seeded(seed))
        chosen = Counter(chooser.pick() for _ in range(300))
        assert chosen[busy.instance] == 0
        assert all(chosen[other.instance] > 60 for other in others)


# -- least loaded -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "expected"),
    [([0], 0), ([5], 0), ([3, 1, 2], 1), ([0, 1], 0), ([9, 9, 8], 2), ([-1, 0], 0)],
)
def test_least_loaded_takes_the_one_that_carries_least(loads: Sequence[int], expected: int) -> None:
    workers = seen(*loads)
    assert Chooser("least_loaded", workers, never).find() is workers[expected]


def test_least_loaded_draws_among_equals_only() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return 1

    workers = seen(2, 1, 3, 1, 1)
    assert Chooser("least_loaded", workers, draw).find() is workers[3]
    assert asked == [3]


@pytest.mark.parametrize("most", [3, 8, 9, 20])
def test_least_loaded_is_the_same_for_a_few_workers_and_for_many(most: int) -> None:
    chance = random.Random(most)
    policy = make_policy(Options(policy="least_loaded"), chance.randrange)
    there: list[Seen] = []
    away = seen(*[0] * most)
    for _ in range(2_000):
        action = chance.randrange(8)
        if action == 0 and away:
            there.append(away.pop())
            policy.add(there[-1])
        elif action == 1 and there:
            away.append(there.pop(chance.randrange(len(there))))
            policy.remove(away[-1])
        elif there:
            worker = chance.choice(there)
            worker.load = max(0, worker.load + chance.choice((1, 1, -1, -2)))
            policy.changed(worker)
        chosen = policy.choose(request())
        if there:
            assert chosen in there
            assert chosen.load == min(worker.load for worker in there)
        else:
            assert chosen is None


def test_several_routers_do_not_all_take_the_first_of_equals() -> None:
    workers = seen(0, 0, 0, 0)
    found = [Chooser("least_loaded", workers, seeded(seed)).find() for seed in range(32)]
    assert len(set(found)) > 1


def test_b110_a_burst_is_spread_for_each_choice_sees_the_one_before() -> None:
    for seed in range(10):
        chooser = Chooser("least_loaded", seen(0, 0, 0, 0), seeded(seed))
        for _ in range(100):
            chooser.hold()
        assert sorted(chooser.held.values()) == [25, 25, 25, 25]
        chooser = Chooser("power_of_two_choices", seen(0, 0, 0, 0), seeded(seed))
        for _ in range(100):
            chooser.hold()
        assert max(chooser.held.values()) <= 40


def test_b116_calls_one_at_a_time_reach_every_idle_worker() -> None:
    for mode in ("least_loaded", "power_of_two_choices", "device_aware_weighted"):
        chooser = Chooser(mode, seen(0, 0, 0, 0), seeded(5))
        chosen = Counter(chooser.pick() for _ in range(400))
        assert len(chosen) == 4
        assert all(50 <= count <= 150 for count in chosen.values()), (mode, chosen)


@pytest.mark.parametrize("mode", LOAD_AWARE)
def test_conformance_28_of_a_thousand_selections_none_is_lost_and_all_are_spread(mode: str) -> None:
    workers = seen(*[0] * 8)
    chooser, draw = Chooser(mode, workers, seeded(2)), random.Random(2)
    held: list[Seen] = []
    for number in range(1, 1001):
        held.append(chooser.hold())
        if number % 3 == 0:
            chooser.release(held.pop(draw.randrange(len(held))))
        assert sum(worker.load for worker in workers) == len(held)
    loads = [worker.load for worker in workers]
    assert loads == [chooser.held[number] for number in range(8)]
    assert max(loads) - min(loads) <= (4 if mode == "power_of_two_choices" else 2), loads
    for worker in held:
        chooser.release(worker)
    assert not any(worker.load for worker in workers)


# -- by device --------------------------------------------------------------------------


def by_device(*devices: str) -> list[Seen]:
    return [Seen(number, 0, device) for number, device in enumerate(devices)]


def sequence(chooser: Chooser, count: int) -> list[str]:
    return [chooser.hold().device for _ in range(count)]


def test_b114_the_ninth_goes_to_the_cpu() -> None:
    chooser = Chooser("device_aware_weighted", by_device("cpu", "cuda"), device_ratio=8.0)
    assert sequence(chooser, 10) == ["cuda"] * 8 + ["cpu", "cuda"]
    assert sequence(chooser, 8) == ["cuda"] * 7 + ["cpu"]


def test_b114_idle_workers_are_accelerators_first() -> None:
    chooser = Chooser("device_aware_weighted", by_device("cpu", "cuda", "cpu"), device_ratio=0.5)
    for _ in range(50):
        assert chooser.pick() == 1


def test_b114_whatever_has_not_said_is_an_accelerator() -> None:
    workers = by_device("CPU", "", "tpu")
    chooser = Chooser("device_aware_weighted", workers, device_ratio=2.0)
    assert Counter(sequence(chooser, 4)) == {"": 2, "tpu": 2}
    assert sequence(chooser, 1) == ["CPU"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_b114_one_class_alone_is_least_loaded(device: str) -> None:
    workers = by_device(device, device, device)
    chooser = Chooser("device_aware_weighted", workers)
    for _ in range(30):
        chooser.hold()
    assert [worker.load for worker in workers] == [10, 10, 10]


@pytest.mark.parametrize("ratio", [1.0, 2.5, 8.0, 0.1])
def test_b114_the_budget_of_the_cpus_is_as_written(ratio: float) -> None:
    for cpus, others in ((1, 1), (3, 1), (1, 3), (2, 5)):
        workers = by_device(*["cpu"] * cpus, *["cuda"] * others)
        chooser, draw = Chooser("device_aware_weighted", workers, device_ratio=ratio), seeded(4)
        for _ in range(200):
            worker = workers[draw(len(workers))]
            if worker.load and draw(3) == 0:
                chooser.change(worker, -1)
            cpu, other = (
                sum(each.load for each in workers if each.device == device)
                for device in ("cpu", "cuda")
            )
            # In tenths, for the budget is rounded down and 1 // 0.1 is 9.
            allowed = 10 * other * cpus // (round(10 * ratio) * others)
            assert chooser.hold().device == ("cpu" if cpu < allowed else "cuda")


def test_b114_a_worker_that_is_found_again_with_another_device_changes_its_class() -> None:
    workers = by_device("cpu", "cuda")
    chooser = Chooser("device_aware_weighted", workers)
    workers[0].load, workers[0].device = 5, "cuda"
    chooser.policy.add(workers[0])
    assert chooser.find() is workers[1]
    chooser.policy.remove(workers[1])
    assert chooser.find() is workers[0]
    chooser.policy.remove(workers[0])
    assert chooser.find() is None


# -- direct -----------------------------------------------------------------------------


def test_direct_goes_to_the_one_named_and_refuses_who_names_nobody() -> None:
    workers = seen(0, 0, 0)
    chooser = Chooser("direct", workers, never)
    assert chooser.find(request(instance=2)) is workers[2]
    assert chooser.find(request(instance=9)) is None
    for lacking in (request(), request(instance=1)._replace(route=None)):
        with pytest.raises(Unsupported, match=r"t\.x\.go: .*'direct'.*keyword instance="):
            chooser.find(lacking)


def test_direct_keeps_the_newer_of_two_that_say_the_same_instance() -> None:
    older, newer = Seen(4), Seen(4)
    chooser = Chooser("direct", [older, newer], never)
    chooser.policy.remove(older)
    assert chooser.find(request(instance=4)) is newer
