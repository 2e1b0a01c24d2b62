"""Pairs of runs of two revisions: ratios, their median with an interval, and a word. Pure.

A ratio says how good the second revision is beside the first: above 1 it is better, for rates as
for times. It is taken pair by pair, of two runs right after each other, so that a machine that is
slower for a while is slower for both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from perf.figures import Sample, more_is_better, number, table

#: What the interval of a median is to hold with this probability, if there are pairs enough.
CONFIDENCE: Final = 0.95
#: Stands for a whole suite in the place of a metric.
ALL: Final = "all figures"

#: Workload, metric, unit.
Key = tuple[str, str, str]


class Interval(NamedTuple):
    """Where the true median lies with probability ``confidence``: between two of the ratios."""

    low: float
    high: float
    confidence: float


class Verdict(NamedTuple):
    """A figure of both revisions: medians, the median of the ratios with its interval, a word."""

    suite: str
    key: Key
    base: float
    head: float
    ratio: float
    interval: Interval
    pairs: int
    word: str


def ratio(unit: str, base: float, head: float) -> float:
    """How good ``head`` is beside ``base``; nan where one of them is no measurement."""
    if base <= 0 or head <= 0:
        return math.nan
    return head / base if more_is_better(unit) else base / head


def interval(values: Sequence[float]) -> Interval:
    """The narrowest pair of order statistics that holds the median with CONFIDENCE.

    No distribution is assumed: the k-th smallest of n values lies above the median with the
    probability that fewer than k of n coins fall head. Below six values not even the least and the
    largest hold it so surely: then these two, and the probability that they have. Raises ValueError
    for no values.
    """
    if not values:
        raise ValueError("no interval of no values")
    ordered, count = sorted(values), len(values)
    found = Interval(ordered[0], ordered[-1], _coverage(count, 1))
    for rank in range(2, count // 2 + 1):
        coverage = _coverage(count, rank)
        if coverage < CONFIDENCE:
            break
        found = Interval(ordered[rank - 1], ordered[count - rank], coverage)
    return found


def _coverage(count: int, rank: int) -> float:
    """Probability that the median lies between the rank-th smallest and the rank-th largest."""
    outside = sum(math.comb(count, heads) for heads in range(rank))
    return max(0.0, 1.0 - 2.0 * outside / 2.0**count)


def word_of(found: Interval) -> str:
    """``better`` or ``worse`` when the whole interval says so, else ``no difference``.

    ``too few pairs`` when the interval is not sure enough to say anything.
    """
    if found.confidence < CONFIDENCE:
        return "too few pairs"
    if found.low > 1.0:
        return "better"
    return "worse" if found.high < 1.0 else "no difference"


def verdicts(
    pairs: Mapping[str, Sequence[tuple[Sequence[Sample], Sequence[Sample]]]],
) -> list[Verdict]:
    """Of each suite its pairs (base, head): a verdict for each figure that all of them have, then
    one for the suite as a whole, whose ratio in each pair is the geometric mean of its figures'.
    """
    found = []
    for suite, runs in pairs.items():
        if not runs:
            continue
        sides = [(_values(before), _values(after)) for before, after in runs]
        keys = [
            key for key in sides[0][0] if all(key in base and key in head for base, head in sides)
        ]
        rows: dict[Key, list[float]] = {}
        for key in keys:
            ratios = [ratio(key[2], base[key], head[key]) for base, head in sides]
            if any(math.isnan(each) for each in ratios):
                continue
            rows[key] = ratios
            base, head = (statistics.median(both[side][key] for both in sides) for side in (0, 1))
            found.append(_verdict(suite, key, base, head, ratios))
        if rows:
            means = [statistics.geometric_mean(each) for each in zip(*rows.values(), strict=True)]
            found.append(_verdict(suite, (suite, ALL, ""), math.nan, math.nan, means))
    return found


def _values(samples: Sequence[Sample]) -> dict[Key, float]:
    return {(each.workload, each.metric, each.unit): each.value for each in samples}


def _verdict(suite: str, key: Key, base: float, head: float, ratios: Sequence[float]) -> Verdict:
    found = interval(ratios)
    return Verdict(
        suite, key, base, head, statistics.median(ratios), found, len(ratios), word_of(found)
    )


def below(verdict: Verdict, least: float) -> bool:
    """Whether a verdict fails ``--min-ratio``: a whole suite whose median is below it, or a single
    figure whose median is and that is surely worse.

    One figure of many is below by chance more often than the suite is.
    """
    if verdict.ratio >= least:
        return False
    return verdict.key[1] == ALL or verdict.word == "worse"


def render(found: Sequence[Verdict], least: float = 0.0) -> str:
    """The table for people; what fails ``least`` is marked."""
    rows = []
    for each in found:
        workload, metric, unit = each.key
        rows.append(
            [
                workload,
                metric,
                "" if math.isnan(each.base) else number(each.base),
                "" if math.isnan(each.head) else number(each.head),
                unit,
                f"{each.ratio:.3f}",
                f"{each.interval.low:.3f} to {each.interval.high:.3f}",
                str(each.pairs),
                each.word + (f", BELOW {least:g}" if below(each, least) else ""),
            ]
        )
    head = ["workload", "metric", "base", "head", "unit", "ratio", "interval", "pairs", ""]
    text = table(head, rows)
    if found:
        least_sure = min(each.interval.confidence for each in found)
        text += (
            "\nratio: median over the pairs, above 1 the head is better; interval: order "
            f"statistics that hold it with {100 * least_sure:.1f} % (no distribution assumed)\n"
        )
    return text
