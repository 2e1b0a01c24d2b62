"""Texts and the workers that they belong to: the same for every router, and few move."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from actors.router import sticky
from actors.router.sticky import Rendezvous
from tests.router.choosing import Chooser, Seen, request, seeded, seen

TEXTS = [f"session-{number}" for number in range(500)]
#: Incarnations are 60 random bits.
IDS = [seeded(number)(1 << 60) for number in range(40)]


def rendezvous(workers: list[Seen]) -> Rendezvous:
    found = Rendezvous()
    for worker in workers:
        found.add(worker)
    return found


def owners(found: Rendezvous) -> dict[str, int]:
    return {text: worker.instance for text in TEXTS if (worker := found.find(text)) is not None}


def test_all_routers_agree_in_whatever_order_they_heard_of_workers() -> None:
    workers = [Seen(instance) for instance in IDS[:8]]
    here, there = rendezvous(workers), rendezvous(workers[::-1])
    assert owners(here) == owners(there)
    assert owners(here) == owners(here)


def test_texts_are_spread_evenly_whatever_the_instances_look_like() -> None:
    for instances in (IDS[:5], range(5), [1 << bit for bit in range(59, 64)]):
        shares = Counter(owners(rendezvous([Seen(each) for each in instances])).values())
        assert len(shares) == 5
        assert all(70 <= share <= 130 for share in shares.values()), shares


def test_a_worker_that_goes_moves_its_own_texts_alone_and_gets_them_back() -> None:
    workers = [Seen(instance) for instance in IDS[:6]]
    found = rendezvous(workers)
    before = owners(found)
    found.remove(workers[2])
    found.remove(workers[2])
    after = owners(found)
    moved = {text for text in TEXTS if before[text] != after[text]}
    assert moved == {text for text, owner in before.items() if owner == workers[2].instance}
    assert len({after[text] for text in moved}) == 5  # not all to one neighbour
    found.add(workers[2])
    found.add(workers[2])
    assert owners(found) == before


def test_a_newcomer_takes_only_what_it_wins() -> None:
    found = rendezvous([Seen(instance) for instance in IDS[:6]])
    before = owners(found)
    found.add(Seen(IDS[6]))
    after = owners(found)
    moved = [text for text in TEXTS if before[text] != after[text]]
    assert 40 <= len(moved) <= 110
    assert {after[text] for text in moved} == {IDS[6]}


def test_what_is_remembered_is_what_a_look_at_all_would_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However workers come and go between two questions for one text."""
    monkeypatch.setattr(sticky, "_REMEMBERED", 100)
    for seed in range(5):
        draw = random.Random(seed)
        away, there = [Seen(instance) for instance in IDS], list[Seen]()
        found = Rendezvous()
        for _ in range(3000):
            action = draw.randrange(3)
            if action == 0 and away:
                there.append(away.pop(draw.randrange(len(away))))
                found.add(there[-1])
            elif action == 1 and there:
                away.append(there.pop(draw.randrange(len(there))))
                found.remove(away[-1])
            text = draw.choice(TEXTS[:150])
            fresh = rendezvous(there).find(text)
            assert found.find(text) is fresh
        assert len(found._known) <= 100
        assert len(found._newest) <= len(IDS) + 65


def test_who_is_back_at_once_costs_the_other_texts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that avoids a worker takes it out for the moment of its own choice."""
    workers = [Seen(instance) for instance in IDS]
    found = rendezvous(workers)
    before = owners(found)
    for number in range(200):
        worker = workers[number % 3]
        found.remove(worker)
        found.find(TEXTS[0])
        found.add(worker)
    looks: list[tuple[int, int]] = []
    score = sticky._score

    def counted(one: int, other: int) -> int:
        looks.append((one, other))
        return score(one, other)

    monkeypatch.setattr(sticky, "_score", counted)
    assert owners(found) == before
    assert len(looks) <= len(IDS)  # for the one text that was asked for meanwhile


def test_a_text_may_hold_anything() -> None:
    found = rendezvous([Seen(instance) for instance in IDS[:3]])
    for text in ("a\ud800", "\0", "ä" * 100_000):
        assert found.find(text) is found.find(text)


def test_requests_with_the_same_text_go_to_one_worker_and_those_without_to_the_idlest() -> None:
    workers = [Seen(instance) for instance in IDS[:4]]
    chooser = Chooser("sticky", workers, seeded(), sticky_key="user")
    anna = request(metadata={"user": "anna"})
    owner = chooser.hold(anna)
    assert {chooser.hold(anna) for _ in range(20)} == {owner}
    for lacking in ({}, {"user": ""}, {"session": "anna"}, {"user": 7}):
        for _ in range(30):
            chooser.hold(request(metadata=lacking))
    loads = [worker.load for worker in workers]
    assert max(loads) - min(loads) <= 1, loads


def test_a_policy_without_workers_has_an_answer_for_a_text_too() -> None:
    chooser = Chooser("sticky", [])
    assert chooser.find(request(metadata={"session": "s"})) is None
    (worker,) = seen(0)
    chooser.policy.add(worker)
    assert chooser.find(request(metadata={"session": "s"})) is worker
