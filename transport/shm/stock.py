"""The segments of one arena: made when frames need room, given back when nothing is in them.

Used by ``Arena`` under its lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from transport.errors import MemoryExhausted
from transport.shm.offers import Offers
from transport.shm.segment import Segment
from transport.shm.slab import Slab
from transport.shm.slots import GRAIN, Lease, Slot, size_class
from transport.wire.handle import SHARED

#: So many of those who hold memory are named in an error.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """What an arena holds now.

    ``segments``; bytes ``reserved`` for data and ``in_use`` (in whole slots); ``slots`` in
    use and those ``lent``, the ``borrowers`` that have them, and releases ``ignored`` because they
    came late or twice; how many are ``waiting`` for room.
    """

    segments: int
    reserved: int
    in_use: int
    slots: int
    lent: int
    borrowers: int
    ignored: int
    waiting: int


class SegmentState(NamedTuple):
    """One segment: its ``number``, bytes for data and in use, where it is (``memfd`` or ``file``),
    and for how many seconds nothing in it has been in use (None: something is).
    """

    number: int
    size: int
    used: int
    kind: str
    idle: float | None


class Stock:
    """Segments by their number, of at most ``limit`` bytes of data all together.

    ``changed`` is called, in any thread, when one was made or given back.
    """

    def __init__(self, slab: Slab, offers: Offers, *, step: int, limit: int) -> None:
        self.segments: dict[int, Segment] = {}
        self.limit = limit
        #: Bytes of all segments.
        self.reserved = 0
        #: Numbers of segments that were given back, of which peers have to be told.
        self.gone: deque[int] = deque()
        self.changed: Callable[[], object] = nothing
        #: What the system said when it refused memory last.
        self.refusal = ""
        self._slab = slab
        self._offers = offers
        self._step = max(step, 1)
        self._made = 0

    def grow(self, size: int) -> None:
        """Add a segment that has room for ``size`` bytes, or let those be used again that were
        left out. Raises MemoryExhausted.
        """
        try:
            self._grow(size, size_class(size))
        except MemoryExhausted:
            if not self._slab.favour(None):
                raise

    def _grow(self, size: int, want: int) -> None:
        if self.reserved + want > self.limit:
            self._make_room(want)
        capacity = max(want, min(self._step, self.limit - self.reserved) // GRAIN * GRAIN)
        if self.reserved + capacity > self.limit:
            raise MemoryExhausted(
                f"no room for a frame of {size} bytes: {self._slab.bytes_in_use} of the "
                f"arena's limit of {self.limit} bytes are held by frames; let readers release "
                "theirs, wait for them with frames.wait_new, or raise the limit"
            )
        try:
            if self._offers.files and self._slab.leaves_out():
                segment = self._offers.file(capacity, want)
                if segment is None and self._slab.favour(None):
                    return
            else:
                segment = None
            segment = segment or self._offers.create(capacity, want)
        except OSError as error:
            self.refusal = str(error)
            raise MemoryExhausted(
                f"no segment of {capacity} bytes for frames: {error}; {self._advice()}"
            ) from error
        self._made = number = self._made + 1
        self.segments[number] = segment
        self._slab.add_segment(number, segment.start, segment.size)
        self.reserved += segment.size - segment.start
        segment.warm()
        self.changed()

    def reserve(self, segment: Segment, slot: Slot) -> None:
        """Take memory from the system for a slot. Raises MemoryExhausted, and frees the slot."""
        try:
            segment.reserve(slot.offset, slot.size)
        except OSError as error:
            self.refusal = str(error)
            self._slab.drop_hold(slot)
            raise MemoryExhausted(
                f"the system has no memory for a frame of {slot.size} bytes: {error}; "
                f"{self._advice()}"
            ) from error
        self.refusal = ""

    def _advice(self) -> str:
        if self._offers.files:
            return f"{SHARED} is full: make it larger, or set frame_road to 'auto'"
        return "free memory or descriptors, raise the limits of this process or its container"

    def prefer_files(self) -> None:
        """Leave out segments that are none, where somebody reads none but files."""
        if self._offers.files:
            self._slab.favour({n for n, each in self.segments.items() if each.path})

    def avoid(self, segment: Segment) -> bool:
        """There is no memory for ``segment``: go on without files for a while, if it is one and
        they are not prescribed. Whether that can help.
        """
        if not segment.path or not self._offers.put_off():
            return False
        self._slab.favour({n for n, each in self.segments.items() if not each.path})
        return True

    def take_idle(self, idle: float) -> list[Segment]:
        """Segments in which nothing was in use for ``idle`` seconds; whoever calls closes them."""
        now = time.monotonic()
        return [
            self._retire(part.number)
            for part in self._slab.look(now)
            if part.idle_since is not None and now - part.idle_since >= idle
        ]

    def states(self) -> list[SegmentState]:
        """Each segment as it is now."""
        now = time.monotonic()
        return [
            SegmentState(
                number,
                segment.size - segment.start,
                used,
                "file" if segment.path else "memfd",
                None if since is None else now - since,
            )
            for number, used, since in self._slab.parts()
            if (segment := self.segments.get(number)) is not None
        ]

    def _make_room(self, want: int) -> None:
        """Give back segments that are not in use, if that makes room for one of ``want`` bytes."""
        empty = [number for number, used, _ in self._slab.parts() if not used]
        sizes = [self.segments[each].size - self.segments[each].start for each in empty]
        if self.reserved - sum(sizes) + want > self.limit:
            return
        while self.reserved + want > self.limit:
            self._retire(empty.pop()).close()

    def _retire(self, number: int) -> Segment:
        """Forget a segment that is not in use; whoever calls closes it."""
        self._slab.remove_segment(number)
        segment = self.segments.pop(number)
        self.reserved -= segment.size - segment.start
        self.gone.append(number)
        segment.retire()
        return segment


def holders(leases: Iterable[Lease], names: Callable[[int], str]) -> str:
    """Who holds how much, in words for an error; those who hold most come first."""
    now = time.monotonic()
    sums: dict[int | None, tuple[int, int, float]] = {}
    for each in leases:
        count, size, age = sums.get(each.borrower, (0, 0, 0.0))
        sums[each.borrower] = (count + 1, size + each.size, max(age, now - each.since))
    most = sorted(sums.items(), key=lambda item: -item[1][1])
    words = [
        f"{'this process itself' if who is None else names(who)} ({count} frames, {size} bytes, "
        f"for up to {age:.1f} s)"
        for who, (count, size, age) in most[:_NAMED]
    ]
    if len(most) > _NAMED:
        words.append(f"{len(most) - _NAMED} others")
    return ", ".join(words)


def nothing() -> None:
    """What is called while nobody wants to hear of changes."""
