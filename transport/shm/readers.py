"""What peers know of our memory and can read of it: told, mapped, refused; part of ``Memory``.

A peer that cannot map a segment, or has not answered in time, gets bytes. That may pass: its loop
stood, it had no descriptor left. So it is told again now and then, at growing distances, while it
goes on getting bytes, and its first good answer is the end of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from transport.shm.arena import Arena
from transport.shm.passing import Passing
from transport.shm.reading import Reading
from transport.shm.refusal import Refusal
from transport.shm.roads import FILE
from transport.wire.handle import NO_SEGMENT, Announcement, Handle


class _Link:
    """What a peer knows of our segments."""

    __slots__ = ("announced", "attached", "denied", "opened", "refusal", "road")

    def __init__(self) -> None:
        self.announced: set[int] = set()
        self.attached: set[int] = set()
        #: Segments that it got with an Open, whatever it was told of them besides.
        self.opened: set[int] = set()
        #: Segments that it cannot map, though it may others; and whether it maps none at all.
        self.denied: set[int] = set()
        self.refusal: Refusal | None = None
        #: How it reached the last one.
        self.road = ""


class Readers:
    """The peers of one ``Memory``; ``clock`` is a monotonic one. For the thread of the loop."""

    def __init__(
        self,
        arena: Arena,
        reading: Reading,
        passing: Passing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = arena.owner
        self._arena = arena
        self._offers = arena.offers
        self._reading = reading
        self._passing = passing
        self._clock = clock
        self._links: dict[int, _Link] = {}

    def needs(self, peer: int, handles: Iterable[Handle] | None = None) -> list[Announcement]:
        """Segments of ``handles`` (None: all segments) that ``peer`` has not been told of.

        Counts them as told. The caller sends them to the peer before the handles.
        """
        if peer == self._owner or self._offers.inline:
            return []
        link = self._link(peer)
        if handles is None:
            numbers: Iterable[int] = self._arena.numbers()
        else:
            handles = list(handles)
            numbers = [each.segment for each in handles if self._is_ours(each) and each.segment]
        missing = [number for number in dict.fromkeys(numbers) if number not in link.announced]
        link.announced.update(missing)
        found = [self._arena.announcement(number) for number in missing]
        return found if handles is None else found + self._needs_of_others(peer, handles)

    def _needs_of_others(self, peer: int, handles: Iterable[Handle]) -> list[Announcement]:
        found = []
        others = [each for each in handles if not self._is_ours(each)]
        for owner, segment in self._passing.untold(peer, others):
            announcement = self._reading.announcement(owner, segment)
            if announcement is None:  # its owner has died: nobody can map it any more
                self._passing.mark(peer, owner, segment, ok=False)
            else:
                found.append(announcement)
        return found

    def opened(self, peer: int, handles: Iterable[Handle]) -> None:
        """``peer`` has accepted an Open with these handles: it has their segments mapped."""
        link = self._link(peer)
        link.opened.update(handle.segment for handle in handles if self._is_ours(handle))

    def mark(self, peer: int, segment: int, ok: bool, road: str = "", owner: int = 0) -> None:
        """Note the peer's answer to an announcement: mapped by ``road``, or refused, and then
        whether a ``file`` would be better. ``owner``: whose segment it is, 0: ours.
        """
        if owner not in (0, self._owner):
            self._passing.mark(peer, owner, segment, ok)
            return
        files = not ok and road == FILE and self._offers.want_files()
        if files:
            self._arena.prefer_files()
        link = self._links.get(peer)
        if link is None:
            return
        if ok:
            link.refusal = None
            link.denied.discard(segment)
            if self._arena.has(segment):
                link.attached.add(segment)
                link.road = road
        elif files:
            link.denied.add(segment)
        elif link.refusal is None:
            link.refusal = Refusal(self._clock())

    def again(self, peer: int, handles: Iterable[Handle]) -> bool:
        """Whether ``peer``, which has refused, is to be told of ``handles`` once more: ``needs``
        names them then.
        """
        due = self._passing.again(peer, handles)
        link = self._links.get(peer)
        if link is not None and link.refusal is not None and link.refusal.is_due(self._clock()):
            link.announced &= link.attached
            due = True
        return due

    def usable(self, peer: int, handles: Iterable[Handle] = ()) -> bool:
        """Whether ``handles`` may be sent to ``peer``, which has not refused their segments."""
        if self._offers.inline:
            return False
        if not all(
            self._is_ours(each) or self._passing.usable(peer, each.owner) for each in handles
        ):
            return False
        link = self._links.get(peer)
        if link is None:
            return True
        if link.refusal is not None:
            return False
        return not link.denied or all(handle.segment not in link.denied for handle in handles)

    def roads(self) -> list[tuple[int, str]]:
        """Who was told of our memory and has answered, and by which road it is reached."""
        found = [
            (peer, "inline" if link.refusal is not None else link.road)
            for peer, link in self._links.items()
        ]
        return [(peer, road) for peer, road in found if road]

    def road(self, peer: int) -> str:
        """How ``peer`` reaches our memory, "" before it has."""
        link = self._links.get(peer)
        return "" if link is None else link.road

    def attached(self, peer: int, handles: Iterable[Handle]) -> bool:
        """Whether ``peer`` has answered that it mapped the segments of all ``handles``."""
        if peer == self._owner:
            return True
        link = self._links.get(peer)
        known = link.attached if link is not None else ()
        return all(
            handle.segment == NO_SEGMENT
            or (
                handle.segment in known
                if handle.owner == self._owner
                else self._passing.attached(peer, handle)
            )
            for handle in handles
        )

    def forget(self, peer: int) -> None:
        """Drop what is known of a peer's view of us, and of views of its memory: it is gone."""
        self._links.pop(peer, None)
        self._passing.forget(peer)

    def retired(self, gone: list[int]) -> dict[int, list[int]]:
        """Segments of these numbers were given back: which of them each peer was told of."""
        told: dict[int, list[int]] = {}
        for peer, link in self._links.items() if gone else ():
            known = link.announced | link.opened
            numbers = [number for number in gone if number in known]
            if numbers:
                told[peer] = numbers
            for each in (link.announced, link.attached, link.denied, link.opened):
                each.difference_update(gone)
        return told

    def _link(self, peer: int) -> _Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        return link

    def _is_ours(self, handle: Handle) -> bool:
        return handle.owner == self._owner
