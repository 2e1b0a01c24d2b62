"""When a dead child is started again: strategy, intensity and back-off as arithmetic.

Used by ``actors.kernel.supervisor``. Pure: the time of every exit is passed in, so a test walks
years in microseconds. The verdict is one of three facts, and the supervisor performs it.

A child that fails more than ``Intensity.max_restarts`` times in a row is given up and the rest of
the node lives on: one broken engine must not take its neighbours down, and an operator sees the
state ``failed`` and the last reason in ``callhome ps``. A row ends with a life of
``Intensity.period`` seconds, counted from when the child *served*, and with nothing less: a window
of that length that slides over the restarts is never full where each life, start-up and pause
together take a part of it, and a model that loads for a minute has not lived by loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

Strategy: TypeAlias = Literal["always", "on-failure", "never"]

STRATEGIES: Final[tuple[Strategy, ...]] = ("always", "on-failure", "never")


@dataclass(frozen=True)
class Intensity:
    """How many restarts in a row are normal life; one more is a crash loop. A child that has
    served for ``period`` seconds since its last restart begins a new row.
    """

    max_restarts: int = 5
    period: float = 30.0


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait before the second, third, ... restart of a row; the first is immediate.

    A lone crash should cost its callers nothing but the start-up time.
    """

    first: float = 0.1
    factor: float = 2.0
    limit: float = 5.0

    def delay(self, recent: int) -> float:
        """Wait before the next restart when ``recent`` restarts came before it in its row."""
        if recent == 0:
            return 0.0
        exponent = min(recent - 1, 64)
        return float(min(self.first * self.factor**exponent, self.limit))


class Restart(NamedTuple):
    """Start the child again after ``delay`` seconds."""

    delay: float


class Rest(NamedTuple):
    """The child's end is in order (its strategy asks for no restart); leave it so."""

    reason: str


class GiveUp(NamedTuple):
    """The child failed too often; it stays down until somebody starts the node again."""

    reason: str


Verdict: TypeAlias = Restart | Rest | GiveUp


class RestartPolicy:
    """The restart history of one child. One instance a child, told of each life that it began,
    asked once per exit.
    """

    def __init__(
        self,
        strategy: Strategy = "on-failure",
        intensity: Intensity | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.strategy = strategy
        self.intensity = intensity or Intensity()
        self.backoff = backoff or Backoff()
        self.total = 0
        self._row = 0
        #: When the child came up that ends next; None while it has not, or did not.
        self._up: float | None = None

    def up(self, now: float) -> None:
        """The child serves from ``now`` on: only from here on it lives."""
        self._up = now

    def renew(self) -> None:
        """Somebody starts the child anew by his own wish: what it did before counts no more."""
        self._row = 0

    def on_exit(self, now: float, *, clean: bool) -> Verdict:
        """Judge an exit at ``now`` (seconds of any steady clock); ``clean`` means exit code 0.

        A failed attempt to start again is an exit as well, and never a clean one; without ``up``
        before it no life has ended, however long the attempt took.
        """
        came, self._up = self._up, None
        if self.strategy == "never":
            return Rest("its restart strategy is 'never'")
        if clean and self.strategy == "on-failure":
            return Rest("it ended with exit code 0 and its restart strategy is 'on-failure'")
        if came is not None and now - came >= self.intensity.period:
            self._row = 0
        if self._row >= self.intensity.max_restarts:
            return GiveUp(
                f"{self._row} restarts are its limit, and it did not serve for "
                f"{self.intensity.period:g} s after any of them (restart intensity)"
            )
        delay = self.backoff.delay(self._row)
        self._row += 1
        self.total += 1
        return Restart(delay)
