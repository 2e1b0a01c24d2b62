"""The slab against a model of it: any order of giving out, lending, handing on, giving back, late
releases, deaths, segments that come and go.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from transport.errors import LocalProtocolError, StaleHandle
from transport.shm.slab import GRAIN, Slab, size_class
from transport.shm.slots import Slot

CAPACITY = 16 * GRAIN
BORROWERS = st.integers(1, 2)
STREAMS = st.integers(1, 2)
WHICH = st.integers(0, 1 << 16)


class Known:
    """A slot as it should be: who holds it, and how often."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.generation = slot.generation
        self.held = True
        self.leases: dict[int, int] = {}
        self.streams: dict[int, int] = {}

    @property
    def name(self) -> tuple[int, int, int]:
        return self.slot.segment, self.slot.offset, self.generation


class SlabMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab()
        self.segments: set[int] = set()
        self.number = 0
        self.known: list[Known] = []
        self.old: list[tuple[int, int, int]] = []
        self.last_generation = 0
        self.ignored = 0
        self.now = 0.0
        self.grow()

    def any(self, which: int) -> Known:
        return self.known[which % len(self.known)]

    def fresh(self, generation: int) -> None:
        assert generation > self.last_generation, "a generation is never used twice"
        self.last_generation = generation

    def freed(self, one: Known) -> bool:
        """Note that a hold or lease has ended; whether that freed the slot."""
        if one.held or one.leases:
            return False
        self.known.remove(one)
        self.old.append(one.name)
        return True

    @precondition(lambda self: len(self.segments) < 3)
    @rule()
    def grow(self) -> None:
        self.number += 1
        self.segments.add(self.number)
        self.slab.add_segment(self.number, GRAIN, GRAIN + CAPACITY)

    @precondition(lambda self: len(self.segments) > 1)
    @rule(newest=st.booleans())
    def shrink(self, newest: bool) -> None:
        idle = self.segments - {each.slot.segment for each in self.known}
        for segment in sorted(idle, reverse=newest)[:1]:
            self.segments.remove(segment)
            self.slab.remove_segment(segment)

    @rule(size=st.sampled_from([1, GRAIN, GRAIN, 3 * GRAIN, 4 * GRAIN, CAPACITY]))
    def allocate(self, size: int) -> None:
        slot = self.slab.allocate(size, self.now)
        if slot is None:
            assert size_class(size) > self.largest_gap(), "there was room"
            return
        self.fresh(slot.generation)
        assert slot.segment in self.segments
        self.known.append(Known(slot))

    def largest_gap(self) -> int:
        gaps = [0]
        for segment in self.segments:
            at = GRAIN
            for one in sorted(self.known, key=lambda each: each.slot.offset):
                if one.slot.segment == segment:
                    gaps.append(one.slot.offset - at)
                    at = one.slot.offset + one.slot.size
            gaps.append(GRAIN + CAPACITY - at)
        return max(gaps)

    @precondition(lambda self: self.known)
    @rule(which=WHICH, borrower=BORROWERS, stream=STREAMS, keep=st.booleans())
    def lend(self, which: int, borrower: int, stream: int, keep: bool) -> None:
        one = self.any(which)
        if borrower in one.leases:
            with pytest.raises(LocalProtocolError):
                self.slab.lend(one.slot, borrower, stream, keep=keep)
            return
        self.slab.lend(one.slot, borrower, stream, keep=keep, now=self.now)
        one.held = keep
        one.leases[borrower], one.streams[borrower] = 1, stream

    @precondition(lambda self: self.known)
    @rule(
        which=WHICH, lender=BORROWERS, borrower=BORROWERS, stream=STREAMS, times=st.integers(1, 2)
    )
    def hand_on(self, which: int, lender: int, borrower: int, stream: int, times: int) -> None:
        for _ in range(times):
            self.hand_one_on(self.any(which), lender, borrower, stream)

    def hand_one_on(self, one: Known, lender: int, borrower: int, stream: int) -> None:
        if not {lender, borrower} & one.leases.keys():
            with pytest.raises(StaleHandle):
                self.slab.adopt(one.slot, lender, borrower, stream)
            return
        self.slab.adopt(one.slot, lender, borrower, stream, self.now)
        one.leases[borrower] = one.leases.get(borrower, 0) + 1
        one.streams.setdefault(borrower, -stream)

    @precondition(lambda self: self.known)
    @rule(which=WHICH, borrower=BORROWERS, stream=STREAMS)
    def release_of_the_last_time(self, which: int, borrower: int, stream: int) -> None:
        one = self.any(which)
        if one.leases or not one.held:
            return
        before = one.name
        self.renew(which)
        self.lend(which, borrower, stream, False)
        assert self.slab.release(*before, borrower) is None
        self.ignored += 1

    @precondition(lambda self: self.known)
    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        one = self.any(which)
        if one.leases or not one.held:
            with pytest.raises(LocalProtocolError):
                self.slab.renew(one.slot)
            return
        self.old.append(one.name)
        self.slab.renew(one.slot)
        self.fresh(one.slot.generation)
        one.generation = one.slot.generation

    @precondition(lambda self: self.known)
    @rule(which=WHICH, by_name=st.booleans())
    def end_hold(self, which: int, by_name: bool) -> None:
        one = self.any(which)
        if not one.held:
            assert not self.slab.end_hold(*one.name)
            return
        one.held = False
        done = self.slab.end_hold(*one.name) if by_name else self.slab.drop_hold(one.slot)
        assert done == self.freed(one)

    @rule()
    def fill_and_empty(self) -> None:
        """Slots of one size lie on their stack, of every segment."""
        before = len(self.known)
        for _ in range(6):
            self.allocate(4 * GRAIN)
        while len(self.known) > before:
            self.end_hold(len(self.known) - 1, True)

    @precondition(lambda self: self.known)
    @rule(which=WHICH, borrower=BORROWERS, stream=STREAMS)
    def take_back_and_use_again(self, which: int, borrower: int, stream: int) -> None:
        """A slot that somebody had several times, again in his hands: once is once."""
        one = self.any(which)
        size = one.slot.size
        self.hand_on(which, borrower, borrower, stream, 2)
        self.take_back(borrower, None)
        if one in self.known:
            self.end_hold(self.known.index(one), True)
        self.allocate(size)
        if self.known:
            self.lend(len(self.known) - 1, borrower, stream, False)
            self.release(len(self.known) - 1, borrower)

    @precondition(lambda self: self.known)
    @rule(which=WHICH, borrower=BORROWERS)
    def release(self, which: int, borrower: int) -> None:
        one = self.any(which)
        done = self.slab.release(*one.name, borrower)
        if borrower not in one.leases:
            self.ignored += 1
            assert done is None
            return
        one.leases[borrower] -= 1
        if not one.leases[borrower]:
            del one.leases[borrower], one.streams[borrower]
        assert (done is one.slot) == self.freed(one)

    @precondition(lambda self: self.old)
    @rule(which=WHICH, borrower=BORROWERS)
    def release_late(self, which: int, borrower: int) -> None:
        name = self.old[which % len(self.old)]
        assert self.slab.release(*name, borrower) is None
        self.ignored += 1
        assert not self.slab.end_hold(*name)
        with pytest.raises(StaleHandle):
            self.slab.find(*name)

    @rule(borrower=BORROWERS)
    def take_back_one_of_two_streams(self, borrower: int) -> None:
        before = len(self.known)
        for stream in (1, 2):
            self.allocate(GRAIN)
            if len(self.known) > before:
                self.lend(len(self.known) - 1, borrower, stream, False)
            before = len(self.known)
        self.take_back(borrower, 1)

    @rule(borrower=BORROWERS, stream=st.none() | STREAMS)
    def take_back(self, borrower: int, stream: int | None) -> None:
        mine = [
            one
            for one in self.known
            if borrower in one.leases and stream in (None, one.streams[borrower])
        ]
        if stream is None:
            done = self.slab.take_back(borrower)
        else:
            done = self.slab.take_back_stream(borrower, stream)
        for one in mine:
            del one.leases[borrower], one.streams[borrower]
        assert {id(one.slot) for one in mine if self.freed(one)} == {id(slot) for slot in done}

    @rule()
    def look(self) -> None:
        self.now += 1.0
        for part in self.slab.look(self.now):
            idle = all(one.slot.segment != part.number for one in self.known)
            assert (part.idle_since is not None) == idle

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        counts = self.slab.counts()
        assert counts.slots == len(self.known)
        assert counts.bytes_in_use == sum(one.slot.size for one in self.known)
        assert counts.lent == sum(bool(one.leases) for one in self.known)
        assert counts.borrowers == len({each for one in self.known for each in one.leases})
        assert counts.ignored == self.ignored
        told = sorted((each.borrower or 0, each.size) for each in self.slab.leases())
        mine = [(each, one.slot.size) for one in self.known for each in one.leases]
        assert told == sorted(mine + [(0, one.slot.size) for one in self.known if one.held])

    @invariant()
    def slots_lie_apart_and_are_found(self) -> None:
        places: list[Any] = sorted(
            (one.slot.segment, one.slot.offset, one.slot.offset + one.slot.size)
            for one in self.known
        )
        for place, after in itertools.pairwise(places):
            assert place[0] != after[0] or place[2] <= after[1], "two slots share bytes"
        for one in self.known:
            assert self.slab.find(*one.name) is one.slot
            assert one.slot.offset >= GRAIN
            assert one.slot.offset + one.slot.size <= GRAIN + CAPACITY

    def teardown(self) -> None:
        for borrower in (1, 2):
            self.take_back(borrower, None)
        for one in list(self.known):
            self.end_hold(self.known.index(one), True)
        for _ in self.segments:
            assert self.slab.allocate(CAPACITY) is not None, "all of it is in one piece again"


SlabMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestSlab = SlabMachine.TestCase
