"""Workers that have refused a stream for want of room: for how long they are left alone."""

from __future__ import annotations

import pytest

from actors.errors import AllBusy
from actors.router.member import FREE, LEASED
from tests.router.pools import HOME, Rig


def test_conformance_06_a_refusal_is_a_lease_of_one_second_and_no_fault() -> None:
    rig = Rig(2)
    worker, key = rig.send()
    rig.end(worker, key, "overloaded")
    assert sorted(rig.states()) == [FREE, LEASED]
    assert {rig.send()[0].instance for _ in range(20)} == {3 - worker.instance}
    rig.pass_time(0.9)
    assert LEASED in rig.states()
    rig.pass_time(0.2)
    assert rig.states() == [FREE, FREE]
    assert rig.send()[0] is worker


def test_a_lease_ends_early_when_the_worker_tells_of_room() -> None:
    rig = Rig(1, capacity=2, via="")
    rig.report(rig.workers[0], 2, 1)
    worker, key = rig.send()
    rig.end(worker, key, "overloaded")
    with pytest.raises(AllBusy, match=r"its one worker is busy .1 refused a"):
        rig.send()
    rig.report(worker, 2, 1)
    assert rig.states() == [LEASED]
    rig.report(worker, 2, 0)  # one queued less than there were
    assert rig.states() == [FREE]
    assert rig.freed == 2


def test_a_lease_of_a_worker_elsewhere_ends_with_the_first_of_our_streams_there() -> None:
    rig = Rig(1, capacity=2)
    (worker, first), (_, second), (_, refused), (_, another) = [rig.send() for _ in range(4)]
    rig.end(worker, refused, "overloaded")
    rig.end(worker, another, "overloaded")
    assert rig.states() == [LEASED]
    rig.end(worker, first)  # it tells nothing, and has a place
    assert rig.states() == [FREE]
    assert rig.send()[0] is worker
    rig.end(worker, second)
    assert rig.states() == [FREE]


def test_a_worker_that_tells_of_room_as_it_refuses_is_not_left_alone() -> None:
    rig = Rig(1, capacity=2, via="")
    worker, key = rig.send()
    rig.report(worker, 1)
    rig.end(worker, key, "overloaded")
    assert rig.states() == [FREE]


def test_a_lease_that_a_home_has_told_of_ends_with_the_first_of_our_streams_there() -> None:
    """The refused one has settled by then."""
    rig = Rig(2, capacity=1)
    (worker, running), (_, refused) = rig.send(instance=1), rig.send(instance=1)
    rig.occupancy.settle(refused)
    rig.send(avoid=[[1, "overloaded"]])
    assert rig.states() == [LEASED, FREE]
    rig.end(worker, running)
    assert rig.states() == [FREE, FREE]


def test_a_lease_ends_so_also_where_the_refused_one_had_not_left() -> None:
    rig = Rig(1, capacity=1)
    (worker, running), (_, refused) = rig.send(), rig.send()
    rig.pool.ended(worker, refused, "overloaded")
    rig.occupancy.unbook(HOME, refused[1])
    assert rig.states() == [LEASED]
    rig.end(worker, running)
    assert rig.states() == [FREE]
