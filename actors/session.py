"""One request as its home sees it, attempt by attempt: what to do when one of them has ended badly.

Facts in, decisions out: ``Session.ended`` takes the error of an attempt and what the attempt had
brought, and says whether the same request goes to another worker, whether the stream is continued
elsewhere behind what was delivered, whether to pause first, or which error the caller gets.
``actors.kernel.attempts`` does what it says. All that decides stands in ``TABLE``.

Errors are told apart by their codes and by two of their details: ``sent`` is ``no`` when the
request has certainly not left, ``limit`` names the time limit that ran out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from transport.errors import CallHomeError, Cancelled, LocalProtocolError

# What an error says about the request.
REFUSED: Final = 0  # no worker has begun with it
LOST: Final = 1  # the worker that had it is dead: its handler will not run on
BROKEN: Final = 2  # nobody knows: its handler may be running still
ABSENT: Final = 3  # there is no worker for it now
FINAL: Final = 4  # it would end so anywhere
KIND_NAMES: Final = ("refused", "lost", "broken", "absent", "final")

# How far the request was.
FRESH: Final = 0  # nothing has been delivered yet
RESUMED: Final = 1  # earlier attempts have delivered items or taken some, this one has not
ONGOING: Final = 2  # this attempt has
PHASE_NAMES: Final = ("fresh", "resumed", "ongoing")

# What to do.
RAISE: Final = 0  # the caller gets the error
RETRY: Final = 1  # the same request once more, elsewhere
MIGRATE: Final = 2  # go on elsewhere, behind what was delivered
WAIT: Final = 3  # pause, and then the same request once more, anywhere
STEP_NAMES: Final = ("raise", "retry", "migrate", "wait")

#: By phase and kind: what may be done, the first for which there is leave; none: RAISE. A retry
#: needs ``retry_limit``, a migration ``migration_limit``, a pause both a migration limit and an
#: earlier failure.
TABLE: Final[dict[tuple[int, int], tuple[int, ...]]] = {
    (FRESH, REFUSED): (RETRY,),
    (FRESH, LOST): (RETRY, MIGRATE),
    (FRESH, BROKEN): (MIGRATE,),
    (FRESH, ABSENT): (WAIT,),
    (FRESH, FINAL): (),
    (RESUMED, REFUSED): (RETRY, WAIT),
    (RESUMED, LOST): (MIGRATE,),
    (RESUMED, BROKEN): (MIGRATE,),
    (RESUMED, ABSENT): (WAIT,),
    (RESUMED, FINAL): (),
    (ONGOING, REFUSED): (MIGRATE,),
    (ONGOING, LOST): (MIGRATE,),
    (ONGOING, BROKEN): (MIGRATE,),
    (ONGOING, ABSENT): (),
    (ONGOING, FINAL): (),
}

#: The first pause for a worker to appear, in seconds, doubled up to the longest; and of all of them
#: together, between two items.
PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
PATIENCE: Final = 10.0

_REFUSED: Final = frozenset({"overloaded", "worker.unavailable", "draining"})
_LOST: Final = frozenset({"connection.peer", "worker.lost"})
_BROKEN: Final = frozenset(
    {"connection.lost", "connection.peer", "connection.callback", "worker.lost", "actor.dead"}
)
_ABSENT: Final = frozenset({"no_workers", "all_busy"})
#: As many as an id of 64 bits has.
_DIGITS: Final = 20
_LIMITS: Final = frozenset({"first", "gap", "prologue"})
#: After a pause, too, the request does not go where it failed so: its handler may hang there
#: still. One whose connection was lost is killed over there; whoever has refused has none.
_HANGS: Final = "deadline"


class Decision(NamedTuple):
    """What comes next: the step, the error for the caller (RAISE), seconds to pause (WAIT)."""

    step: int
    error: CallHomeError | None = None
    pause: float = 0.0


def kind_of(error: CallHomeError) -> int:
    """What an error says about the request that ended with it."""
    code, details = error.code, error.details
    if code in _ABSENT:
        return ABSENT
    if isinstance(error, LocalProtocolError):
        return FINAL
    if code in _REFUSED or details.get("sent") == "no":
        return REFUSED
    if code in _LOST and "instance" in details:
        return LOST  # without it: the router died, and what it had sent on lives
    if code in _BROKEN:
        return BROKEN
    if code == "deadline" and (details.get("limit") in _LIMITS or "sent" in details):
        return BROKEN
    return FINAL


def instance_of(error: CallHomeError) -> int:
    """The worker that an error names, or 0; the text may be anybody's."""
    text = error.details.get("instance", "")
    known = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if known else 0


