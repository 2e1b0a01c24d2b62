"""Who hears which instances come and go: every dispatch of a router, each for itself.

Pure. A dispatch hears what is known when it subscribes, and from then on every event in the order
in which discovery told it; none is left out because another undoes it. What one dispatch raises
costs no other. Subscribing, leaving and publishing from inside a callback is allowed: what happens
during an event is told after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from actors.messages import Record


class Listening(Protocol):
    """The half of a ``StreamingDispatch`` that hears of instances."""

    def on_instance_added(self, record: Record) -> None:
        """An instance can serve (again)."""

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """An instance gets no new streams."""


class Hearing:
    """One dispatch that hears, until it is cancelled; what ``Lifecycle.subscribe`` returns."""

    __slots__ = ("_lifecycle", "active", "dispatch")

    def __init__(self, lifecycle: Lifecycle, dispatch: Listening) -> None:
        self._lifecycle = lifecycle
        self.dispatch = dispatch
        self.active = True

    def cancel(self) -> None:
        """It hears nothing more, from now on; a second call does nothing."""
        self.active = False
        self._lifecycle._forget(self)


class Lifecycle:
    """The instances that one router knows, and the dispatches that hear of them.

    ``complain`` is told what a dispatch has raised. Belongs to one event loop.
    """

    def __init__(self, complain: Callable[[str, BaseException], None]) -> None:
        self._complain = complain
        self._known: dict[tuple[int, str], Record] = {}
        #: By identity of the dispatch: two that are equal are two.
        self._hearings: dict[int, Hearing] = {}
        self._events: deque[tuple[Record, str | None]] = deque()
        self._telling = False

    def subscribe(self, dispatch: Listening) -> Hearing:
        """``dispatch`` hears of all that is known, before this returns, and then of every event.

        One that hears already goes on as before.
        """
        hearing = self._hearings.get(id(dispatch))
        if hearing is not None:
            return hearing
        hearing = self._hearings[id(dispatch)] = Hearing(self, dispatch)
        outer, self._telling = self._telling, True
        try:
            for record in list(self._known.values()):
                self._tell(hearing, record, None)
        finally:
            self._telling = outer
        if not outer:
            self._drain()
        return hearing

    def added(self, record: Record) -> None:
        """An instance can serve, or its record has changed."""
        self._events.append((record, None))
        if not self._telling:
            self._drain()

    def removed(self, record: Record, reason: str) -> None:
        """An instance is gone, or gets no new streams."""
        self._events.append((record, reason))
        if not self._telling:
            self._drain()

    def close(self) -> None:
        """Nobody hears anything more."""
        for hearing in list(self._hearings.values()):
            hearing.cancel()
        self._events.clear()

    def _drain(self) -> None:
        self._telling = True
        try:
            while self._events:
                record, reason = self._events.popleft()
                # Known from here on, so that who subscribes during an event has it in its snapshot.
                if reason is None:
                    self._known[record.instance, record.endpoint] = record
                else:
                    self._known.pop((record.instance, record.endpoint), None)
                for hearing in list(self._hearings.values()):
                    self._tell(hearing, record, reason)
        finally:
            self._telling = False

    def _tell(self, hearing: Hearing, record: Record, reason: str | None) -> None:
        if not hearing.active:
            return
        try:
            if reason is None:
                hearing.dispatch.on_instance_added(record)
            else:
                hearing.dispatch.on_instance_removed(record, reason)
        except Exception as error:
            what = "added" if reason is None else "removed"
            name = type(hearing.dispatch).__qualname__
            self._complain(f"{name}.on_instance_{what} for {record.endpoint}", error)

    def _forget(self, hearing: Hearing) -> None:
        if self._hearings.get(id(hearing.dispatch)) is hearing:
            del self._hearings[id(hearing.dispatch)]
