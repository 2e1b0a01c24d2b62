"""Workers by their load: the same as if all were looked at each time, and nothing piles up."""

from __future__ import annotations

import random

from actors.router.loads import Bag, Loads
from tests.router.choosing import Seen, first, never, seen


def test_a_bag_holds_each_once_and_gives_any() -> None:
    bag, (one, two, three) = Bag(), seen(0, 0, 0)
    assert bag.drawn(never) is None
    for worker in (one, two, one, three):
        bag.add(worker)
    assert (len(bag), list(bag)) == (3, [one, two, three])
    bag.remove(one)
    bag.remove(one)
    assert (bag.workers, one in bag, two in bag) == ([three, two], False, True)
    assert bag.drawn(first) is three
    bag.remove(two)
    assert bag.drawn(never) is three
    bag.remove(three)
    assert not bag


def test_a_load_counts_as_it_was_told_last() -> None:
    loads, (one, two) = Loads(), seen(3, 5)
    assert loads.least() is None
    for worker in (one, two):
        loads.add(worker)
    assert loads.total == 8
    one.load = 9
    least = loads.least()
    assert least is not None
    assert least.workers == [one]
    assert loads.total == 8
    loads.add(one)
    least = loads.least()
    assert least is not None
    assert (least.workers, loads.total) == ([two], 14)
    one.load = 0  # its removal goes by what it was filed under
    loads.remove(one)
    loads.remove(one)
    assert (len(loads), loads.total) == (1, 5)


def test_a_random_walk_agrees_with_a_look_at_all_workers() -> None:
    for seed in range(10):
        draw = random.Random(seed)
        loads = Loads()
        truth: dict[Seen, int] = {}
        away = seen(*[0] * 12)
        for _ in range(1500):
            action = draw.randrange(6)
            if action == 0 and away:
                worker = away.pop(draw.randrange(len(away)))
                loads.add(worker)
                truth[worker] = worker.load
            elif action == 1 and truth:
                worker = draw.choice(list(truth))
                del truth[worker]
                loads.remove(worker)
                away.append(worker)
            elif truth:
                worker = draw.choice(list(truth))
                worker.load += draw.choice((1, 1, 1, -1, -1, -1, 40, -40, 0))
                loads.add(worker)
                truth[worker] = worker.load
            assert len(loads) == len(truth)
            assert loads.total == sum(truth.values())
            least = loads.least()
            found = [] if least is None else least.workers
            lowest = min(truth.values(), default=0)
            assert set(found) == {each for each, load in truth.items() if load == lowest}


def test_loads_that_nobody_has_any_more_are_forgotten() -> None:
    loads, (still, busy) = Loads(), seen(0, 1)
    loads.add(still)
    for load in range(1, 5000):
        busy.load = load
        loads.add(busy)
    assert len(loads._bags) == len(loads._order) < 100
    assert sorted(loads._bags) == sorted(loads._order)
    loads.remove(still)
    least = loads.least()
    assert least is not None
    assert least.workers == [busy]
    assert len(loads._bags) == 1
