"""What this process reads of its peers' memory: their segments mapped here, the handles that came,
the leases that ended.

Part of ``Memory``, whose names are the same. Everything but the end of views belongs to the thread
of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.errors import RemoteProtocolError, StaleHandle
from transport.shm.arena import Arena
from transport.shm.frames import Frame, Ties, view
from transport.shm.outliving import outlive
from transport.shm.roads import Roads
from transport.shm.segment import Segment
from transport.shm.stock import nothing
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

#: ``(segment, offset, generation)`` of a lease that ends.
Release = tuple[int, int, int]


class Borrowed(NamedTuple):
    """Frames of one owner that are looked at here: its incarnation, segments that are mapped,
    frames with views, their bytes, the monotonic clock at the oldest (0.0: none), and handles that
    came and wait to be opened.
    """

    owner: int
    segments: int
    frames: int
    size: int
    since: float
    expected: int


class Reading:
    """The reader's side of ``Memory``: exactly one of ``view_*``, ``read_bytes``, ``open_frame``
    and ``drop`` is called for each handle received.

    ``changed`` is called when a segment has been mapped; whoever wants to know sets it.
    """

    def __init__(self, arena: Arena, ties: Ties, roads: Roads | None = None) -> None:
        self.owner = arena.owner
        self._arena = arena
        self._ties = ties
        self.changed: Callable[[], object] = nothing
        #: Called with an owner and the numbers of its segments that were given back.
        self.retired: Callable[[int, list[int]], object] = _nobody
        #: How segments of others are reached.
        self.roads = roads or Roads()
        self._mapped: dict[tuple[int, int], Segment] = {}
        #: The highest number of each owner that was mapped: below it, what is missing has gone.
        self._highest: dict[int, int] = {}
        #: Handles that came and have been neither opened nor dropped, by owner.
        self._expected: dict[int, dict[Release, int]] = {}
        self._dead: set[int] = set()
        self._mourned: set[int] = set()
        #: Why what came and was not ours to look at is stale, by ``(owner, segment, offset,
        #: generation)``.
        self._spoilt: dict[tuple[int, int, int, int], deque[str]] = {}
        #: ``(owner, segment, offset, generation)`` of leases on peers' memory that have ended.
        self._ended: deque[tuple[int, int, int, int]] = deque()

    @property
    def mapped(self) -> int:
        """How many segments of peers are mapped here."""
        return len(self._mapped)

    def attach(self, announced: Announcement) -> None:
        """Map a segment that a peer announced.

        Idempotent. Raises AttachFailed with cause and next step.
        """
        key = (announced.owner, announced.segment)
        if announced.owner != self.owner and key not in self._mapped:
            self._mapped[key] = self.roads.attach(announced)
            highest = self._highest.get(announced.owner, 0)
            self._highest[announced.owner] = max(highest, announced.segment)
            self.changed()

    def expect(self, handles: Iterable[Handle]) -> None:
        """Note handles that arrived and will be opened or dropped later.

        What they name stays mapped until then, even when their owner dies meanwhile and is
        detached: an item that was delivered can be read. Called by whoever queues messages.
        """
        for handle in handles:
            if handle.segment != NO_SEGMENT:
                key = (handle.segment, handle.offset, handle.generation)
                counts = self._expected.get(handle.owner)
                if counts is None:
                    counts = self._expected[handle.owner] = {}
                counts[key] = counts.get(key, 0) + 1  # a Counter would take 1 µs more

    def forgo(self, handles: Iterable[Handle]) -> None:
        """Undo one ``expect``: somebody else has noted them, or nobody will look at them."""
        for handle in handles:
            if handle.segment != NO_SEGMENT:
                self._came(handle)

    def spoil(self, handle: Handle, reason: str) -> None:
        """The lease on a handle that came has ended before we had it: whoever looks at it gets
        StaleHandle with ``reason``, and nothing goes back when it is looked at or dropped.
        """
        key = (handle.owner, handle.segment, handle.offset, handle.generation)
        self._spoilt.setdefault(key, deque()).append(reason)

    def is_mapped(self, handle: Handle) -> bool:
        """Whether the segment of a handle is mapped here."""
        return (handle.owner, handle.segment) in self._mapped

    def mourn(self, owner: int) -> None:
        """An owner has died whose frames others may still hand on to us: its segments stay mapped
        until ``detach``, and nothing of it goes on from here.
        """
        self._mourned.add(owner)

    def announcement(self, owner: int, segment: int) -> Announcement | None:
        """What ``owner``, who is not known to be dead, has announced, for others who are to map it;
        None: it is not mapped here.
        """
        found = self._mapped.get((owner, segment))
        if found is None or owner in self._dead or owner in self._mourned:
            return None
        return found.announced

    def detach(self, owner: int) -> None:
        """Let go of a dead owner's segments, once no expected handle names them.

        Views that live keep their memory.
        """
        if owner in self._expected:
            self._dead.add(owner)
            return
        self._dead.discard(owner)
        self._mourned.discard(owner)
        self._highest.pop(owner, None)
        self.roads.forget(owner)
        for key in [key for key in self._mapped if key[0] == owner]:
            self._mapped.pop(key).close()

    def retire(self, owner: int, numbers: Iterable[int]) -> None:
        """Let go of segments that their living owner has given back; unknown numbers are nothing.

        Views that live keep their memory; a handle that comes later is stale.
        """
        numbers = list(numbers)
        for number in numbers:
            segment = self._mapped.pop((owner, number), None)
            if segment is not None:
                segment.close()
        self.retired(owner, numbers)

    def sweep(self) -> int:
        """Let go of segments that are marked as given back, though nobody has told us; how many
        are left.
        """
        for (owner, number), segment in list(self._mapped.items()):
            if segment.retired:
                self.retire(owner, [number])
        return len(self._mapped)

    def view_array(self, handle: Handle) -> NDArray[Any]:
        """The handle as a read-only array; its lease ends when the last view of it is gone.

        Raises RemoteProtocolError for a segment that was not attached, bounds outside it, or a
        shape that does not fill the bytes; StaleHandle when the slot was freed. The lease is then
        returned at once.
        """
        return self._show(handle)[0]

    def view_bytes(self, handle: Handle) -> memoryview:
        """The handle's bytes as a read-only memoryview; lease and errors as with ``view_array``."""
        return self._show(handle._replace(dtype="", shape=(handle.size,)))[1].data

    def read_bytes(self, handle: Handle) -> bytes:
        """A copy of the handle's bytes, after which the lease is returned; needs no numpy.

        Raises as ``view_array`` does.
        """
        try:
            return bytes(self._buffer(handle)[handle.offset : handle.offset + handle.size])
        finally:
            self.drop(handle)

    def copy_out(self, handle: Handle) -> bytes:
        """A copy of the bytes behind a handle of our own, which stays held.

        Called when a peer cannot read our memory. Raises StaleHandle when the slot was freed.
        """
        return bytes(self._buffer(handle)[handle.offset : handle.offset + handle.size])

    def snapshot(self, handle: Handle) -> bytes:
        """A copy of the bytes behind a handle that came from somebody who holds it for us, and may
        have died: right or StaleHandle. Nothing is returned by it.
        """
        data = self.copy_out(handle)
        self._buffer(handle)  # was it still the same afterwards?
        return data

    def open_frame(self, handle: Handle) -> Frame:
        """The handle as a Frame to read; lease and errors as with ``view_array``."""
        return Frame(self.view_array(handle))

    def drop(self, handle: Handle) -> None:
        """Return the lease of a handle that will not be looked at."""
        if handle.segment != NO_SEGMENT:
            self._came(handle)
            if self._spoilt and self._was_spoilt(handle):
                return
            queue, key = self._return_of(handle)
            queue.append(key)
            self._ties.wake()

    def _was_spoilt(self, handle: Handle) -> bool:
        key = (handle.owner, handle.segment, handle.offset, handle.generation)
        reasons = self._spoilt.get(key)
        if reasons is None:
            return False
        reasons.popleft()
        if not reasons:
            del self._spoilt[key]
        return True

    def drain(self) -> dict[int, list[Release]]:
        """Leases on peers' memory that ended since the last call, by owner."""
        releases: dict[int, list[Release]] = {}
        while self._ended:
            owner, segment, offset, generation = self._ended.popleft()
            releases.setdefault(owner, []).append((segment, offset, generation))
        return releases

    def borrowed(self) -> list[Borrowed]:
        """What is looked at here, for each owner that has a segment mapped or a view alive."""
        segments: dict[int, int] = {}
        for owner, _ in self._mapped:
            segments[owner] = segments.get(owner, 0) + 1
        found = {
            owner: Borrowed(owner, count, 0, 0, 0.0, len(self._expected.get(owner, ())))
            for owner, count in segments.items()
        }
        for (owner, _, _, _), size, since in self._ties.alive(self._ended):
            row = found.get(owner) or Borrowed(owner, 0, 0, 0, 0.0, 0)
            since = min(since, row.since or since)
            found[owner] = row._replace(frames=row.frames + 1, size=row.size + size, since=since)
        return list(found.values())

    def outlive(self, path: str) -> bool:
        """This process closes its memory: what is looked at here stays as it is; see
        ``transport.shm.outliving``. Whether there is anything. Raises OSError.
        """
        return outlive(self._ties, self._ended, path)

    def close(self) -> None:
        """Unmap everything that nobody looks at; never raises because views live."""
        for segment in self._mapped.values():
            segment.close()
        self._mapped.clear()

    def _show(self, handle: Handle) -> tuple[NDArray[Any], NDArray[Any]]:
        try:
            array, flat = view(self._buffer(handle), handle)
        except BaseException:
            self.drop(handle)
            raise
        if handle.segment != NO_SEGMENT:
            queue, key = self._return_of(handle)
            self._ties.tie(flat, queue, key, handle)
            self._came(handle)
        return array, flat

    def _buffer(self, handle: Handle) -> mmap.mmap | memoryview:
        if handle.segment == NO_SEGMENT:
            return memoryview(b"")
        if self._spoilt:
            key = (handle.owner, handle.segment, handle.offset, handle.generation)
            if key in self._spoilt:
                raise StaleHandle(self._spoilt[key][0])
        if handle.owner == self.owner:
            self._arena.check(handle)
            return memoryview(self._arena.segment(handle.segment).map).toreadonly()
        segment = self._mapped.get((handle.owner, handle.segment))
        if segment is None:
            raise self._missing(handle)
        if handle.offset < segment.start or handle.offset + handle.size > segment.size:
            raise RemoteProtocolError(
                f"handle of {handle.size} bytes at {handle.offset} in a segment of {segment.size}"
            )
        if segment.generation_at(handle.offset) != handle.generation:
            raise StaleHandle(
                f"frame at byte {handle.offset} of segment {handle.segment} is not of generation "
                f"{handle.generation} any more: its owner has freed it"
            )
        mapping: memoryview = segment.map
        return mapping

    def _missing(self, handle: Handle) -> Exception:
        if handle.segment <= self._highest.get(handle.owner, 0):
            return StaleHandle(
                f"segment {handle.segment} of {handle.owner:x} was given back to the system: no "
                "frame in it was in use; a handle serves once, for as long as it is held"
            )
        return RemoteProtocolError(
            f"handle in segment {handle.segment} of {handle.owner:x}, which was not announced "
            "or could not be mapped here"
        )

    def _came(self, handle: Handle) -> None:
        expected = self._expected.get(handle.owner)
        if expected is not None:
            # Counted: a frame that others hand on to us may come several times.
            key = (handle.segment, handle.offset, handle.generation)
            left = expected.get(key, 0)
            if left > 1:
                expected[key] = left - 1
            else:
                expected.pop(key, None)
            if not expected:
                del self._expected[handle.owner]
                if handle.owner in self._dead:
                    self.detach(handle.owner)

    def _return_of(
        self, handle: Handle
    ) -> tuple[deque[tuple[int, int, int, int]], tuple[int, int, int, int]]:
        if handle.owner == self.owner:
            key = (handle.segment, handle.offset, handle.generation, self.owner)
            return self._arena.returned, key
        return self._ended, (handle.owner, handle.segment, handle.offset, handle.generation)


def _nobody(owner: int, numbers: list[int]) -> None:
    """Nobody else knows of segments."""