class Session:
    """The attempts of one request, and what they have left of its limits."""

    __slots__ = (
        "avoid",
        "delivered",
        "failures",
        "migrated",
        "migrations",
        "original",
        "patience",
        "patience_left",
        "pauses",
        "resumable",
        "retried",
        "retries",
        "spoken",
        "used_up",
    )

    def __init__(
        self, retries: int, migrations: int, *, resumable: bool, patience: float = PATIENCE
    ) -> None:
        """``resumable``: somebody can make a request of what is left of the stream.
        ``patience``: seconds of pauses between two items.
        """
        self.retries = retries
        self.migrations = migrations
        self.resumable = resumable
        #: Items delivered by all attempts.
        self.delivered = 0
        #: One of them has taken request items of a stream each way.
        self.spoken = False
        #: Attempts that have failed.
        self.failures = 0
        #: The first failure since the last item: what the caller is told.
        self.original: CallHomeError | None = None
        #: Code of the failure by instance: where not to go again.
        self.avoid: dict[int, str] = {}
        self.retried = 0
        self.migrated = 0
        #: After the last failure it would have been continued, had it had leave once more.
        self.used_up = False
        self.pauses = 0
        self.patience = self.patience_left = patience

    def ended(
        self, error: CallHomeError, delivered: int, *, spoken: bool = False, stopped: str = ""
    ) -> Decision:
        """An attempt has ended with ``error`` after ``delivered`` items of its own.

        ``spoken``: it has taken request items of a stream each way. ``stopped``: why the caller
        wants no more of it, if so.
        """
        kind = kind_of(error)
        begun = self.delivered or self.spoken
        phase = ONGOING if delivered or spoken else RESUMED if begun else FRESH
        self.delivered += delivered
        self.spoken = self.spoken or spoken
        self.failures += 1
        if delivered:
            self._progress()
        if self.original is None and (kind != ABSENT or self.failures == 1):
            self.original = error
        instance = instance_of(error)
        if kind <= BROKEN and instance:
            # What a worker tells of others is no fault of its own, if its router hears of it here.
            others = error.details.get("origin") == "worker" and error.code != "overloaded"
            self.avoid.pop(instance, None)  # the newest failure is the last: routers go by that
            self.avoid[instance] = "" if others else error.code
        step = self._first_allowed(TABLE[phase, kind], phase)
        if step == RAISE:
            return Decision(RAISE, self._told(error, kind))
        if stopped:
            cancelled = Cancelled(stopped)
            cancelled.__cause__ = error
            return Decision(RAISE, cancelled)
        return self._take(step)

    def _progress(self) -> None:
        """An item has come: whatever is counted between two items begins anew."""
        self.original = None
        self.retried = self.pauses = 0
        self.patience_left = self.patience

    def _first_allowed(self, steps: tuple[int, ...], phase: int) -> int:
        self.used_up = False
        for step in steps:
            if step == RETRY and self.retried < self.retries:
                return RETRY
            if step == MIGRATE and (phase == FRESH or self.resumable):
                if self.migrated < self.migrations:
                    return MIGRATE
                self.used_up = self.migrations > 0
            if step == WAIT and self.migrations and self.failures > 1 and self.patience_left > 0:
                return WAIT
        return RAISE

    def _take(self, step: int) -> Decision:
        if step == RETRY:
            self.retried += 1
        elif step == MIGRATE:
            self.migrated += 1
        else:
            # After a pause all may have changed: whoever is there then is welcome.
            self.avoid = {each: code for each, code in self.avoid.items() if code == _HANGS}
            pause = min(PAUSE * 2**self.pauses, LONGEST_PAUSE, self.patience_left)
            self.pauses += 1
            self.patience_left -= pause
            return Decision(WAIT, pause=pause)
        return Decision(step)

    def _told(self, error: CallHomeError, kind: int) -> CallHomeError:
        """What the caller is told when nothing more can be done after ``error``."""
        original = self.original
        if kind == FINAL or original is None or original is error:
            return error
        if kind == ABSENT and kind_of(original) == REFUSED and len(self.avoid) > 1:
            return error  # several have refused: of them all that is the better word
        if original.__cause__ is None:
            original.__cause__ = error
        return original
