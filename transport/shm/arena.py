"""A process's own shared memory: segments, the slots in them, and what is lent to whom.

Nothing is allocated before the first frame. Then memory comes in steps, and is used again and
again: a page that is touched for the first time costs some microseconds, a warm one nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from transport.errors import MemoryExhausted, RemoteProtocolError, StaleHandle
from transport.shm.segment import Segment, create_segment
from transport.shm.slab import GRAIN, Slab, Slot, size_class
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

MIB = 1 << 20
#: Stands for the owner itself where a borrower is named.
NOBODY = -1


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """What an arena holds now.

    ``segments``; bytes ``reserved`` for data and ``in_use`` (in whole slots); ``slots`` in
    use and those ``lent``, the ``borrowers`` that have them, and releases ``ignored`` because they
    came late or twice.
    """

    segments: int
    reserved: int
    in_use: int
    slots: int
    lent: int
    borrowers: int
    ignored: int


class Arena:
    """Segments owned by one actor incarnation, and the leases on their slots.

    Used through ``Memory``. ``step`` and ``limit`` are bytes of data: segments have ``step`` bytes,
    or more for a frame that is larger, and all together at most ``limit``. Safe to use from several
    threads: a sync engine makes frames in its own.
    """

    def __init__(self, owner: int, *, step: int = 64 * MIB, limit: int = 1024 * MIB) -> None:
        self.owner = owner
        #: ``(segment, offset, generation, borrower)`` of leases in this very process that ended;
        #: borrower ``NOBODY`` is the owner's own hold, of a frame dropped unsent. Finalizers append
        #: here, in any thread.
        self.returned: deque[tuple[int, int, int, int]] = deque()
        self._step = max(step, 1)
        self._limit = limit
        self._slab = Slab()
        self._segments: dict[int, Segment] = {}
        self._reserved = 0
        # Finalizers never take it (they only append to deques), so a collection inside a locked
        # part is harmless.
        self._lock = threading.Lock()
        self._closed = False

    def allocate(self, size: int) -> Slot:
        """A slot of at least ``size`` bytes that the owner holds.

        Raises MemoryExhausted when there is no room.
        """
        with self._lock:
            if self._closed:
                raise MemoryExhausted("the arena is closed: its actor has stopped")
            if self.returned:
                self._take_returned()
            slot = self._slab.allocate(size)
            if slot is None:
                self._grow(size)
                slot = self._slab.allocate(size)
                assert slot is not None  # the new segment has room for it
            segment = self._segments[slot.segment]
            if slot.offset + slot.size > segment.reserved:
                self._reserve(segment, slot)
            segment.stamp(slot.offset, slot.generation)
            return slot

    def segment(self, number: int) -> Segment:
        """A segment of the arena; raises StaleHandle for one that never was, or is closed."""
        segment = self._segments.get(number)
        if segment is None:
            raise StaleHandle(f"this process has no shared-memory segment {number}")
        return segment

    def check(self, handle: Handle) -> None:
        """Raise StaleHandle unless the slot is in use under this generation and large enough."""
        if handle.segment != NO_SEGMENT:
            with self._lock:
                slot = self._slab.find(handle.segment, handle.offset, handle.generation)
                if handle.size > slot.size:
                    raise RemoteProtocolError(
                        f"handle of {handle.size} bytes in a slot of {slot.size}"
                    )

    def lend(self, handle: Handle, borrower: int, stream: int, *, keep: bool = False) -> None:
        """Lease a slot to ``borrower`` for ``stream``.

        The owner's hold passes to it, or stays with ``keep``.

        Raises StaleHandle when the slot was freed, LocalProtocolError when this borrower has it
        already.
        """
        if handle.segment != NO_SEGMENT:
            with self._lock:
                slot = self._slab.find(handle.segment, handle.offset, handle.generation)
                self._slab.lend(slot, borrower, stream, keep=keep)

    def renew(self, handle: Handle) -> Handle:
        """The same bytes under a new generation, to be lent again after a refusal or a death.

        Late releases of the old handle mean nothing then. Raises StaleHandle, or LocalProtocolError
        while it is lent.
        """
        if handle.segment == NO_SEGMENT:
            return handle
        with self._lock:
            slot = self._slab.find(handle.segment, handle.offset, handle.generation)
            self._slab.renew(slot)
            if not self._closed:
                self._segments[slot.segment].stamp(slot.offset, slot.generation)
            return handle._replace(generation=slot.generation)

    def unexport(self, handle: Handle) -> None:
        """End the owner's hold: the frame will not be sent (again).

        Harmless when it has ended already.
        """
        if handle.segment != NO_SEGMENT:
            self.returned.append((handle.segment, handle.offset, handle.generation, NOBODY))
            self.collect()

    def release(self, borrower: int, segment: int, offset: int, generation: int) -> None:
        """End one lease of a borrower.

        Doubled, late or wrong ones are counted and change nothing.
        """
        with self._lock:
            slot = self._slab.release(segment, offset, generation, borrower)
            if slot is not None:
                self._clear(segment, offset)

    def take_back(self, borrower: int) -> int:
        """End all leases of a borrower that died; how many slots that freed."""
        with self._lock:
            return self._freed(self._slab.take_back(borrower))

    def take_back_stream(self, borrower: int, stream: int) -> int:
        """End the leases of one stream that its borrower never got to see.

        How many slots that freed.
        """
        with self._lock:
            return self._freed(self._slab.take_back_stream(borrower, stream))

    def collect(self) -> None:
        """Act on what finalizers of this process have returned."""
        with self._lock:
            self._take_returned()

    def numbers(self) -> list[int]:
        """The numbers of the arena's segments."""
        return list(self._segments)

    def announcement(self, number: int) -> Announcement:
        """What peers need to map a segment.

        Raises StaleHandle for a number that never was, or when closed.
        """
        with self._lock:
            return self.segment(number).announcement(self.owner, number)

    def statistics(self) -> ArenaStatistics:
        """What the arena holds now."""
        with self._lock:
            self._take_returned()
            counts = self._slab.counts()
            return ArenaStatistics(
                len(self._segments),
                self._reserved,
                counts.bytes_in_use,
                counts.slots,
                counts.lent,
                counts.borrowers,
                counts.ignored,
            )

    def close(self) -> None:
        """Give the memory up.

        Views that live keep their mapping. Idempotent, never raises because of views.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for segment in self._segments.values():
                segment.close()
            # Forgotten, so that a mapping with views goes with the last of them.
            self._segments.clear()

    def _take_returned(self) -> None:
        while self.returned:
            segment, offset, generation, borrower = self.returned.popleft()
            if borrower == NOBODY:
                freed = self._slab.end_hold(segment, offset, generation)
            else:
                freed = self._slab.release(segment, offset, generation, borrower) is not None
            if freed:
                self._clear(segment, offset)

    def _freed(self, slots: list[Slot]) -> int:
        for slot in slots:
            self._clear(slot.segment, slot.offset)
        return len(slots)

    def _clear(self, segment: int, offset: int) -> None:
        if not self._closed:
            self._segments[segment].stamp(offset, 0)

    def _grow(self, size: int) -> None:
        want = size_class(size)
        capacity = max(want, min(self._step, self._limit - self._reserved) // GRAIN * GRAIN)
        if self._reserved + capacity > self._limit:
            raise MemoryExhausted(
                f"no room for a frame of {size} bytes: {self._slab.bytes_in_use} of the "
                f"arena's limit of {self._limit} bytes are held by frames; let readers release "
                "theirs, or raise the limit"
            )
        try:
            segment = create_segment(capacity)
        except OSError as error:
            raise MemoryExhausted(f"no segment of {capacity} bytes for frames: {error}") from error
        number = len(self._segments) + 1
        self._segments[number] = segment
        self._slab.add_segment(number, segment.start, segment.size)
        self._reserved += capacity
        segment.warm()

    def _reserve(self, segment: Segment, slot: Slot) -> None:
        try:
            segment.reserve(slot.offset, slot.size)
        except OSError as error:
            self._slab.drop_hold(slot)
            raise MemoryExhausted(
                f"the system has no memory for a frame of {slot.size} bytes: {error}"
            ) from error
