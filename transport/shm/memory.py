"""The shared memory of one process: its arena, its peers' segments, the leases both ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.shm.arena import MIB, NOBODY, Arena
from transport.shm.frames import Frames, Ties, fill
from transport.shm.kinds import dtype_text
from transport.shm.offers import Offers
from transport.shm.passing import Passing, key_of
from transport.shm.readers import Readers
from transport.shm.reading import Borrowed, Reading, Release
from transport.shm.roads import Roads
from transport.shm.slots import Lease
from transport.shm.stock import ArenaStatistics, SegmentState
from transport.shm.turns import Turn
from transport.wire.handle import NO_SEGMENT, Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.shm.slots import Slot


class Account(NamedTuple):
    """What ``Memory.account`` tells."""

    segments: list[SegmentState]
    leases: list[Lease]
    waiting: list[Turn]
    borrowed: list[Borrowed]


class Memory:
    """The shared memory of one actor incarnation, as payloads and the runtime use it.

    As owner: ``export_*`` puts data into the arena, ``lend`` gives a handle to a peer, ``release``
    and ``take_back`` end leases. As reader (see ``Reading``): ``attach`` maps what a peer
    announced, ``view_*``, ``read_bytes`` and ``open_frame`` show a handle, or ``drop`` returns it
    unseen: exactly one of them for each handle received. Leases that have ended wait in
    ``drain_releases``; ``wake`` is called when there are some, in any thread, at most once until
    they are drained.

    ``threshold`` is the size in bytes from which data is worth a handle. Everything but ``frames``,
    ``export_*`` and the end of views belongs to the thread of the loop.
    """

    def __init__(
        self,
        owner: int,
        *,
        wake: Callable[[], object],
        step: int = 64 * MIB,
        limit: int = 1024 * MIB,
        threshold: int = 32768,
        offers: Offers | None = None,
        roads: Roads | None = None,
    ) -> None:
        self.owner = owner
        self.offers = offers = offers or Offers()
        self.threshold = threshold
        self._ties = Ties(wake)
        self._arena = Arena(owner, step=step, limit=limit, offers=offers)
        self.frames = Frames(self._arena, self._ties)
        self.reading = reading = Reading(self._arena, self._ties, roads)
        self.attach = reading.attach
        self.expect = reading.expect
        self.forgo = reading.forgo
        self.detach = reading.detach
        self.lends_to = self._arena.lends_to
        self.doom = self._arena.doom
        self.view_array = reading.view_array
        self.view_bytes = reading.view_bytes
        self.read_bytes = reading.read_bytes
        self.open_frame = reading.open_frame
        self.drop = reading.drop
        #: Frames of others that were handed on from here.
        self.passing = Passing(time.monotonic)
        reading.retired = self.passing.retired
        #: What peers know of this memory and can read of it.
        self.readers = readers = Readers(self._arena, reading, self.passing)
        self.needs = readers.needs
        self.opened = readers.opened
        self.mark = readers.mark
        self.again = readers.again
        self.usable = readers.usable
        self.attached = readers.attached
        self.road = readers.road
        self.forget = readers.forget

    # The owner's side.

    def export_array(self, array: NDArray[Any]) -> Handle:
        """Copy an array of any strides into the arena, in C order.

        The handle is held until it is lent or unexported. Raises MemoryExhausted when the arena is
        full, EncodeError for a dtype that cannot be shared.
        """
        text = dtype_text(array.dtype)
        if not array.nbytes:
            return Handle(self.owner, NO_SEGMENT, 0, 0, 0, text, array.shape)
        slot = self._arena.allocate(array.nbytes)
        try:
            fill(self._arena.segment(slot.segment).map, slot.offset, array)
        except BaseException:
            self._abandon(slot)
            raise
        return Handle(
            self.owner, slot.segment, slot.offset, array.nbytes, slot.generation, text, array.shape
        )

    def export_bytes(self, buffer: bytes | bytearray | memoryview) -> Handle:
        """Copy raw bytes into the arena.

        The handle's dtype is ``""``. Raises as ``export_array`` does.
        """
        source = memoryview(buffer)
        size = source.nbytes
        if not size:
            return Handle(self.owner, NO_SEGMENT, 0, 0, 0, "", (0,))
        slot = self._arena.allocate(size)
        try:
            plain = source.cast("B") if source.c_contiguous else memoryview(source.tobytes())
            self._arena.segment(slot.segment).map[slot.offset : slot.offset + size] = plain
        except BaseException:
            self._abandon(slot)
            raise
        return Handle(self.owner, slot.segment, slot.offset, size, slot.generation, "", (size,))

    def unexport(self, handle: Handle) -> None:
        """End the hold of this process on a handle that will not be lent (again).

        Harmless when it has none.
        """
        if self._is_ours(handle):
            self._arena.unexport(handle)
        else:
            self.passing.unexport(handle)

    def lend(self, handle: Handle, borrower: int, stream: int, *, keep: bool = False) -> None:
        """Lease a handle to the peer it is sent to, for one stream.

        With ``keep`` the owner holds on as well, so that the frame can be lent again after a
        refusal, until ``unexport``. Raises StaleHandle when it was freed, LocalProtocolError when
        this borrower has it already. A frame of somebody else stays ours for the peer meanwhile.
        """
        if self._is_ours(handle):
            self._arena.lend(handle, borrower, stream, keep=keep)
        else:
            self.passing.lend(handle, borrower, stream, keep=keep)

    def claim(self, handle: Handle, borrower: int, stream: int, *, keep: bool = False) -> None:
        """As ``lend``, to who has accepted the request that the handle went with: he may have the
        frame already, by way of somebody to whom he has handed it on himself.
        """
        if self._is_ours(handle):
            self._arena.claim(handle, borrower, stream, keep=keep)
        else:
            self.passing.lend(handle, borrower, stream, keep=keep)

    def adopt(
        self, frame: Release, lender: int, borrower: int, stream: int, *, asked: bool = False
    ) -> None:
        """Lease a frame of ours to ``borrower`` too, to whom ``lender`` has handed it on. Raises
        StaleHandle unless ``lender`` has it now; ``asked`` as for ``Slab.adopt``.
        """
        self._arena.adopt(frame, lender, borrower, stream, asked=asked)

    def renew(self, handle: Handle) -> Handle:
        """A kept handle under a new generation, for the next attempt.

        Late releases of the old one mean nothing then.
        Raises StaleHandle when it was freed, LocalProtocolError while somebody borrows it.
        """
        return self._arena.renew(handle)

    def release(self, borrower: int, releases: Iterable[Release]) -> list[Release]:
        """End leases that ``borrower`` returned; those that he has not, which change nothing:
        doubled ones, late ones, and such as begin later.
        """
        release, strange = self._arena.release, []
        for segment, offset, generation in releases:
            if not release(borrower, segment, offset, generation):
                strange.append((segment, offset, generation))
        return strange

    def unlend(self, handle: Handle, borrower: int) -> None:
        """End the lease of a handle that was lent to ``borrower`` and then not sent."""
        if self._is_ours(handle):
            self._arena.release(borrower, handle.segment, handle.offset, handle.generation)
        else:
            self.passing.release(borrower, key_of(handle))

    def passable(self, handle: Handle) -> bool:
        """Whether a received frame can be handed on as it is: it is another's, who lives."""
        return not self._is_ours(handle) and self.reading.announcement(*handle[:2]) is not None

    def copy_out(self, handle: Handle) -> bytes:
        """A copy of the bytes behind a handle that this process holds, and goes on to hold.

        Called when a peer cannot read the memory. Raises StaleHandle when the slot was freed.
        """
        if self.passing.holds(handle):
            return self.passing.copy_out(handle)
        return self.reading.copy_out(handle)

    def take_back(self, borrower: int) -> int:
        """End all leases of a peer that died; how many slots that freed."""
        return self._arena.take_back(borrower) + self.passing.take_back(borrower)

    def take_back_stream(self, borrower: int, stream: int) -> int:
        """End the leases of a stream whose Open never reached ``borrower``.

        How many slots that freed.
        """
        freed = self.passing.take_back_stream(borrower, stream)
        return freed + self._arena.take_back_stream(borrower, stream)

    def statistics(self) -> ArenaStatistics:
        """What the arena holds now."""
        return self._arena.statistics()

    def drain_releases(self) -> dict[int, list[Release]]:
        """Leases on peers' memory that ended since the last call, by owner, to be sent to it.

        Those on this process's own memory are settled here.
        """
        self._ties.rearm()
        if self._arena.returned:
            self._arena.collect()
        return self.reading.drain()

    # Giving segments back.

    def watch(self, changed: Callable[[], object], names: Callable[[int], str]) -> None:
        """Call ``changed``, in any thread, when segments were made, mapped or given back; errors
        call peers by their ``names``.
        """
        self._arena.stock.changed = self.reading.changed = changed
        self._arena.names = names

    def sweep(self, idle: float) -> bool:
        """Give back own segments that were idle for so many seconds, let go of those that others
        have given back; whether any are left.
        """
        self._arena.sweep(idle)
        return bool(self.reading.sweep() or self._arena.numbers())

    def retired(self) -> dict[int, list[int]]:
        """Numbers of own segments that were given back since the last call, for each peer that was
        told of them.
        """
        return self.readers.retired(self._arena.take_gone())

    def account(self) -> Account:
        """Segments, leases, those who wait, and what is borrowed from others."""
        return Account(*self._arena.account(), self.reading.borrowed())

    def forked(self) -> None:
        """In a forked child: nothing may be put into the memory, which the parent goes on using."""
        self._arena.forked()

    def close(self) -> None:
        """Unmap everything that nobody looks at, close all descriptors.

        Never raises because views live.
        """
        self._arena.close()
        self.reading.close()

    def _is_ours(self, handle: Handle) -> bool:
        return handle.owner == self.owner

    def _abandon(self, slot: Slot) -> None:
        self._arena.returned.append((slot.segment, slot.offset, slot.generation, NOBODY))
