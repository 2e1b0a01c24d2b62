"""The line before busy workers: who goes next, who leaves when it is full."""

from __future__ import annotations

import random

from actors.router.waiting import Lines


def taken(lines: Lines[str], endpoint: str = "a") -> list[str]:
    """All of a line, as they go."""
    found = []
    while (item := lines.next(endpoint)) is not None:
        lines.leave(item)
        found.append(item)
    return found


def test_the_larger_priority_goes_first_then_who_came_first() -> None:
    lines: Lines[str] = Lines(10)
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)]:
        assert lines.put("a", priority, name) is None
    assert list(lines.ordered("a")) == ["b", "d", "a", "c", "e"]
    assert taken(lines) == ["b", "d", "a", "c", "e"]
    assert not lines.waiting("a")
    assert not len(lines)


def test_each_endpoint_has_its_own_line() -> None:
    lines: Lines[str] = Lines(10)
    lines.put("a", 0, "one")
    lines.put("b", 9, "two")
    assert lines.next("a") == "one"
    assert lines.waiting("b")
    assert not lines.waiting("c")
    assert taken(lines, "b") == ["two"]


def test_when_it_is_full_the_youngest_of_the_least_priority_leaves() -> None:
    lines: Lines[str] = Lines(3)
    for name, priority in [("a", 1), ("b", 0), ("c", 0)]:
        lines.put("a", priority, name)
    assert lines.put("a", 0, "late") == "late"  # itself: it came last
    assert lines.put("b", 2, "vip") == "c"
    assert lines.put("a", 2, "vip2") == "b"
    assert lines.put("a", 1, "late") == "late"
    assert taken(lines) == ["vip2", "a"]
    assert taken(lines, "b") == ["vip"]


def test_a_crowd_at_one_endpoint_makes_room_for_another() -> None:
    lines: Lines[str] = Lines(6)
    for number in range(6):
        lines.put("a", 0, f"a{number}")
    assert lines.put("a", 0, "a6") == "a6"
    assert [lines.put("b", 0, f"b{number}") for number in range(4)] == ["a5", "a4", "a3", "b3"]
    assert lines.put("a", 0, "a7") == "a7"  # as long as each other: nobody takes it from nobody
    assert lines.put("c", 0, "c0") in ("a2", "b2")
    assert lines.put("d", -1, "d0") == "d0"  # the least goes without a place all the same
    assert lines.put("b", 5, "vip") == "c0"
    assert taken(lines, "a")[:2] == ["a0", "a1"]
    assert taken(lines, "b")[:3] == ["vip", "b0", "b1"]


def test_who_is_in_more_of_a_hurry_makes_no_room_for_a_shorter_line() -> None:
    lines: Lines[str] = Lines(4)
    for name, endpoint, priority in [
        ("a0", "a", 5), ("a1", "a", 5), ("a2", "a", 5), ("b0", "b", 0)
    ]:  # fmt: skip
        lines.put(endpoint, priority, name)
    assert lines.put("c", 0, "c0") == "c0"
    assert lines.put("c", 5, "c1") == "b0"
    assert lines.put("c", 5, "c2") == "a2"


def test_who_leaves_has_no_place_any_more() -> None:
    lines: Lines[str] = Lines(2)
    lines.put("a", 0, "one")
    lines.put("a", 0, "two")
    assert lines.leave("one")
    assert not lines.leave("one")
    assert "one" not in lines
    assert lines.put("a", 0, "three") is None
    assert taken(lines) == ["two", "three"]


def test_a_line_of_nothing_takes_nobody() -> None:
    lines: Lines[str] = Lines(0)
    assert lines.put("a", 9, "one") == "one"


def test_a_random_walk_agrees_with_a_plain_list_and_stays_small() -> None:
    draw, lines = random.Random(5), Lines[int](20)
    plain: list[tuple[int, int]] = []  # (-priority, number)
    number = 0
    for _ in range(20_000):
        if draw.random() < 0.55:
            number, priority = number + 1, draw.randrange(4)
            lost = lines.put("a", priority, number)
            plain.append((-priority, number))
            if len(plain) > 20:
                loser = max(plain)
                plain.remove(loser)
                assert lost == loser[1]
            else:
                assert lost is None
        elif plain:
            gone = draw.choice(plain) if draw.random() < 0.5 else min(plain)
            plain.remove(gone)
            assert lines.leave(gone[1])
        assert lines.next("a") == (min(plain)[1] if plain else None)
        assert len(lines) == len(plain)
        for line in lines._lines.values():
            assert max(len(line.going), len(line.leaving)) <= 2 * len(plain) + 65
