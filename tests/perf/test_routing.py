"""What the routing and agentic suites make of what they have seen."""

from __future__ import annotations

import pytest

from perf.plan import PerfError, Plan
from perf.spread import Visit, Window, judge, window
from perf.suites.agentic import LONGEST, SHORTEST, prompts

WHEN = Window(0.0, 10.0, 20.0, 1.0)


def test_imbalance_is_weighted_by_time() -> None:
    """Two at one engine for half of the window, then one at each of four: 4 and 1."""
    visits = [Visit(1, 9.0, 15.0), Visit(1, 5.0, 15.0)]
    visits += [Visit(number, 15.0, 30.0) for number in range(1, 5)]
    assert judge(visits, WHEN) == (2.5, 2)


def test_nothing_outside_the_window_counts() -> None:
    even = [Visit(number, 10.0, 20.0) for number in range(4)]
    crowded = [Visit(0, 1.0, 9.9)] * 7 + [Visit(0, 20.1, 25.0)] * 7
    assert judge([*even, *crowded], WHEN) == (1.0, 1)


def test_a_call_that_takes_the_place_of_another_is_not_beside_it() -> None:
    visits = [Visit(1, 10.0, 15.0), Visit(1, 15.0, 20.0)]
    assert judge(visits, WHEN) == (4.0, 1)


def test_what_cannot_be_judged_is_no_figure() -> None:
    with pytest.raises(PerfError, match="0 engines were busy"):
        judge([], WHEN)
    with pytest.raises(PerfError, match="5 engines were busy"):
        judge([Visit(number, 10.0, 20.0) for number in range(5)], WHEN)


def test_a_smoke_test_has_a_tenth_of_everything() -> None:
    whole, small = (
        window(Plan("routing", (0,)), 5.0),
        window(Plan("routing", (0,), scale=0.01), 5.0),
    )
    assert (whole.counts - 5.0, whole.end - whole.counts) == (2.5, 3.0)
    assert small.end - small.counts == pytest.approx(0.3)
    assert [whole.loops(4), small.loops(), small.loops(100)] == [32, 13, 1]


def test_prompts_are_the_same_every_time() -> None:
    first, second = prompts(2)
    assert prompts(2) == [first, second]
    assert first[:3] != second[:3]
    assert all(SHORTEST <= len(each) <= LONGEST for each in (first, second))
