"""Stream halves that a requester awaits: who may dial in, until when, and whose death ends the
wait.

Pure: the clock is passed in, in seconds, and nothing here knows sockets. An entry leaves the table
exactly once: by the right connection, by its owner, by its deadline or by the removal of its
instance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from transport.errors import ConnectionLost, LocalProtocolError, OutboxFull, RemoteProtocolError

_W = TypeVar("_W")

#: Seconds for which a removed instance gets no new entries.
TOMBSTONE: Final = 5.0
#: Removed instances remembered at most.
_TOMBSTONES: Final = 4096
#: Halves awaited at most.
_MOST: Final = 65_536
_SLACK: Final = 64


class Entry(NamedTuple, Generic[_W]):
    """One half of a stream that somebody waits for."""

    subject: str
    stream_type: str
    instance: Hashable | None
    """The instance that will dial; None when the wait is bound to none."""
    deadline: float
    waiter: _W
    """Whom to tell; of no meaning to the table."""


class Pending(Generic[_W]):
    """The table of one requester."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._entries: dict[str, Entry[_W]] = {}
        self._of: dict[Hashable, set[str]] = {}
        self._due: list[tuple[float, str]] = []
        self._dead: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def register(
        self,
        subject: str,
        stream_type: str,
        instance: Hashable | None,
        deadline: float,
        waiter: _W,
        now: float,
    ) -> None:
        """Await ``subject`` until ``deadline``.

        Raises ConnectionLost when the instance was removed within the last 5 s, OutboxFull when the
        table is full, LocalProtocolError when the subject is awaited already.
        """
        if instance is not None and self._buried(instance, now):
            raise ConnectionLost(
                f"instance {instance} was removed less than {TOMBSTONE:g} s ago; nothing was sent"
            )
        if subject in self._entries:
            raise LocalProtocolError("this subject is awaited already; each half has its own")
        if len(self._entries) >= self._most:
            raise OutboxFull(
                f"{self._most} stream halves are awaited already; workers do not call back as fast "
                "as requests are sent"
            )
        self._entries[subject] = Entry(subject, stream_type, instance, deadline, waiter)
        if instance is not None:
            self._of.setdefault(instance, set()).add(subject)
        heappush(self._due, (deadline, subject))
        if len(self._due) > 2 * len(self._entries) + _SLACK:
            self._due = [(each.deadline, each.subject) for each in self._entries.values()]
            heapify(self._due)

    def _buried(self, instance: Hashable, now: float) -> bool:
        since = self._dead.get(instance)
        if since is None:
            return False
        if now - since < TOMBSTONE:
            return True
        del self._dead[instance]
        return False

    def match(self, subject: str, stream_type: str) -> Entry[_W]:
        """Take the entry that a connection names: its first use is its last.

        Raises RemoteProtocolError for a subject that nobody awaits, and for the other half of one,
        which goes on being awaited.
        """
        entry = self._entries.get(subject)
        if entry is None:
            raise RemoteProtocolError("unknown subject: expired, cancelled, used already, or false")
        if entry.stream_type != stream_type:
            raise RemoteProtocolError(
                f"a {stream_type[:40]!r} half came where {entry.stream_type!r} is awaited"
            )
        self._remove(entry)
        return entry

    def _remove(self, entry: Entry[_W]) -> None:
        del self._entries[entry.subject]
        if entry.instance is not None:
            subjects = self._of[entry.instance]
            subjects.discard(entry.subject)
            if not subjects:
                del self._of[entry.instance]

    def cancel(self, subject: str) -> Entry[_W] | None:
        """Await it no longer; None when it has left the table already."""
        entry = self._entries.get(subject)
        if entry is not None:
            self._remove(entry)
        return entry

    def removed(self, instance: Hashable, now: float) -> list[Entry[_W]]:
        """An instance is gone: what it was awaited for, taken out, and a tombstone for it."""
        while self._dead and now - next(iter(self._dead.values())) >= TOMBSTONE:
            self._dead.popitem(last=False)
        self._dead.pop(instance, None)
        self._dead[instance] = now
        if len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)
        found = [self._entries[subject] for subject in self._of.get(instance, ())]
        for entry in found:
            self._remove(entry)
        return found

    def added(self, instance: Hashable) -> None:
        """An instance is there, again or for the first time: no tombstone holds it back."""
        self._dead.pop(instance, None)

    def expired(self, now: float) -> list[Entry[_W]]:
        """What was awaited until now at the latest, taken out."""
        found: list[Entry[_W]] = []
        while self._due and self._due[0][0] <= now:
            deadline, subject = heappop(self._due)
            entry = self._entries.get(subject)
            if entry is not None and entry.deadline == deadline:
                self._remove(entry)
                found.append(entry)
        return found

    def clear(self) -> list[Entry[_W]]:
        """The table is closed: all that was awaited, taken out."""
        found = list(self._entries.values())
        self._entries.clear()
        self._of.clear()
        self._due.clear()
        return found
