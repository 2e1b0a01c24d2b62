"""Two runs side by side: the ratio of every figure that both have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perf.checks import CODEC, PINGPONG
from perf.figures import Figure, more_is_better, number, table

_FLOOR_OF_UNIT = {"us": PINGPONG, "frames/s": CODEC, "items/s": CODEC}


def verdict(before: Figure, after: Figure) -> str:
    """``better`` or ``worse`` when the ranges of the two do not touch, else ``same``.

    A figure of one run has no range: then the word is ``one run``.
    """
    if min(before.runs, after.runs) < 2:
        return "one run"
    if after.min > before.max:
        return "better" if more_is_better(after.unit) else "worse"
    if after.max < before.min:
        return "worse" if more_is_better(after.unit) else "better"
    return "same"


def comparison(before: Sequence[Figure], after: Sequence[Figure]) -> str:
    """Table of medians, their ratio (after / before), the ratio over each run's floor, and a word.

    ``by floor`` divides each figure by its run's floor first, which takes out a machine that was
    slower as a whole; it is empty for figures without a natural floor. Figures that only one run
    has are listed below.
    """
    old = {figure.key: figure for figure in before}
    new = {figure.key: figure for figure in after}
    rows = []
    for key in (key for key in old if key in new):
        ratio = _ratio(old[key].median, new[key].median)
        rows.append(
            [
                *key,
                number(old[key].median),
                number(new[key].median),
                old[key].unit,
                f"{ratio:.2f}",
                _by_floor(ratio, new[key], old, new),
                verdict(old[key], new[key]),
            ]
        )
    text = table(["workload", "metric", "before", "after", "unit", "ratio", "by floor", ""], rows)
    for name, here, there in (("before", old, new), ("after", new, old)):
        alone = [" ".join(key) for key in here if key not in there]
        if alone:
            text += f"only in {name}: {', '.join(alone)}\n"
    return text


def _ratio(before: float, after: float) -> float:
    return after / before if before else float("nan")


def _by_floor(
    ratio: float,
    figure: Figure,
    old: dict[tuple[str, str], Figure],
    new: dict[tuple[str, str], Figure],
) -> str:
    floor = _FLOOR_OF_UNIT.get(figure.unit)
    if floor is None or figure.suite == "floor":
        return ""
    metric = "p50_us" if floor == PINGPONG else "items_s"
    key = floor, metric
    if key not in old or key not in new:
        return ""
    return f"{ratio / _ratio(old[key].median, new[key].median):.2f}"
