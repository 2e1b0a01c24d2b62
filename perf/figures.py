"""Samples of single repetitions, figures over all of them, and their JSON lines. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One value of one repetition.

    ``workload`` is the full name (``stream.c32``), ``unit`` that of ``value``.
    """

    suite: str
    workload: str
    metric: str
    unit: str
    value: float


class Figure(NamedTuple):
    """A metric of a workload over all repetitions; its fields are those of its JSON line."""

    suite: str
    workload: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    runs: int
    cores: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What names the figure in tables and comparisons."""
        return self.workload, self.metric


def more_is_better(unit: str) -> bool:
    """True of rates (``req/s``), False of times and sizes (``us``, ``s``, ``MB``)."""
    return unit.endswith("/s")


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value that ``share`` (0 to 1] of all do not exceed.

    Raises ValueError for an empty sequence or a share outside (0, 1].
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def summarise(samples: Iterable[Sample], cores: Sequence[int]) -> list[Figure]:
    """One figure for each metric of each workload, in the order of first appearance."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for sample in samples:
        groups.setdefault(sample[:4], []).append(sample.value)
    return [
        Figure(
            *names, statistics.median(values), min(values), max(values), len(values), tuple(cores)
        )
        for names, values in groups.items()
    ]


def to_lines(figures: Iterable[Figure], facts: dict[str, Any]) -> str:
    """JSON lines, one a figure.

    The first line holds the machine facts: it has the nine keys of every other line (its figure is
    the number of CPUs) and, beside them, ``facts``; so a reader needs no special case.
    """
    figures = list(figures)
    cpus = float(facts.get("cpus", 0))
    cores = figures[0].cores if figures else ()
    head = Figure("machine", "machine.facts", "cpus", "CPUs", cpus, cpus, cpus, 1, cores)
    rows: list[dict[str, Any]] = [{**head._asdict(), "facts": facts}]
    rows += [figure._asdict() for figure in figures]
    return "".join(json.dumps(row) + "\n" for row in rows)


def from_lines(text: str) -> tuple[list[Figure], dict[str, Any]]:
    """Figures and machine facts of ``to_lines``; raises ValueError naming a line that is none."""
    figures: list[Figure] = []
    facts: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            figure = Figure(
                **{**{name: row[name] for name in Figure._fields}, "cores": tuple(row["cores"])}
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no figure of a perf run: {error!r}") from None
        if figure.suite == "machine":
            facts = row.get("facts", {})
        else:
            figures.append(figure)
    return figures, facts


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell.

    Names (the first two) and remarks (the last) stand left, numbers between them right.
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ""
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        for column in (0, 1, -1):
            cells[column] = line[column].ljust(widths[column])
        text += "  ".join(cells).rstrip() + "\n"
    return text


def number(value: float) -> str:
    """Three significant digits below a thousand, whole numbers with separators above."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"
