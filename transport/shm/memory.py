"""The shared memory of one process: its arena, its peers' segments, the leases both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from transport.shm.arena import MIB, NOBODY, Arena, ArenaStatistics
from transport.shm.frames import Frames, Ties, dtype_text, fill
from transport.shm.offers import Offers
from transport.shm.reading import Reading, Release
from transport.shm.roads import FILE, Roads
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.shm.slab import Slot


class _Link:
    """What a peer knows of our segments."""

    __slots__ = ("announced", "attached", "denied", "refused", "road")

    def __init__(self) -> None:
        self.announced: set[int] = set()
        self.attached: set[int] = set()
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
        #: Called, in any thread, when segments have been made, mapped or given back.
        self.changed: Callable[[], object] = _nothing
        self.reading = reading = Reading(self._arena, self._ties, lambda: self.changed(), roads)
        self.attach = reading.attach
        self.expect = reading.expect
        self.detach = reading.detach
        self.view_array = reading.view_array
        self.view_bytes = reading.view_bytes
        self.read_bytes = reading.read_bytes
        self.copy_out = reading.copy_out
        self.open_frame = reading.open_frame
        self.drop = reading.drop

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
        """End the owner's hold on a handle that will not be lent (again).

        Harmless when it has none.
        """
        self._arena.unexport(handle)

    def lend(self, handle: Handle, borrower: int, stream: int, *, keep: bool = False) -> None:
        """Lease a handle to the peer it is sent to, for one stream.

        With ``keep`` the owner holds on as well, so that the frame can be lent again after a
        refusal, until ``unexport``. Raises StaleHandle when it was freed, LocalProtocolError when
        this borrower has it already.
        """
        self._arena.lend(handle, borrower, stream, keep=keep)

    def renew(self, handle: Handle) -> Handle:
        """A kept handle under a new generation, for the next attempt.

        Late releases of the old one mean nothing then.
        Raises StaleHandle when it was freed, LocalProtocolError while somebody borrows it.
        """
        return self._arena.renew(handle)

    def release(self, borrower: int, releases: Iterable[Release]) -> None:
        """End leases that ``borrower`` returned; doubled and late ones change nothing."""
        for segment, offset, generation in releases:
            self._arena.release(borrower, segment, offset, generation)

    def take_back(self, borrower: int) -> int:
        """End all leases of a peer that died; how many slots that freed."""
        return self._arena.take_back(borrower)

    def take_back_stream(self, borrower: int, stream: int) -> int:
        """End the leases of a stream whose Open never reached ``borrower``.

        How many slots that freed.
        """
        return self._arena.take_back_stream(borrower, stream)

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
            numbers = [handle.segment for handle in handles if handle.segment != NO_SEGMENT]
        missing = [number for number in dict.fromkeys(numbers) if number not in link.announced]
        link.announced.update(missing)
        return [self._arena.announcement(number) for number in missing]

    def mark(self, peer: int, segment: int, ok: bool, road: str = "") -> None:
        """Note the peer's answer to an announcement: mapped by ``road``, or refused, and then
        whether a ``file`` would be better.
        """
        link = self._links.get(peer)
        if link is None:
            return
        if ok:
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
        link = self._links.get(peer)
        if link is None:
            return True
        if link.refused:
            return False
        return not link.denied or all(handle.segment not in link.denied for handle in handles)

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
        return all(handle.segment == NO_SEGMENT or handle.segment in known for handle in handles)

    def forget(self, peer: int) -> None:
        """Drop what is known of a peer's view of us: it is gone."""
        self._links.pop(peer, None)

    def drain_releases(self) -> dict[int, list[Release]]:
        """Leases on peers' memory that ended since the last call, by owner, to be sent to it.

        Those on this process's own memory are settled here.
        """
        self._ties.rearm()
        if self._arena.returned:
            self._arena.collect()
        return self.reading.drain()

    def close(self) -> None:
        """Unmap everything that nobody looks at, close all descriptors.

        Never raises because views live.
        """
        self._arena.close()
        self.reading.close()

    def _abandon(self, slot: Slot) -> None:
        self._arena.returned.append((slot.segment, slot.offset, slot.generation, NOBODY))


def _nothing() -> None:
    """Nobody wants to hear of changes."""
