from __future__ import annotations

import random
from itertools import pairwise

import pytest

from transport.errors import LocalProtocolError, StaleHandle
from transport.shm.slab import GRAIN, Slab, size_class
from transport.shm.slots import Slot

KIB = 1024
START = GRAIN


def slab(capacity: int) -> Slab:
    made = Slab()
    made.add_segment(1, START, START + capacity)
    return made


def take(made: Slab, size: int) -> Slot:
    slot = made.allocate(size)
    assert slot is not None
    return slot


def test_classes_waste_an_eighth_at_most_and_keep_powers_of_two() -> None:
    for power in range(12, 31):
        assert size_class(1 << power) == 1 << power
    for size in [1, GRAIN, GRAIN + 1, *random.Random(1).sample(range(1, 1 << 30), 500)]:
        got = size_class(size)
        assert got >= size
        assert got % GRAIN == 0
        assert size_class(got) == got
        assert got <= max(size * 9 / 8 + GRAIN, GRAIN)


def test_the_slot_freed_last_is_used_next() -> None:
    made = slab(64 * KIB)
    first, second = take(made, 5000), take(made, 5000)
    places = [first.offset, second.offset]
    made.drop_hold(first)
    made.drop_hold(second)
    assert [take(made, 5000).offset, take(made, 5000).offset] == places[::-1]


def test_generations_are_never_used_twice() -> None:
    made = slab(64 * KIB)
    seen = set()
    for _ in range(100):
        slot = take(made, 1)
        seen.add(slot.generation)
        made.drop_hold(slot)
    assert len(seen) == 100
    assert 0 not in seen


def test_a_full_slab_says_so_and_a_new_segment_helps() -> None:
    made = slab(16 * KIB)
    take(made, 16 * KIB)
    assert made.allocate(1) is None
    made.add_segment(2, START, START + 16 * KIB)
    assert take(made, 1).segment == 2


def test_no_mix_of_sizes_cuts_the_memory_up_for_good() -> None:
    made = slab(64 * KIB)
    small = [take(made, 4 * KIB) for _ in range(16)]
    for slot in small:
        made.drop_hold(slot)
    large = take(made, 64 * KIB)
    assert large.offset == START
    made.drop_hold(large)
    assert len([take(made, 8 * KIB) for _ in range(8)]) == 8


def test_a_slot_is_free_when_its_last_holder_is_gone() -> None:
    made = slab(4 * KIB)
    slot = take(made, 100)
    place = (slot.segment, slot.offset, slot.generation)
    made.lend(slot, 7, 1, keep=True)
    made.lend(slot, 8, 1, keep=True)
    assert made.release(*place, 7) is None
    assert not made.drop_hold(slot)
    assert made.allocate(100) is None
    assert made.release(*place, 8) is slot
    assert made.counts()[:4] == (0, 0, 0, 0)
    assert made.allocate(100) is slot


def test_lending_passes_the_hold_on_unless_it_is_kept() -> None:
    made = slab(8 * KIB)
    passed, kept = take(made, 1), take(made, 1)
    made.lend(passed, 7, 1, keep=False)
    made.lend(kept, 7, 1, keep=True)
    assert made.take_back(7) == [passed]
    assert made.find(1, kept.offset, kept.generation) is kept


def test_a_borrower_gets_a_slot_once() -> None:
    made = slab(4 * KIB)
    slot = take(made, 1)
    made.lend(slot, 7, 1, keep=True)
    with pytest.raises(LocalProtocolError, match="renew"):
        made.lend(slot, 7, 2, keep=True)


def test_doubled_late_and_wrong_releases_change_nothing() -> None:
    made = slab(4 * KIB)
    slot = take(made, 1)
    old = (slot.segment, slot.offset, slot.generation)
    made.lend(slot, 7, 1, keep=False)
    assert made.release(*old, 8) is None
    assert made.release(1, 99, slot.generation, 7) is None
    assert made.release(*old, 7) is slot
    assert made.release(*old, 7) is None
    again = take(made, 1)
    made.lend(again, 7, 2, keep=False)
    assert made.release(*old, 7) is None
    assert made.counts().ignored == 4
    assert made.counts().lent == 1


def test_renewing_makes_late_releases_of_an_earlier_attempt_harmless() -> None:
    made = slab(4 * KIB)
    slot = take(made, 1)
    first = slot.generation
    made.lend(slot, 7, 1, keep=True)
    with pytest.raises(LocalProtocolError):
        made.renew(slot)
    made.take_back_stream(7, 1)
    made.renew(slot)
    made.lend(slot, 7, 2, keep=False)
    assert made.release(slot.segment, slot.offset, first, 7) is None
    assert made.release(slot.segment, slot.offset, slot.generation, 7) is slot


def test_taking_back_one_stream_leaves_the_others() -> None:
    made = slab(16 * KIB)
    one, two, other = take(made, 1), take(made, 1), take(made, 1)
    made.lend(one, 7, 1, keep=False)
    made.lend(two, 7, 2, keep=False)
    made.lend(other, 8, 1, keep=False)
    assert made.take_back_stream(7, 1) == [one]
    assert made.counts()[1:4] == (2, 2, 2)
    assert made.take_back(7) == [two]
    assert made.take_back(7) == []
    assert made.take_back(9) == []
    assert made.counts().borrowers == 1


def test_a_stale_place_is_an_error() -> None:
    made = slab(4 * KIB)
    slot = take(made, 1)
    stale = (slot.segment, slot.offset, slot.generation)
    assert made.find(*stale) is slot
    made.drop_hold(slot)
    for place in (stale, (1, START, slot.generation + 1), (9, 0, 1)):
        with pytest.raises(StaleHandle):
            made.find(*place)
    assert not made.end_hold(*stale)


def test_random_use_never_lets_two_slots_overlap() -> None:
    rng = random.Random(7)
    made = slab(1024 * KIB)
    held: list[Slot] = []
    for _ in range(5000):
        if held and rng.random() < 0.5:
            assert made.drop_hold(held.pop(rng.randrange(len(held))))
        else:
            slot = made.allocate(int(4 ** rng.uniform(1, 9)))
            if slot is not None:
                held.append(slot)
        spans = sorted((slot.offset, slot.offset + slot.size) for slot in held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert made.counts().bytes_in_use == sum(slot.size for slot in held)
    for slot in held:
        made.drop_hold(slot)
    assert take(made, 1024 * KIB).offset == START
