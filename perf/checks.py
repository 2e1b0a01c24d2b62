"""The floors and bounds that figures are held against. Pure.

A bound is at most for times and sizes, at least for rates. Where it is a ratio, the figure is
divided by the median of the named floor of the same run, so that the verdict means the same on any
machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from actors.router.policy import MODES
from perf.figures import Figure, more_is_better, number

PINGPONG = "floor.pingpong"
CODEC = "floor.codec"
LOOPBACK = "floor.loopback"


class Limit(NamedTuple):
    """What one figure must reach.

    ``of`` names the floor that ``bound`` is a multiple of; None means a plain value. ``router``
    narrows the limit to runs with the router placed ``here`` or in its ``process``.
    """

    workload: str
    metric: str
    bound: float
    of: str | None = None
    router: str | None = None


LIMITS = (
    Limit("unary.c1", "p50_us", 5.5, PINGPONG, "process"),
    Limit("unary.c1", "p50_us", 4.0, PINGPONG, "here"),
    Limit("unary.c64", "req_s", 10_000, router="process"),
    Limit("unary.c64", "req_s", 12_000, router="here"),
    Limit("stream.c1", "frames_s", 0.18, CODEC),
    Limit("stream.c32", "frames_s", 0.18, CODEC),
    Limit("frames.copy.1MiB", "gb_s", 4.0),
    Limit("frames.inplace.64MiB", "hand_p50_us", 3.5, PINGPONG),
    *(Limit(f"cancel.idle.{how}", "p50_us", 6.0, PINGPONG) for how in ("stop", "drop")),
    *(
        Limit(f"cancel.{level}.{how}", metric, bound)
        for level in ("c32", "c256")
        for how in ("stop", "drop")
        for metric, bound in (("p50_us", 1_000.0), ("p99_us", 10_000.0))
    ),
    Limit("startup.4", "seconds", 1.5),
    Limit("startup.4", "idle_rss_mb", 45.0),
    *(
        Limit(f"routing.select.{mode}.{size}", "us", bound)
        for mode in MODES
        for size, bound in ((10, 5.0), (1_000, 10.0))
    ),
    Limit("routing.spread.least_loaded.r4", "over_one", 1.3),
    Limit("plane.frames.copy.8MiB", "gb_s", 0.70, LOOPBACK),
    Limit("plane.frames.inplace.8MiB", "gb_s", 0.70, LOOPBACK),
    Limit("plane.memory.512", "stream_kb", 40.0),
    Limit("membership.near", "first_ms", 250.0),
    Limit("membership.near", "none_after_ms", 100.0),
    Limit("membership.far", "first_ms", 250.0),
    Limit("membership.far", "none_after_ms", 2_000.0),
    # Its lease of 2 s, and one second more.
    Limit("membership.gone", "none_after_s", 3.0),
    *(
        Limit(f"membership.{where}.1000", metric, bound)
        for where in ("directory", "etcd")
        for metric, bound in (("snapshot_ms", 1_000.0), ("router_rss_mb", 80.0))
    ),
)


class Verdict(NamedTuple):
    """A figure held against its limit; ``value`` is the ratio where the limit is one."""

    figure: Figure
    limit: Limit
    value: float
    ok: bool

    @property
    def text(self) -> str:
        """Such as ``4.81x pingpong, limit <= 5.5x, ok``."""
        sign = ">=" if more_is_better(self.figure.unit) else "<="
        word = "ok" if self.ok else "MISSED"
        if self.limit.of is None:
            return f"limit {sign} {number(self.limit.bound)}, {word}"
        floor = self.limit.of.removeprefix("floor.")
        return f"{number(self.value)}x {floor}, limit {sign} {number(self.limit.bound)}x, {word}"


def judge(figures: Iterable[Figure], router: str) -> dict[tuple[str, str], Verdict]:
    """The verdict on every figure that has a limit, by its key.

    A limit whose floor was not measured in this run gives no verdict.
    """
    measured = {figure.key: figure for figure in figures}
    medians = {
        figure.workload: figure.median for figure in measured.values() if figure.suite == "floor"
    }
    verdicts = {}
    for limit in LIMITS:
        figure = measured.get((limit.workload, limit.metric))
        if figure is None or limit.router not in (None, router):
            continue
        floor = 1.0 if limit.of is None else medians.get(limit.of, 0.0)
        if not floor:
            continue
        value = figure.median / floor
        ok = value >= limit.bound if more_is_better(figure.unit) else value <= limit.bound
        verdicts[figure.key] = Verdict(figure, limit, value, ok)
    return verdicts
