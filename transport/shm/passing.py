"""Frames of others that are handed on: held here for those who were sent them.

Whoever has received a frame may send it to a third actor without a copy: the handle names the
owner's memory as before, and this process goes on looking at the frame, and so keeps its own lease,
until the third actor has one from the owner (``actors.kernel.adopting``), has died, or was never
sent it. Such a hold for somebody else is a *proxy lease*. Bookkeeping only; part of ``Memory``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from transport.errors import StaleHandle
from transport.shm.frames import Tie
from transport.shm.kinds import dtype_text
from transport.shm.refusal import Refusal
from transport.wire.handle import Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: ``(owner, segment, offset, generation)`` of a frame.
Key = tuple[int, int, int, int]


def key_of(handle: Handle) -> Key:
    """What names the frame of a handle, whatever array it is."""
    return (handle.owner, handle.segment, handle.offset, handle.generation)


#: Views of views are followed this far down to the memory that they show.
_DEPTH = 16


def received(value: NDArray[Any] | memoryview) -> tuple[Handle, memoryview] | None:
    """The handle of a received frame that ``value`` shows whole and in order, as the array that it
    is now, and the memory that has to be kept for as long as the handle is used; None for anything
    else, such as a slice.
    """
    import numpy as np

    if isinstance(value, memoryview) and isinstance(value.obj, np.ndarray):
        found = received(value.obj)
        if found is None or not value.c_contiguous or value.nbytes != found[0].size:
            return None  # a part of it
        return found[0]._replace(dtype="", shape=(value.nbytes,)), found[1]
    array: Any = None
    base: Any = value
    for _ in range(_DEPTH):
        if isinstance(base, np.ndarray):
            array, base = base, base.base
        elif not isinstance(base, memoryview):
            return None
        elif (tie := _tie_of(base)) is not None:
            return _whole(value, array, tie, base)
        else:
            base = base.obj
    return None


def _tie_of(base: memoryview) -> Tie | None:
    # All weak references to it: hashing one, to look it up, would hash the bytes of the frame.
    return next((each for each in weakref.getweakrefs(base) if isinstance(each, Tie)), None)


def _whole(
    value: NDArray[Any] | memoryview, flat: Any, tie: Tie, base: memoryview
) -> tuple[Handle, memoryview] | None:
    handle = tie.handle
    if handle is None or id(flat) != tie.flat:
        return None  # made in this process, or by somebody who has dug down to the mapping
    if isinstance(value, memoryview) or value.nbytes != handle.size or not value.flags.c_contiguous:
        return None
    if value.__array_interface__["data"][0] != flat.__array_interface__["data"][0]:
        return None
    return handle._replace(dtype=dtype_text(value.dtype), shape=value.shape), base


class Passed(NamedTuple):
    """One proxy lease, for who looks at the accounts: who holds the frame, for which of our
    streams, whose memory it is, its bytes, and since when (monotonic clock).
    """

    borrower: int
    stream: int
    owner: int
    segment: int
    offset: int
    size: int
    since: float


class _Held:
    """One frame: the memory under it, how often it waits to be sent, and who was sent it."""

    __slots__ = ("base", "holds", "leases", "size")

    def __init__(self, base: memoryview, size: int) -> None:
        self.base = base
        self.size = size
        self.holds = 0
        #: By borrower: stream and beginning of each time that it was sent the frame.
        self.leases: dict[int, list[tuple[int, float]]] = {}


class _Told:
    """What a peer knows of the segments of one owner that is not us."""

    __slots__ = ("announced", "attached", "refusal")

    def __init__(self) -> None:
        self.announced: set[int] = set()
        self.attached: set[int] = set()
        self.refusal: Refusal | None = None


class Passing:
    """The frames of others that this process has handed on, and what peers can read of them.

    ``clock`` gives the beginning of a lease. Everything belongs to the thread of the loop.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[Key, _Held] = {}
        self._told: dict[tuple[int, int], _Told] = {}

    def hold(self, handle: Handle, base: memoryview) -> None:
        """A value with this frame was encoded: its memory, ``base``, stays until the handle is lent
        or unexported, as one of our own would.
        """
        held = self._held.get(key_of(handle))
        if held is None:
            held = self._held[key_of(handle)] = _Held(base, handle.size)
        held.holds += 1

    def unexport(self, handle: Handle) -> None:
        """The handle will not be lent (again). Harmless when nothing is held."""
        held = self._held.get(key_of(handle))
        if held is not None and held.holds:
            held.holds -= 1
            self._let_go(key_of(handle), held)

    def lend(self, handle: Handle, borrower: int, stream: int, *, keep: bool = False) -> None:
        """The handle is sent to ``borrower``: a proxy lease begins in place of the hold, or beside
        it with ``keep``. Raises StaleHandle when nothing is held.
        """
        held = self._held.get(key_of(handle))
        if held is None or not held.holds:
            raise StaleHandle(f"the frame at byte {handle.offset} is not held here any more")
        held.leases.setdefault(borrower, []).append((stream, self._clock()))
        if not keep:
            held.holds -= 1

    def release(self, borrower: int, key: Key) -> bool:
        """End one proxy lease of ``borrower``; False for one that is none, which changes
        nothing.
        """
        held = self._held.get(key)
        leases = None if held is None else held.leases.get(borrower)
        if held is None or leases is None:
            return False
        leases.pop(0)
        if not leases:
            del held.leases[borrower]
        self._let_go(key, held)
        return True

    def take_back(self, borrower: int) -> int:
        """End all proxy leases of a peer that died; of how many frames."""
        found = [(key, held) for key, held in self._held.items() if borrower in held.leases]
        for key, held in found:
            del held.leases[borrower]
            self._let_go(key, held)
        return len(found)

    def take_back_stream(self, borrower: int, stream: int) -> int:
        """End those of one stream whose Open never reached ``borrower``; of how many frames."""
        count = 0
        for key, held in list(self._held.items()):
            leases = held.leases.get(borrower, [])
            left = [each for each in leases if each[0] != stream]
            if len(left) < len(leases):
                count += 1
                held.leases[borrower] = left
                if not left:
                    del held.leases[borrower]
                self._let_go(key, held)
        return count

    def holds(self, handle: Handle) -> bool:
        """Whether the frame is held here for somebody, or waits to be sent."""
        return key_of(handle) in self._held

    def copy_out(self, handle: Handle) -> bytes:
        """The bytes of a frame that is held here, also when its owner is dead. Raises
        StaleHandle.
        """
        held = self._held.get(key_of(handle))
        if held is None:
            raise StaleHandle(f"the frame at byte {handle.offset} is not held here any more")
        return bytes(held.base.cast("B")[handle.offset : handle.offset + handle.size])

    def leases(self) -> Iterator[Passed]:
        """All proxy leases; a borrower -1 is nobody yet: the frame waits to be sent."""
        for (owner, segment, offset, _), held in self._held.items():
            for borrower, leases in held.leases.items():
                for stream, since in leases:
                    yield Passed(borrower, stream, owner, segment, offset, held.size, since)
            if held.holds:
                yield Passed(-1, 0, owner, segment, offset, held.size, 0.0)

    def __len__(self) -> int:
        """How many frames of others are held here for somebody."""
        return len(self._held)

    # What peers can read.

    def untold(self, peer: int, handles: Iterable[Handle]) -> list[tuple[int, int]]:
        """Owners and segments of ``handles`` that ``peer`` has not been told of by us; counts them
        as told.
        """
        missing = []
        for owner, segment in dict.fromkeys((each.owner, each.segment) for each in handles):
            if owner == peer:
                continue  # it goes back to where it came from
            told = self._told.setdefault((peer, owner), _Told())
            if segment not in told.announced:
                told.announced.add(segment)
                missing.append((owner, segment))
        return missing

    def mark(self, peer: int, owner: int, segment: int, ok: bool) -> None:
        """The peer's answer: it has mapped the segment, or cannot map those of this owner."""
        told = self._told.get((peer, owner))
        if told is not None and ok:
            told.attached.add(segment)
            told.refusal = None
        elif told is not None and told.refusal is None:
            told.refusal = Refusal(self._clock())

    def again(self, peer: int, handles: Iterable[Handle]) -> bool:
        """Whether ``peer``, which has refused segments of others, is to be told of them again."""
        due = False
        for owner in {each.owner for each in handles}:
            told = self._told.get((peer, owner))
            refusal = None if told is None else told.refusal
            if told is not None and refusal is not None and refusal.is_due(self._clock()):
                told.announced &= told.attached
                due = True
        return due

    def retired(self, owner: int, numbers: Iterable[int]) -> None:
        """``owner`` has given back segments: their numbers never come again."""
        gone = set(numbers)
        for (_, other), told in self._told.items():
            if other == owner:
                told.announced -= gone
                told.attached -= gone

    def usable(self, peer: int, owner: int) -> bool:
        """Whether ``peer`` has refused no segment of ``owner``."""
        told = self._told.get((peer, owner))
        return told is None or told.refusal is None

    def attached(self, peer: int, handle: Handle) -> bool:
        """Whether ``peer`` has answered that it mapped the segment of ``handle``, or owns it."""
        if handle.owner == peer:
            return True
        told = self._told.get((peer, handle.owner))
        return told is not None and handle.segment in told.attached

    def clear(self) -> None:
        """Hold nothing for anybody any more: this process closes its memory."""
        self._held.clear()

    def forget(self, gone: int) -> None:
        """A peer is gone, as a reader or as an owner: what is known about its mapping goes."""
        for key in [key for key in self._told if gone in key]:
            del self._told[key]

    def _let_go(self, key: Key, held: _Held) -> None:
        if not held.holds and not held.leases and self._held.get(key) is held:
            # With it goes our view; if that was the last, our own lease goes back to the owner.
            del self._held[key]
