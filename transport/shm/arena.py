"""A process's own shared memory: segments, the slots in them, and what is lent to whom.

Nothing is allocated before the first frame. Then memory comes in steps, and is used again and
again: a page that is touched for the first time costs some microseconds, a warm one nothing. A
segment in which nothing was used for a while goes back to the system, and its number never comes
again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from transport.errors import MemoryExhausted, RemoteProtocolError, StaleHandle
from transport.shm.offers import Offers
from transport.shm.segment import Segment
from transport.shm.slab import Slab, size_class
from transport.shm.slots import Lease, Slot
from transport.shm.stock import ArenaStatistics, SegmentState, Stock, holders
from transport.shm.turns import Turn
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

MIB = 1 << 20
#: Stands for the owner itself where a borrower is named.
NOBODY = -1


class Arena:
    """Segments owned by one actor incarnation, and the leases on their slots.

    Used through ``Memory``. ``step`` and ``limit`` are bytes of data: segments have ``step`` bytes,
    or more for a frame that is larger, and all together at most ``limit``. Safe to use from several
    threads: a sync engine makes frames in its own.
    """

    def __init__(
        self,
        owner: int,
        *,
        step: int = 64 * MIB,
        limit: int = 1024 * MIB,
        offers: Offers | None = None,
    ) -> None:
        self.owner = owner
        #: Makes the segments, and the roads by which others come by them.
        self.offers = offers or Offers()
        #: ``(segment, offset, generation, borrower)`` of leases in this very process that ended;
        #: borrower ``NOBODY`` is the owner's own hold, of a frame dropped unsent. Finalizers append
        #: here, in any thread.
        self.returned: deque[tuple[int, int, int, int]] = deque()
        #: What a borrower is called in errors.
        self.names: Callable[[int], str] = _hexadecimal
        self._slab = Slab()
        self.stock = Stock(self._slab, self.offers, step=step, limit=limit)
        self._segments = self.stock.segments
        self._turns: deque[Turn] = deque()
        # Finalizers never take it (they only append to deques), so a collection inside a locked
        # part is harmless.
        self._lock = threading.Lock()
        #: Borrowers that are gone; theirs is taken back as soon as it is needed.
        self._doomed: set[int] = set()
        self._closed = False

    def forked(self) -> None:
        """In a forked child: what stands in the memory is the parent's, which goes on using it."""
        self._lock = threading.Lock()  # a thread that is not here may have held it
        self._closed = True

    def allocate(self, size: int) -> Slot:
        """A slot of at least ``size`` bytes that the owner holds.

        Raises MemoryExhausted when there is no room.
        """
        with self._lock:
            if self._closed:
                raise MemoryExhausted("the arena is closed: its actor has stopped")
            if self.returned:
                self._take_returned()
            return self._take(size)

    def queue(self, turn: Turn) -> None:
        """Serve ``turn`` when there is room, after those who came before; perhaps at once.

        Raises MemoryExhausted for what can never fit, and when closed.
        """
        with self._lock:
            if size_class(turn.size) > self.stock.limit:
                raise MemoryExhausted(
                    f"no frame of {turn.size} bytes can ever fit the arena's limit of "
                    f"{self.stock.limit} bytes; raise arena_limit"
                )
            self._turns.append(turn)
        self.poke()

    def poke(self) -> None:
        """Serve those who wait, as far as there is room. Raises MemoryExhausted when closed."""
        with self._lock:
            if self._closed:
                raise MemoryExhausted("the arena is closed: its actor has stopped")
            self._take_returned()
            self._serve()

    def leave(self, turn: Turn) -> None:
        """Wait no more; a slot that came meanwhile goes to the next."""
        with self._lock:
            if turn.slot is not None:
                self._give_up(turn.slot)
                turn.slot = None
            elif turn in self._turns:
                self._turns.remove(turn)
            self._serve()

    def held_by(self) -> str:
        """Who holds how much of the arena, in words for an error."""
        with self._lock:
            leases, used, refusal = self._slab.leases(), self._slab.bytes_in_use, self.stock.refusal
        by = holders(leases, self.names) or "nobody"
        said = f" (the system has refused more: {refusal})" if refusal else ""
        return f"{used} of the arena's limit of {self.stock.limit} bytes are held by {by}{said}"

    def prefer_files(self) -> None:
        """Frames go into segments that are files from now on, as far as there can be some."""
        with self._lock:
            if not self._closed:
                self.stock.prefer_files()

    def sweep(self, idle: float) -> None:
        """Give back segments in which nothing was in use for ``idle`` seconds, up to the last."""
        with self._lock:
            if self._closed:
                return
            self._take_returned()
            self.stock.prefer_files()  # it may be possible now
            dead = self.stock.take_idle(idle)
        for segment in dead:  # outside the lock: the system takes a while to free much memory
            segment.close()
        if dead:
            self.stock.changed()

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
                self._slab.lend(slot, borrower, stream, keep=keep, now=time.monotonic())

    def claim(self, handle: Handle, borrower: int, stream: int, *, keep: bool) -> None:
        """As ``lend``, to one who may have it already: see ``Slab.claim``. Raises StaleHandle."""
        if handle.segment != NO_SEGMENT:
            with self._lock:
                slot = self._slab.find(handle.segment, handle.offset, handle.generation)
                self._slab.claim(slot, borrower, stream, keep=keep, now=time.monotonic())

    def adopt(
        self, frame: tuple[int, int, int], lender: int, borrower: int, stream: int, *, asked: bool
    ) -> None:
        """Lease ``segment, offset, generation`` to ``borrower``, to whom ``lender`` has handed it
        on; see ``Slab.adopt``. Raises StaleHandle.
        """
        with self._lock:
            slot = self._slab.find(*frame)
            self._slab.adopt(slot, lender, borrower, stream, time.monotonic(), asked=asked)

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

    def release(self, borrower: int, segment: int, offset: int, generation: int) -> bool:
        """End one lease of a borrower.

        False for doubled, late or wrong ones, which are counted and change nothing.
        """
        with self._lock:
            ignored = self._slab.ignored
            slot = self._slab.release(segment, offset, generation, borrower)
            if slot is None:
                return self._slab.ignored == ignored
            self._clear(segment, offset)
            if self._turns:
                self._serve()
            return True

    def lends_to(self, borrower: int) -> bool:
        """Whether a borrower has any lease."""
        with self._lock:
            return self._slab.lends_to(borrower)

    def doom(self, borrower: int) -> None:
        """A borrower is gone: its leases end with ``take_back``, or before when there is no room
        for somebody else.
        """
        with self._lock:
            self._doomed.add(borrower)
            if self._turns:
                self._serve()

    def take_back(self, borrower: int) -> int:
        """End all leases of a borrower that died; how many slots that freed."""
        with self._lock:
            self._doomed.discard(borrower)
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
            if self._turns:
                self._serve()

    def has(self, number: int) -> bool:
        """Whether there is such a segment now."""
        return number in self._segments

    def take_gone(self) -> list[int]:
        """Numbers of segments that were given back since the last call."""
        with self._lock:
            gone = list(self.stock.gone)
            self.stock.gone.clear()
            return gone

    def numbers(self) -> list[int]:
        """The numbers of the arena's segments."""
        return list(self._segments)

    def announcement(self, number: int) -> Announcement:
        """What peers need to map a segment.

        Raises StaleHandle for a number that never was, or when closed.
        """
        with self._lock:
            return self.offers.announcement(self.segment(number), self.owner, number)

    def statistics(self) -> ArenaStatistics:
        """What the arena holds now."""
        with self._lock:
            self._take_returned()
            counts = self._slab.counts()
            return ArenaStatistics(
                len(self._segments),
                self.stock.reserved,
                counts.bytes_in_use,
                counts.slots,
                counts.lent,
                counts.borrowers,
                counts.ignored,
                len(self._turns),
            )

    def account(self) -> tuple[list[SegmentState], list[Lease], list[Turn]]:
        """Each segment, everybody who holds a slot, and who waits for one."""
        with self._lock:
            self._take_returned()
            return self.stock.states(), self._slab.leases(), list(self._turns)

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
            for turn in self._turns:
                turn.wake()
            self._turns.clear()
            self.offers.close()

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
        if self._turns:
            self._serve()
        return len(slots)

    def _take(self, size: int, last: bool = False) -> Slot:
        now = time.monotonic()
        slot = self._slab.allocate(size, now)
        while slot is None:
            try:
                self.stock.grow(size)
            except MemoryExhausted:
                if not self._bury():
                    raise
            slot = self._slab.allocate(size, now)
        segment = self._segments[slot.segment]
        if slot.offset + slot.size > segment.reserved:
            try:
                self.stock.reserve(segment, slot)
            except MemoryExhausted:
                if last or not self.stock.avoid(segment):
                    raise
                return self._take(size, last=True)
        segment.stamp(slot.offset, slot.generation)
        return slot

    def _bury(self) -> bool:
        """Take back what those have who are gone; whether there was anybody."""
        doomed, self._doomed = self._doomed, set()
        for borrower in doomed:
            for slot in self._slab.take_back(borrower):
                self._clear(slot.segment, slot.offset)
        return bool(doomed)

    def _serve(self) -> None:
        while self._turns and not self._closed:
            turn = self._turns[0]
            try:
                turn.slot = slot = self._take(turn.size)
            except MemoryExhausted:
                return
            self._turns.popleft()
            turn.wake()
            if turn.slot is None:  # there was nobody to wake
                self._give_up(slot)

    def _give_up(self, slot: Slot) -> None:
        segment, offset = slot.segment, slot.offset
        if self._slab.drop_hold(slot):
            self._clear(segment, offset)

    def _clear(self, segment: int, offset: int) -> None:
        if not self._closed:
            self._segments[segment].stamp(offset, 0)


def _hexadecimal(borrower: int) -> str:
    return f"{borrower:x}"
