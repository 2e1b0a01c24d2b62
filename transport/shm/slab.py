"""Which bytes of an arena are free, who holds the others, and under which generation.

Pure arithmetic.

A segment's bytes are cut into slots of a size class. A freed slot goes on top of its class's stack
and the next slot of that class is taken from there, because memory that was used a moment ago costs
no page faults and is perhaps still in a cache. Only when neither a stacked slot nor a free range
fits are all stacks emptied back into ranges, so that no mix of sizes can cut the memory up for
good.

A segment in which no slot has been in use for a while can be given back; so that this happens after
a burst, the stacks are put in order now and then, and the oldest segments are used first.

A slot in use has holders: its owner (while a frame is written, or waits to be sent) and borrowers,
each for one stream. It is free when the last holder is gone. Its generation, a number never used
twice, tells a late or doubled release from a true one.
"""

from __future__ import annotations

from collections.abc import Collection

from transport.errors import LocalProtocolError, StaleHandle
from transport.shm.slots import GRAIN as GRAIN
from transport.shm.slots import Lease, Part, SlabCounts, Slot
from transport.shm.slots import size_class as size_class


class Slab:
    """The slots of one arena. Used by ``Arena`` under its lock; knows neither files nor memory."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self._stacks: dict[int, list[Slot]] = {}
        self._used: dict[tuple[int, int], Slot] = {}
        self._lent: dict[int, dict[tuple[int, int], Slot]] = {}
        #: Leases beyond the first of one borrower on one slot: ``(segment, offset, borrower)``.
        self._more: dict[tuple[int, int, int], int] = {}
        self._generation = 0
        #: Bytes of all slots in use.
        self.bytes_in_use = 0
        #: Releases that named no lease.
        self.ignored = 0

    def add_segment(self, segment: int, start: int, stop: int) -> None:
        """Let bytes ``start`` to ``stop`` of a new segment be handed out."""
        self._parts[segment] = Part(segment, start, stop)

    def remove_segment(self, segment: int) -> None:
        """Hand out nothing of a segment any more, in which nothing is in use."""
        del self._parts[segment]
        for size, stack in list(self._stacks.items()):
            left = [slot for slot in stack if slot.segment != segment]
            if left:
                self._stacks[size] = left
            else:
                del self._stacks[size]

    def favour(self, numbers: Collection[int] | None) -> bool:
        """Hand out slots of these segments, and of those to come, alone; None: of all. Whether that
        lets any be used that was left out before.
        """
        opened = changed = False
        for part in self._parts.values():
            shut = numbers is not None and part.number not in numbers
            opened |= part.shut and not shut
            changed |= part.shut != shut
            part.shut = shut
        if changed:
            self._empty_stacks()
        return opened

    def leaves_out(self) -> bool:
        """Whether there are segments of which nothing is handed out."""
        return any(part.shut for part in self._parts.values())

    def parts(self) -> list[tuple[int, int, float | None]]:
        """Number of each segment, bytes in use of it, and since when there are none as far as
        ``look`` has seen.
        """
        used = dict.fromkeys(self._parts, 0)
        for slot in self._used.values():
            used[slot.segment] += slot.size
        return [
            (number, used[number], part.idle_since if not part.used else None)
            for number, part in self._parts.items()
        ]

    def look(self, now: float) -> list[Part]:
        """Note which segments are not in use; all of them. Called now and then.

        A segment that served a slot since the last look counts as idle from now on at the earliest.
        """
        for part in self._parts.values():
            if part.used:
                part.idle_since = None
            elif part.served != part.seen or part.idle_since is None:
                part.idle_since = now
            part.seen = part.served
        if len(self._parts) > 1:
            for stack in self._stacks.values():
                stack.sort(key=_newest_first)
        return list(self._parts.values())

    def allocate(self, size: int, now: float = 0.0) -> Slot | None:
        """A slot of at least ``size`` bytes, held by the owner from ``now`` on; None if a new
        segment is needed.
        """
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
        slot.since = now
        slot.part.used += 1
        slot.part.served += 1
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

    def lend(self, slot: Slot, borrower: int, stream: int, *, keep: bool, now: float = 0.0) -> None:
        """Add a borrower for one stream, from ``now`` on; the owner's own hold ends unless
        ``keep``.

        Raises LocalProtocolError when this borrower has the slot already: one release could not be
        told from the other.
        """
        if borrower in slot.holders:
            raise LocalProtocolError(
                f"frame is lent to {borrower:x} already; renew the handle to lend it again"
            )
        slot.holders[borrower] = (stream, now)
        slot.held = keep
        leases = self._lent.get(borrower)
        if leases is None:
            leases = self._lent[borrower] = {}
        leases[slot.segment, slot.offset] = slot

    def claim(self, slot: Slot, borrower: int, stream: int, *, keep: bool, now: float) -> None:
        """As ``lend``; one lease more for who has adopted the slot before."""
        if borrower in slot.holders:
            self._one_more(slot, borrower)
            slot.held = keep
        else:
            self.lend(slot, borrower, stream, keep=keep, now=now)

    def adopt(
        self,
        slot: Slot,
        lender: int,
        borrower: int,
        stream: int,
        now: float = 0.0,
        *,
        asked: bool = False,
    ) -> None:
        """Add a lease of ``borrower``, to whom ``lender`` has handed on the slot that he borrows;
        one more if he has one, for each comes back by itself. ``asked``: the slot is that of a
        request that nobody has accepted yet, which whoever has the request may hand on.

        Raises StaleHandle when neither of them holds it: it may have been taken back already. The
        stream is noted as a negative number, since it is none of ours.
        """
        if borrower in slot.holders:
            self._one_more(slot, borrower)
        elif lender in slot.holders or (asked and slot.held):
            slot.holders[borrower] = (-stream, now)
            self._lent.setdefault(borrower, {})[slot.segment, slot.offset] = slot
        else:
            raise StaleHandle(
                f"{lender:x}, who has handed on a frame, holds it no more: it was given back, or "
                "taken back at his death"
            )

    def _one_more(self, slot: Slot, borrower: int) -> None:
        key = (slot.segment, slot.offset, borrower)
        self._more[key] = self._more.get(key, 0) + 1

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
            self.ignored += 1
            return None
        more = self._more.get((segment, offset, borrower), 0) if self._more else 0
        if more:
            self._more[segment, offset, borrower] = more - 1
            return None
        self._end_lease(slot, borrower)
        return slot if self._free_if_last(slot) else None

    def lends_to(self, borrower: int) -> bool:
        """Whether a borrower has any lease."""
        return borrower in self._lent

    def take_back(self, borrower: int) -> list[Slot]:
        """End all leases of a borrower that died; the slots that this freed."""
        return self._take_back(borrower, list(self._lent.get(borrower, {}).values()))

    def take_back_stream(self, borrower: int, stream: int) -> list[Slot]:
        """End the leases of one stream of a borrower; the slots that this freed."""
        leases = self._lent.get(borrower, {}).values()
        return self._take_back(
            borrower, [slot for slot in leases if slot.holders[borrower][0] == stream]
        )

    def counts(self) -> SlabCounts:
        """What is in use now."""
        lent = sum(1 for slot in self._used.values() if slot.holders)
        return SlabCounts(self.bytes_in_use, len(self._used), lent, len(self._lent), self.ignored)

    def leases(self) -> list[Lease]:
        """Everybody who holds something, once for each slot."""
        found = [
            Lease(borrower, stream, slot.size, since)
            for slot in self._used.values()
            for borrower, (stream, since) in slot.holders.items()
        ]
        found += [
            Lease(None, 0, slot.size, slot.since) for slot in self._used.values() if slot.held
        ]
        return found

    def _take_back(self, borrower: int, slots: list[Slot]) -> list[Slot]:
        for slot in slots:
            self._end_lease(slot, borrower)
        return [slot for slot in slots if self._free_if_last(slot)]

    def _end_lease(self, slot: Slot, borrower: int) -> None:
        """All that the borrower has on this slot."""
        del slot.holders[borrower]
        if self._more:
            self._more.pop((slot.segment, slot.offset, borrower), None)
        leases = self._lent[borrower]
        del leases[slot.segment, slot.offset]
        if not leases:
            del self._lent[borrower]

    def _free_if_last(self, slot: Slot) -> bool:
        if slot.held or slot.holders:
            return False
        slot.generation = 0
        part = slot.part
        part.used -= 1
        del self._used[slot.segment, slot.offset]
        self.bytes_in_use -= slot.size
        if part.shut:
            part.free.append((slot.offset, slot.offset + slot.size))
            return True
        stack = self._stacks.get(slot.size)
        if stack is None:
            stack = self._stacks[slot.size] = []
        stack.append(slot)
        return True

    def _cut(self, want: int) -> Slot | None:
        for part in self._parts.values():
            if part.shut:
                continue
            ranges = part.free
            for index, (start, stop) in enumerate(ranges):
                if stop - start < want:
                    continue
                if stop - start == want:
                    del ranges[index]
                else:
                    ranges[index] = (start + want, stop)
                return Slot(part, start, want)
        return None

    def _empty_stacks(self) -> None:
        for stack in self._stacks.values():
            for slot in stack:
                slot.part.free.append((slot.offset, slot.offset + slot.size))
        self._stacks.clear()
        for part in self._parts.values():
            part.free = _joined(part.free)


def _newest_first(slot: Slot) -> int:
    return -slot.segment


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
