"""The shared memory of one process: its arena, its peers' segments, the leases both ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.shm.arena import MIB, NOBODY, Arena, ArenaStatistics
from transport.shm.frames import Frames, Ties, fill
from transport.shm.kinds import dtype_text
from transport.shm.offers import Offers
from transport.shm.passing import Passing, key_of
from transport.shm.reading import Borrowed, Reading, Release
from transport.shm.roads import FILE, Roads
from transport.shm.slab import Lease
from transport.shm.stock import SegmentState
from transport.shm.turns import Turn
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.shm.slab import Slot


class Account(NamedTuple):
    """What ``Memory.account`` tells."""

    segments: list[SegmentState]
    leases: list[Lease]
    waiting: list[Turn]
    borrowed: list[Borrowed]


class _Link:
    """What a peer knows of our segments."""

    __slots__ = ("announced", "attached", "denied", "opened", "refused", "road")

    def __init__(self) -> None:
        self.announced: set[int] = set()
        self.attached: set[int] = set()
        #: Segments that it got with an Open, whatever it was told of them besides.
        self.opened: set[int] = set()
        #: Segments that it cannot map, though it may others; and whether it maps none at all.
        self.denied: set[int] = set()
        self.refused = False
        #: How it reached the last one.
        self.road = ""


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
        self._links: dict[int, _Link] = {}
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
            self._arena.lend(handle, borrower, stream, keep=keep, more=True)
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
        arena = self._arena
        return [each for each in releases if not arena.release(borrower, *each)]

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

    # What peers know of the arena.

    def needs(self, peer: int, handles: Iterable[Handle] | None = None) -> list[Announcement]:
        """Segments of ``handles`` (None: all segments) that ``peer`` has not been told of.

        Counts them as told.

        The caller sends them to the peer before the handles.
        """
        if peer == self.owner or self.offers.inline:
            return []
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
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
        for owner, segment in self.passing.untold(peer, others):
            announcement = self.reading.announcement(owner, segment)
            if announcement is None:  # its owner has died: nobody can map it any more
                self.passing.mark(peer, owner, segment, ok=False)
            else:
                found.append(announcement)
        return found

    def opened(self, peer: int, handles: Iterable[Handle]) -> None:
        """``peer`` has accepted an Open with these handles: it has their segments mapped."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        link.opened.update(handle.segment for handle in handles if self._is_ours(handle))

    def mark(self, peer: int, segment: int, ok: bool, road: str = "", owner: int = 0) -> None:
        """Note the peer's answer to an announcement: mapped by ``road``, or refused, and then
        whether a ``file`` would be better. ``owner``: whose segment it is, 0: ours.
        """
        if owner not in (0, self.owner):
            self.passing.mark(peer, owner, segment, ok)
            return
        link = self._links.get(peer)
        if link is None:
            return
        if ok:
            if self._arena.has(segment):
                link.attached.add(segment)
                link.road = road
        elif road == FILE and self.offers.want_files():
            link.denied.add(segment)
        else:
            link.refused = True

    def usable(self, peer: int, handles: Iterable[Handle] = ()) -> bool:
        """Whether ``handles`` may be sent to ``peer``, which has not refused their segments."""
        if self.offers.inline:
            return False
        if not all(
            self._is_ours(each) or self.passing.usable(peer, each.owner) for each in handles
        ):
            return False
        link = self._links.get(peer)
        if link is None:
            return True
        if link.refused:
            return False
        return not link.denied or all(handle.segment not in link.denied for handle in handles)

    def readers(self) -> list[tuple[int, str]]:
        """Who was told of our memory and has answered, and by which road it is reached."""
        found = [
            (peer, "inline" if link.refused else link.road) for peer, link in self._links.items()
        ]
        return [(peer, road) for peer, road in found if road]

    def road(self, peer: int) -> str:
        """How ``peer`` reaches our memory, "" before it has."""
        link = self._links.get(peer)
        return "" if link is None else link.road

    def attached(self, peer: int, handles: Iterable[Handle]) -> bool:
        """Whether ``peer`` has answered that it mapped the segments of all ``handles``."""
        if peer == self.owner:
            return True
        link = self._links.get(peer)
        known = link.attached if link is not None else ()
        return all(
            handle.segment == NO_SEGMENT
            or (
                handle.segment in known
                if handle.owner == self.owner
                else self.passing.attached(peer, handle)
            )
            for handle in handles
        )

    def forget(self, peer: int) -> None:
        """Drop what is known of a peer's view of us, and of views of its memory: it is gone."""
        self._links.pop(peer, None)
        self.passing.forget(peer)

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
        gone = self._arena.take_gone()
        told: dict[int, list[int]] = {}
        for peer, link in self._links.items() if gone else ():
            known = link.announced | link.opened
            numbers = [number for number in gone if number in known]
            if numbers:
                told[peer] = numbers
            for each in (link.announced, link.attached, link.denied, link.opened):
                each.difference_update(gone)
        return told

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
