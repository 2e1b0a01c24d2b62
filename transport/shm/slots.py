"""What the slab of an arena is made of: segments cut into slots, and who holds one."""

from __future__ import annotations

from typing import NamedTuple

#: Slots are cut and aligned to this many bytes.
GRAIN = 4096


def size_class(size: int) -> int:
    """``size`` bytes rounded up to a class: eight a doubling, so that at most 1/8 is lost."""
    grains = max(1, -(-size // GRAIN))
    shift = max(0, grains.bit_length() - 4)
    return (-(-grains >> shift) << shift) * GRAIN


class Part:
    """One segment as the slab knows it: ``free`` ranges that no slot has been cut from, slots in
    use (``used``) and given out so far (``served``).

    ``seen`` and ``idle_since`` are what ``look`` found: how many it had served, and since when
    nothing in it is in use.
    """

    __slots__ = ("free", "idle_since", "number", "seen", "served", "shut", "used")

    def __init__(self, number: int, start: int, stop: int) -> None:
        self.number = number
        self.free = [(start, stop)]
        self.used = 0
        self.served = 0
        self.seen = -1
        self.idle_since: float | None = None
        #: No slot of it is handed out for now.
        self.shut = False


class Slot:
    """Bytes ``offset`` to ``offset + size`` of a segment; in use while ``generation`` is not 0.

    ``since``: when it was given out. ``holders``: stream and beginning of each borrower's lease.
    """

    __slots__ = ("generation", "held", "holders", "offset", "part", "segment", "since", "size")

    def __init__(self, part: Part, offset: int, size: int) -> None:
        self.part = part
        self.segment = part.number
        self.offset = offset
        self.size = size
        self.generation = 0
        self.held = False
        self.since = 0.0
        self.holders: dict[int, tuple[int, float]] = {}


class Lease(NamedTuple):
    """Somebody holds a slot of ``size`` bytes since ``since``; borrower ``None`` is the owner."""

    borrower: int | None
    stream: int
    size: int
    since: float


class SlabCounts(NamedTuple):
    """Bytes and slots in use, slots lent, borrowers, and releases that named no lease."""

    bytes_in_use: int
    slots: int
    lent: int
    borrowers: int
    ignored: int
