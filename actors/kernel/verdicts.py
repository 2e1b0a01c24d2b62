"""Whether an actor of this node is well, frozen, stalled or unready, as one watcher sees it. Pure.

====================================================  ===========================================
what is seen                                          verdict
====================================================  ===========================================
beats come, the loop turns                            well, however much CPU it uses
beats come, the loop has not turned for the limit     stalled: something blocks it
beats come, the loop turns, the engine says so        unready: it has not answered its canary
no beat for the limit, the process is stopped         frozen
no beat for the limit, it uses CPU                    stalled: something holds the interpreter
no beat for the limit, it wants CPU and gets none     as before: the machine is overloaded
no beat for the limit, it wants and uses none         frozen
its process is gone                                   as before: others tell of that
nobody beats there                                    well: it is not for us to judge
====================================================  ===========================================

Silence is counted by the watcher's own looks, and no look counts for more than twice its period: a
watcher that was frozen itself, with all others, finds old beats when it wakes and must not take
that for a verdict. Times of the beats themselves are believed of one whose process is stopped only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

WELL: Final = "well"
FROZEN: Final = "frozen"
STALLED: Final = "stalled"
UNREADY: Final = "unready"
#: All that an actor can be and not be well.
ILLNESSES: Final = (FROZEN, STALLED, UNREADY)
#: Seconds between two beats, and between two looks at them.
PERIOD: Final = 0.5
LOOK: Final = 0.25
#: How a process is.
STOPPED: Final = "stopped"
RUNNING: Final = "running"
IDLE: Final = "idle"
#: Nobody can say (it has another PID namespace): the beats decide alone.
HIDDEN: Final = "hidden"
#: Seconds of CPU without a beat that show that something holds the interpreter, however little CPU
#: there is to be had: 20 of the intervals after which a thread has to let others go on.
_BURNS: Final = 0.1
#: What is noticed is noticed within the limit: less the period of looks, and of beats.
_SOONER_FROZEN: Final = 2 * LOOK
_SOONER_STALLED: Final = PERIOD + LOOK
#: No limit makes a verdict of fewer beats than two.
_LEAST: Final = 2 * PERIOD
_WHY: Final = {
    RUNNING: "something in it holds the Python interpreter",
    STOPPED: "its process is stopped",
    IDLE: "its process shows no sign of life and uses no CPU",
    HIDDEN: "its process shows no sign of life",
}


class Sign(NamedTuple):
    """What a process has written last: when it beat, and when its loop had last turned, in
    seconds of the monotonic clock; for how many seconds that turn had to be waited for; since when
    (monotonic; 0.0: it is not) and ``why`` its engine is not ready.
    """

    beat: float
    turn: float
    lag: float = 0.0
    unready: float = 0.0
    why: str = ""


class Process(NamedTuple):
    """What the system says of a process: how it is, and the seconds of CPU it has used."""

    state: str
    used: float


class Verdict(NamedTuple):
    """``code`` is WELL or one of ``ILLNESSES``; of these ``since`` (monotonic seconds) and ``why``
    tell more.
    """

    code: str = WELL
    since: float = 0.0
    why: str = ""

    @property
    def well(self) -> bool:
        return self.code == WELL

    @property
    def mute(self) -> bool:
        """It would not answer a question now."""
        return self.code in (FROZEN, STALLED)

    def text(self, who: object) -> str:
        """What is told of ``who`` (name and pid), without for how long."""
        return f"{who} is {self.code}: {self.why}"


FINE: Final = Verdict()


class Judge:
    """One process under one watcher; ``limit`` in seconds, 0: never found frozen or stalled."""

    __slots__ = (
        "_frozen",
        "_looked",
        "_quiet",
        "_seen",
        "_sign",
        "_stalled",
        "_used",
        "verdict",
    )

    def __init__(self, limit: float) -> None:
        self._frozen = max(limit - _SOONER_FROZEN, _LEAST) if limit else float("inf")
        self._stalled = max(limit - _SOONER_STALLED, _LEAST) if limit else float("inf")
        self._sign: Sign | None = None
        self._looked = 0.0
        #: Seconds without a beat: as the beat's time says, and as was seen here.
        self._quiet = self._seen = 0.0
        #: CPU that it had used when it was first asked in this silence; None: not asked.
        self._used: float | None = None
        #: The same object as long as the verdict is the same.
        self.verdict = FINE

    @property
    def lag(self) -> float | None:
        """Seconds that its loop took to turn when it was last asked; None: it does not say."""
        return None if self._sign is None else self._sign.lag

    def look(self, sign: Sign | None, ask: Callable[[], Process | None], now: float) -> Verdict:
        """One look: the newest sign (None: there are none to be had); ``ask`` asks the system,
        which is done only where no beat has come for some time, and says None of one that is gone.
        """
        passed, self._looked = now - self._looked, now
        if sign is None:
            self._sign, self.verdict = None, FINE
            return FINE
        if sign != self._sign or passed > 8 * LOOK:
            fresh = self._sign is not None and sign.beat != self._sign.beat
            self._quiet = 0.0 if fresh else max(0.0, now - sign.beat)
            self._seen, self._used, self._sign = 0.0, None, sign
        else:
            passed = min(passed, 2 * LOOK)
            self._quiet += passed
            self._seen += passed
        if self._quiet >= self._frozen - 2 * LOOK:
            found = self._silent(ask(), now)
        elif sign.beat - sign.turn >= self._stalled:
            found = Verdict(STALLED, sign.turn, "its event loop is blocked")
        elif sign.unready:
            found = Verdict(UNREADY, sign.unready, sign.why)
        else:
            found = FINE
        if found != self.verdict:
            self.verdict = found
        return self.verdict

    def _silent(self, process: Process | None, now: float) -> Verdict:
        """No beat for some time, perhaps for long enough."""
        if process is None:
            return self.verdict
        state, began = process.state, now - self._quiet
        if state == STOPPED:
            self._used = None
        elif self._used is None:
            self._used = process.used
        if self._quiet < self._frozen:
            return self.verdict
        if state == STOPPED:
            return self._told(FROZEN, began, state)
        if self._seen < _LEAST:
            return self.verdict
        if state != HIDDEN and self._used is not None and process.used - self._used >= _BURNS:
            return self._told(STALLED, began, RUNNING)
        if state == RUNNING:
            return self.verdict
        return self._told(FROZEN, began, state)

    def _told(self, code: str, began: float, state: str) -> Verdict:
        if self.verdict.code == code and self.verdict.why == _WHY[state]:
            return self.verdict
        return Verdict(code, began, _WHY[state])
