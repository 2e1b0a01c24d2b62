"""Which bytes of an arena are free, who holds the others, and under which generation.

Pure arithmetic.

A segment's bytes are cut into slots of a size class. A freed slot goes on top of its class's stack
and the next slot of that class is taken from there, because memory that was used a moment ago costs
no page faults and is perhaps still in a cache. Only when neither a stacked slot nor a free range
fits are all stacks emptied back into ranges, so that no mix of sizes can cut the memory up for
good.

A slot in use has holders: its owner (while a frame is written, or waits to be sent) and borrowers,
each for one stream. It is free when the last holder is gone. Its generation, a number never used
twice, tells a late or doubled release from a true one.
"""

from __future__ import annotations

from typing import NamedTuple

from transport.errors import LocalProtocolError, StaleHandle

#: Slots are cut and aligned to this many bytes.
GRAIN = 4096


def size_class(size: int) -> int:
    """``size`` bytes rounded up to a class: eight a doubling, so that at most 1/8 is lost."""
    grains = max(1, -(-size // GRAIN))
    shift = max(0, grains.bit_length() - 4)
    return (-(-grains >> shift) << shift) * GRAIN


class Slot:
    """Bytes ``offset`` to ``offset + size`` of a segment; in use while ``generation`` is not 0."""

    __slots__ = ("generation", "held", "holders", "offset", "segment", "size")

    def __init__(self, segment: int, offset: int, size: int) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.generation = 0
        self.held = False
        self.holders: dict[int, int] = {}


class SlabCounts(NamedTuple):
    """Bytes and slots in use, slots lent, borrowers, and releases that named no lease."""

    bytes_in_use: int
    slots: int
    lent: int
    borrowers: int
    ignored: int


class Slab:
    """The slots of one arena. Used by ``Arena`` under its lock; knows neither files nor memory."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._stacks: dict[int, list[Slot]] = {}
        self._used: dict[tuple[int, int], Slot] = {}
        self._lent: dict[int, dict[tuple[int, int], Slot]] = {}
        self._generation = 0
        #: Bytes of all slots in use.
        self.bytes_in_use = 0
        self._ignored = 0

    def add_segment(self, segment: int, start: int, stop: int) -> None:
        """Let bytes ``start`` to ``stop`` of a new segment be handed out."""
        self._ranges[segment] = [(start, stop)]

    def allocate(self, size: int) -> Slot | None:
        """A slot of at least ``size`` bytes, held by the owner; None if a new segment is needed."""
        want = size_class(size)
        stack = self._stacks.get(want)
        slot = stack.pop() if stack else self._cut(want)
        if slot is None and any(self._stacks.values()):
            self._empty_stacks()
            slot = self._cut(want)
        if slot is None:
            return None
        self._generation += 1
        slot.generation = self._generation
        slot.held = True
        self.bytes_in_use += want
        self._used[slot.segment, slot.offset] = slot
        return slot

    def find(self, segment: int, offset: int, generation: int) -> Slot:
        """The slot in use; raises StaleHandle when it was freed since, or never was."""
        slot = self._used.get((segment, offset))
        if slot is None or slot.generation != generation:
            raise StaleHandle(
                f"no frame of generation {generation} at byte {offset} of segment {segment}: its "
                "slot was freed; a handle serves once, for as long as it is held"
            )
        return slot

    def lend(self, slot: Slot, borrower: int, stream: int, *, keep: bool) -> None:
        """Add a borrower for one stream; the owner's own hold ends unless ``keep``.

        Raises LocalProtocolError when this borrower has the slot already: one release could not be
        told from the other.
        """
        if borrower in slot.holders:
            raise LocalProtocolError(
                f"frame is lent to {borrower:x} already; renew the handle to lend it again"
            )
        slot.holders[borrower] = stream
        slot.held = keep
        leases = self._lent.get(borrower)
        if leases is None:
            leases = self._lent[borrower] = {}
        leases[slot.segment, slot.offset] = slot

    def renew(self, slot: Slot) -> None:
        """Give a kept slot a new generation, so that late releases of the old one mean nothing.

        Raises LocalProtocolError while somebody borrows it.
        """
        if slot.holders or not slot.held:
            raise LocalProtocolError(
                "only a frame that its owner alone holds can be renewed; take it back first"
            )
        self._generation += 1
        slot.generation = self._generation

    def drop_hold(self, slot: Slot) -> bool:
        """End the owner's own hold; True when that freed the slot."""
        slot.held = False
        return self._free_if_last(slot)

    def end_hold(self, segment: int, offset: int, generation: int) -> bool:
        """``drop_hold`` by name.

        A slot that was freed meanwhile, or is held no more, is left alone.
        """
        slot = self._used.get((segment, offset))
        if slot is None or slot.generation != generation or not slot.held:
            return False
        return self.drop_hold(slot)

    def release(self, segment: int, offset: int, generation: int, borrower: int) -> Slot | None:
        """End one lease.

        The slot if that freed it. A doubled, late or wrong release changes nothing.
        """
        slot = self._used.get((segment, offset))
        if slot is None or slot.generation != generation or borrower not in slot.holders:
            self._ignored += 1
            return None
        self._end_lease(slot, borrower)
        return slot if self._free_if_last(slot) else None

    def take_back(self, borrower: int) -> list[Slot]:
        """End all leases of a borrower that died; the slots that this freed."""
        return self._take_back(borrower, list(self._lent.get(borrower, {}).values()))

    def take_back_stream(self, borrower: int, stream: int) -> list[Slot]:
        """End the leases of one stream of a borrower; the slots that this freed."""
        leases = self._lent.get(borrower, {}).values()
        return self._take_back(
            borrower, [slot for slot in leases if slot.holders[borrower] == stream]
        )

    def counts(self) -> SlabCounts:
        """What is in use now."""
        lent = sum(1 for slot in self._used.values() if slot.holders)
        return SlabCounts(self.bytes_in_use, len(self._used), lent, len(self._lent), self._ignored)

    def _take_back(self, borrower: int, slots: list[Slot]) -> list[Slot]:
        for slot in slots:
            self._end_lease(slot, borrower)
        return [slot for slot in slots if self._free_if_last(slot)]

    def _end_lease(self, slot: Slot, borrower: int) -> None:
        del slot.holders[borrower]
        leases = self._lent[borrower]
        del leases[slot.segment, slot.offset]
        if not leases:
            del self._lent[borrower]

    def _free_if_last(self, slot: Slot) -> bool:
        if slot.held or slot.holders:
            return False
        slot.generation = 0
        del self._used[slot.segment, slot.offset]
        self.bytes_in_use -= slot.size
        stack = self._stacks.get(slot.size)
        if stack is None:
            stack = self._stacks[slot.size] = []
        stack.append(slot)
        return True

    def _cut(self, want: int) -> Slot | None:
        for segment, ranges in self._ranges.items():
            for index, (start, stop) in enumerate(ranges):
                if stop - start < want:
                    continue
                if stop - start == want:
                    del ranges[index]
                else:
                    ranges[index] = (start + want, stop)
                return Slot(segment, start, want)
        return None

    def _empty_stacks(self) -> None:
        for stack in self._stacks.values():
            for slot in stack:
                self._ranges[slot.segment].append((slot.offset, slot.offset + slot.size))
        self._stacks.clear()
        for segment, ranges in self._ranges.items():
            self._ranges[segment] = _joined(ranges)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
