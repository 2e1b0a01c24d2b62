"""Pairs of runs: ratios, the interval of their median, words, and what fails a limit."""

from __future__ import annotations

import math
import random

import pytest

from perf.figures import Sample
from perf.pairs import ALL, below, interval, ratio, render, verdicts, word_of


def sides(
    base: list[float], head: list[float], unit: str = "us"
) -> list[tuple[list[Sample], list[Sample]]]:
    """Pairs of one figure."""
    return [
        (
            [Sample("unary", "unary.c1", "p50", unit, one)],
            [Sample("unary", "unary.c1", "p50", unit, two)],
        )
        for one, two in zip(base, head, strict=True)
    ]


def test_above_one_the_head_is_better_whatever_is_measured() -> None:
    assert ratio("us", 100.0, 50.0) == 2.0
    assert ratio("items/s", 100.0, 200.0) == 2.0
    assert ratio("MB", 10.0, 20.0) == 0.5
    assert math.isnan(ratio("us", 0.0, 1.0))


def test_ten_pairs_give_the_second_and_the_ninth() -> None:
    found = interval([float(each) for each in range(10, 0, -1)])
    assert (found.low, found.high) == (2.0, 9.0)
    assert found.confidence == pytest.approx(1 - 22 / 1024)
    assert interval([float(each) for each in range(1, 21)])[:2] == (6.0, 15.0)


def test_few_pairs_give_all_there_is_and_say_how_little_that_is() -> None:
    found = interval([1.0, 3.0, 2.0])
    assert (found.low, found.high, found.confidence) == (1.0, 3.0, 0.75)
    assert word_of(found) == "too few pairs"
    assert interval([1.0]) == (1.0, 1.0, 0.0)
    assert interval([1.0] * 6).confidence == pytest.approx(1 - 2 / 64)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    dice = random.Random(1)
    held = 0
    for _ in range(2_000):
        found = interval([dice.expovariate(1.0) for _ in range(10)])
        held += found.low <= math.log(2) <= found.high
    assert 0.965 < held / 2_000 < 0.99


def test_a_slow_minute_is_slow_for_both() -> None:
    slow = [100.0, 5_000.0, 101.0, 99.0, 100.0, 3_000.0, 100.0]
    figure, whole = verdicts({"unary": sides(slow, [each * 1.5 for each in slow])})
    assert figure.key == ("unary.c1", "p50", "us")
    assert (figure.base, figure.word, whole.key[1]) == (100.0, "worse", ALL)
    assert figure.ratio == pytest.approx(1 / 1.5)
    assert whole.ratio == pytest.approx(1 / 1.5)
    (better, _) = verdicts({"unary": sides(slow, [each * 1.5 for each in slow], "req/s")})
    assert better.word == "better"


def test_noise_is_no_difference_and_fails_no_limit() -> None:
    noisy = [0.5, 1.9, 0.7, 1.2, 0.9, 0.8, 0.93, 1.1, 0.6, 0.91]
    figure, whole = verdicts({"unary": sides(noisy, [1.0] * 10)})
    assert figure.word == "no difference"
    assert not below(figure, 0.95)
    assert below(whole, 0.95)
    assert not below(whole, 0.9)


def test_a_figure_that_only_some_runs_have_is_left_out() -> None:
    runs = sides([1.0, 1.0], [1.0, 1.0])
    runs[1][1].clear()
    assert verdicts({"unary": runs, "stream": []}) == []


def test_the_table_marks_what_is_below_and_names_the_confidence() -> None:
    text = render(verdicts({"unary": sides([100.0] * 10, [200.0] * 10)}), 0.95)
    lines = text.splitlines()
    assert lines[1].split()[:6] == ["unary.c1", "p50", "100", "200", "us", "0.500"]
    assert "0.500 to 0.500" in lines[1]
    assert lines[1].endswith("worse, BELOW 0.95")
    assert lines[2].startswith("unary     all figures")
    assert "97.9 %" in text
    assert render([]).count("\n") == 1
