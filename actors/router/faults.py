"""Workers that have failed: how long each gets no streams, and how it comes back.

Pure: faults and the clock in, verdicts out. A fault puts a worker in quarantine; when that is over
one stream tries it, and the outcome of that stream decides: back as if nothing had been, or longer.
Whoever else comes and goes meanwhile changes nothing of it.

Only failures of the road or of the worker's process are faults. What a handler raises, a request
that is too large or a cancel says nothing against the worker, and a worker that refuses for want of
room is healthy: it is left alone for a moment, which is the pool's affair.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from actors.messages import Route
from actors.router.occupancy import Key
from transport.errors import CallHomeError, RemoteProtocolError

#: Errors that speak against the worker, or against the road to it.
FAULTS: Final = frozenset(
    [
        "connection.lost",
        "connection.peer",
        "connection.callback",
        "worker.lost",
        "worker.unavailable",
    ]
)
OVERLOADED: Final = "overloaded"
#: What an engine of this node says of itself. Its other errors are not about the way to it: its
#: connection.lost may be that of the caller.
TOLD: Final = frozenset(["worker.unavailable", OVERLOADED])
#: Says nothing, neither for the worker nor against it.
SILENT: Final = "cancelled"
#: Workers whose past is kept, though they may not be known now.
_KEPT: Final = 65_536
#: Failures of one request that are looked at: of a home that tells more the newest.
_FAILURES: Final = 64


def code_of(error: CallHomeError) -> str:
    """What an error is to a router: its code, "" where it says that the worker works.

    A deadline is the road's when it tells what has become of the request, else the caller's own. An
    error that the worker told of another's failure is none of its own.
    """
    code = error.details.get("code", "") if type(error) is CallHomeError else error.code
    if code == "deadline":
        ours = "sent" in error.details or error.details.get("limit") == "prologue"
        return "connection.lost" if ours else SILENT
    if code in FAULTS and error.details.get("origin") == "worker":
        return ""
    return code


def failures(endpoint: str, route: Route) -> list[tuple[int, str]]:
    """Who has failed a request before and by which code, as its home tells, the newest last.

    Raises RemoteProtocolError for what names nobody.
    """
    found: list[tuple[int, str]] = []
    for each in route.avoid[-_FAILURES:]:
        if type(each) is not list or [*map(type, each)] != [int, str]:
            raise RemoteProtocolError(
                f"{endpoint}: what a stream avoids is named by instance and error code"
            )
        found.append((each[0], each[1]))
    return found


class _Past:
    """One worker that has failed."""

    __slots__ = ("before", "over", "since", "strikes", "trial", "until")

    def __init__(self) -> None:
        self.strikes = 0
        #: End of the quarantine (clock); None once that is over and a stream may try the worker.
        self.until: float | None = None
        #: When it was over.
        self.over = 0.0
        #: The stream that tries it, and since when.
        self.trial: Key | None = None
        self.since = 0.0
        #: Streams that it had already when the quarantine began: their failures are no news.
        self.before: set[Key] = set()


class Faults:
    """The past of an endpoint's workers, by instance.

    ``first`` is the length of a quarantine in seconds, doubled each time up to ``longest``; 0
    switches quarantines off.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self.longest = max(longest, first)
        self._pasts: dict[int, _Past] = {}

    def __len__(self) -> int:
        return len(self._pasts)

    def __contains__(self, instance: int) -> bool:
        return instance in self._pasts

    def rests(self, instance: int) -> bool:
        """Whether it is to get no streams now: it is in quarantine, or being tried."""
        past = self._pasts.get(instance)
        return past is not None and (past.until is not None or past.trial is not None)

    def tried(self, instance: int) -> bool:
        """Whether a stream tries it now."""
        past = self._pasts.get(instance)
        return past is not None and past.trial is not None

    def due(self, instance: int) -> bool:
        """Whether its next stream will be its trial."""
        past = self._pasts.get(instance)
        return past is not None and past.until is None and past.trial is None

    def until(self, instance: int) -> float:
        """When its quarantine ends; 0 where it has none."""
        past = self._pasts.get(instance)
        return 0.0 if past is None or past.until is None else past.until

    def strike(self, instance: int, key: Key | None, running: Iterable[Key], now: float) -> bool:
        """Stream ``key`` (None: somebody else's) has failed by a fault of the worker, which has the
        streams ``running``. Whether a quarantine begins.
        """
        if not self._first:
            return False
        past = self._pasts.get(instance)
        if past is None:
            if len(self._pasts) >= _KEPT:
                del self._pasts[next(iter(self._pasts))]
            past = self._pasts[instance] = _Past()
        elif key is not None and key in past.before:
            past.before.discard(key)
            return False
        elif past.until is not None and (key is None or key != past.trial):
            return False  # sent in its quarantine, for want of another: one trial counts
        past.until = now + min(self._first * 2.0**past.strikes, self.longest)
        past.strikes = min(past.strikes + 1, 64)
        past.trial = None
        past.before = {each for each in running if each != key}
        return True

    def works(self, instance: int, key: Key) -> bool:
        """Stream ``key`` shows that the worker works; whether that ends its quarantine or trial."""
        past = self._pasts.get(instance)
        if past is None:
            return False
        if key in past.before:  # sent before it failed: that it comes to an end proves nothing
            past.before.discard(key)
            return False
        del self._pasts[instance]
        return True

    def undecided(self, instance: int, key: Key) -> None:
        """Stream ``key`` has ended and says nothing: if it tried the worker, another must."""
        past = self._pasts.get(instance)
        if past is not None:
            past.before.discard(key)
            if past.trial == key:
                past.trial = None

    def begin_trial(self, instance: int, key: Key, now: float) -> bool:
        """Stream ``key`` tries the worker, after its quarantine or for want of any other; False
        where another does already, or none needs to.
        """
        past = self._pasts.get(instance)
        if past is None or past.trial is not None:
            return False
        past.trial, past.since = key, now
        return True

    def trials(self) -> list[tuple[int, Key]]:
        """Those that are being tried, and the stream that tries each."""
        return [(each, past.trial) for each, past in self._pasts.items() if past.trial is not None]

    def undecided_since(self, now: float) -> list[int]:
        """Those whose trial has lasted as long as the longest quarantine and has shown nothing:
        another stream may try them, too.
        """
        found = []
        for instance, past in self._pasts.items():
            if past.trial is not None and now - past.since >= self.longest:
                past.trial = None
                found.append(instance)
        return found

    def over(self, now: float) -> list[int]:
        """Those whose quarantine has ended since this was last asked: a stream may try them."""
        found = []
        for instance, past in self._pasts.items():
            if past.until is not None and now >= past.until:
                past.until, past.over = None, now
                found.append(instance)
        return found

    def resting(self) -> list[int]:
        """Those that are to get no streams now."""
        return [
            each
            for each, past in self._pasts.items()
            if past.until is not None or past.trial is not None
        ]

    def waits(self, known: Container[int]) -> bool:
        """Whether any quarantine has an end to wait for, or a trial goes on, or somebody who is not
        ``known`` is to be forgotten.
        """
        return any(
            past.until is not None or past.trial is not None or each not in known
            for each, past in self._pasts.items()
        )

    def leave(self, instance: int) -> None:
        """Its record is gone, and may come back: whatever tries it now decides nothing any more."""
        past = self._pasts.get(instance)
        if past is not None:
            past.trial = None

    def forget_strangers(self, known: Container[int], now: float) -> None:
        """Those that are not ``known`` any more have no past after a while."""
        for each, past in list(self._pasts.items()):
            if each not in known and past.until is None and now - past.over >= self.longest:
                del self._pasts[each]

    def forget(self, instance: int) -> None:
        """The instance will never be back: a process of this node that has died."""
        self._pasts.pop(instance, None)
