"""What a router knows of its workers: loads that no lost report spoils, permits given back once."""

from __future__ import annotations

import random

import pytest

from actors.messages import Record, Report
from actors.router.occupancy import Carried, Occupancy
from transport.bus.address import Address
from transport.errors import RemoteProtocolError

HOME = Address("client", 1, 100, 1)
OTHER = Address("client-2", 2, 101, 1)


def engine(number: int) -> Address:
    return Address(f"engine-{number}", 1000 + number, 200 + number, 1)


def record(number: int, capacity: int = 4, endpoint: str = "t.x.go", via: str = "") -> Record:
    address = engine(number)
    return Record(address.incarnation, address, "engine", endpoint, False, capacity, via=via)


def one(capacity: int = 4) -> tuple[Occupancy, Carried]:
    occupancy = Occupancy()
    return occupancy, occupancy.add(record(0, capacity))


def report(
    seq: int, *, in_flight: int = 0, queued: int = 0, opened: int = 0, settled: int = 0,
    ended: list[list[object]] | None = None, worker: int = 0,
) -> Report:  # fmt: skip
    return Report(
        engine(worker).incarnation, seq, in_flight, queued, 4, opened, settled, ended or []
    )


def test_a_new_worker_carries_nothing() -> None:
    occupancy, worker = one()
    assert (worker.load, worker.permits, worker.capacity) == (0, 0, 4)
    assert worker.instance == engine(0).incarnation
    assert occupancy.permits() == 0


def test_a_booking_counts_at_once_and_once_after_the_engine_has_seen_it() -> None:
    occupancy, worker = one()
    occupancy.book(worker, HOME, 1)
    assert (worker.load, worker.permits) == (1, 1)
    occupancy.report(report(1, in_flight=1, opened=1))
    assert (worker.load, worker.permits) == (1, 1)
    occupancy.report(report(2, opened=1, settled=1, ended=[[1, 1, ""]]))
    assert (worker.load, worker.permits) == (0, 0)


def test_others_are_expected_to_choose_as_this_router_does() -> None:
    """Until the worker tells of it: four routers would all fill the same gap."""
    occupancy, worker = one()
    for number in (1, 2):
        occupancy.book(worker, HOME, number)
    assert worker.expected == worker.load == 2  # nobody else is there
    occupancy.report(report(1, in_flight=5, opened=2))
    assert (worker.expected, worker.load) == (5, 5)
    occupancy.book(worker, HOME, 3)
    # Others have three there for the two that this router had: they send with it.
    assert (worker.expected, worker.load) == (6 + 3 // 2, 6)
    occupancy.book(worker, HOME, 4)
    assert (worker.expected, worker.load) == (7 + 3, 7)
    occupancy.book(worker, HOME, 5)
    assert (worker.expected, worker.load) == (8 + 3, 8)  # never more than they have there
    occupancy.unbook(HOME, 5)
    occupancy.report(report(2, in_flight=9, opened=4))
    assert (worker.expected, worker.load) == (9, 9)


def test_others_who_only_stay_are_not_expected_to_send() -> None:
    occupancy, worker = one()
    occupancy.book(worker, HOME, 1)
    occupancy.report(report(1, in_flight=100, opened=1))
    occupancy.book(worker, HOME, 2)
    assert worker.expected == worker.load + 3  # of 99 for one
    for seq in range(2, 10):
        occupancy.report(report(seq, in_flight=99 + seq, opened=seq))
        occupancy.book(worker, HOME, 1 + seq)
    assert worker.expected == worker.load
    occupancy.report(report(10, in_flight=108, opened=10))
    occupancy.book(worker, HOME, 12)
    assert worker.expected > worker.load  # one of theirs has ended


def test_who_has_nothing_there_cannot_compare_and_expects_nothing() -> None:
    occupancy, worker = one()
    occupancy.report(report(1, in_flight=10))
    for number in range(1, 50):
        occupancy.book(worker, HOME, number)
        assert worker.expected == worker.load


def test_what_an_ingress_tells_is_compared_in_the_same_way() -> None:
    occupancy = Occupancy()
    far = occupancy.add(record(1, via="h:1/x"))
    for number in (1, 2):
        occupancy.book(far, HOME, number)
    occupancy.hear(far, 1, 6, 0, 4, 1)
    assert (far.load, far.expected) == (7, 10)  # the one booking is still on the way
    occupancy.hear(far, 2, 7, 0, 4, 2)
    assert (far.load, far.expected) == (7, 7)
    occupancy.unhear(far)
    assert (far.load, far.expected) == (2, 2)


def test_what_other_routers_send_is_load_and_no_permit() -> None:
    occupancy, worker = one()
    occupancy.report(report(1, in_flight=3, queued=2))
    assert (worker.load, worker.permits, occupancy.permits()) == (5, 0, 0)


def test_the_streams_of_a_report_come_back_once_with_their_codes() -> None:
    occupancy, worker = one()
    for stream in (1, 2):
        occupancy.book(worker, HOME, stream)
    occupancy.book(worker, OTHER, 1)
    ended: list[list[object]] = [[1, 1, ""], [2, 1, "engine"], [9, 9, "nobody's"]]
    first = report(1, in_flight=1, opened=3, settled=2, ended=ended)
    assert occupancy.report(first) == [((1, 1), ""), ((2, 1), "engine")]
    assert occupancy.report(first) == []
    assert occupancy.find(1, 1) is None
    assert occupancy.find(1, 2) is worker
    assert worker.permits == 1


def test_an_older_report_changes_no_count_but_its_streams_have_settled_all_the_same() -> None:
    occupancy, worker = one()
    for stream in (1, 2):
        occupancy.book(worker, HOME, stream)
    occupancy.report(report(5, opened=2, settled=2, ended=[[1, 2, ""]]))
    older = report(4, in_flight=1, opened=2, settled=1, ended=[[1, 1, "deadline"]])
    assert occupancy.report(older) == [((1, 1), "deadline")]
    assert (worker.load, worker.permits) == (0, 0)


def test_a_lost_report_does_no_harm() -> None:
    occupancy, worker = one()
    for stream in range(10):
        occupancy.book(worker, HOME, stream)
    # Reports 1 to 8 never came.
    occupancy.report(report(9, in_flight=2, opened=10, settled=8))
    assert (worker.load, worker.permits) == (2, 2)


def test_a_report_of_an_unknown_worker_is_nothing() -> None:
    occupancy, worker = one()
    occupancy.book(worker, HOME, 1)
    assert occupancy.report(report(1, worker=7, settled=5, ended=[[1, 1, ""]])) == []
    assert worker.permits == 1


def test_a_stream_that_never_left_gives_its_permit_back() -> None:
    occupancy, worker = one()
    occupancy.book(worker, HOME, 1)
    occupancy.unbook(HOME, 1)
    assert (worker.sent, worker.load, worker.permits) == (0, 0, 0)
    occupancy.unbook(HOME, 1)
    assert (worker.sent, worker.load, worker.permits) == (0, 0, 0)
    assert occupancy.find(1, 1) is None


def test_a_worker_that_dies_takes_its_permits_along() -> None:
    occupancy, worker = one()
    other = occupancy.add(record(1))
    occupancy.book(worker, HOME, 1)
    occupancy.book(worker, OTHER, 1)
    occupancy.book(other, HOME, 2)
    assert sorted(occupancy.remove(worker.instance)) == [(HOME, 1), (OTHER, 1)]
    assert occupancy.permits() == 1
    assert occupancy.find(1, 1) is None
    assert occupancy.find(1, 2) is other
    assert occupancy.remove(worker.instance) == []
    # Its last report, and what a caller gives back late, change nothing.
    assert occupancy.report(report(9, settled=2, ended=[[1, 1, ""]])) == []
    occupancy.unbook(HOME, 1)
    assert occupancy.permits() == 1


def test_a_worker_that_comes_twice_keeps_its_permits() -> None:
    occupancy, worker = one()
    occupancy.book(worker, HOME, 1)
    assert occupancy.add(record(0, 9)) is worker
    assert worker.permits == 1


def test_a_report_settles_nothing_of_another_worker() -> None:
    occupancy, worker = one()
    other = occupancy.add(record(1))
    occupancy.book(other, HOME, 1)
    assert occupancy.report(report(1, ended=[[1, 1, ""]])) == []
    assert occupancy.find(1, 1) is other
    assert worker.permits == 0


@pytest.mark.parametrize("name", [[], [1], [1, 2], [1, 2, "", 4]])
def test_a_malformed_name_of_a_stream_is_the_engines_fault(name: list[object]) -> None:
    occupancy, _ = one()
    with pytest.raises(RemoteProtocolError, match="home, number and code"):
        occupancy.report(report(1, ended=[name]))


FAR = "10.0.0.7:7400/abc/t/x/go"


def test_a_worker_on_another_node_is_counted_by_what_this_router_has_with_it() -> None:
    occupancy = Occupancy()
    worker = occupancy.add(record(0, via=FAR))
    for stream in (1, 2):
        occupancy.book(worker, HOME, stream)
    assert (worker.load, worker.permits) == (2, 2)
    assert occupancy.settle((HOME.incarnation, 1))
    assert not occupancy.settle((HOME.incarnation, 1))
    assert (worker.load, worker.permits, occupancy.permits()) == (1, 1, 1)
    # Its incarnation means nothing on this node: nobody reports in its name.
    assert occupancy.report(report(1, opened=9, settled=9, ended=[[1, 2, ""]])) == []
    assert worker.permits == 1


def test_endpoints_of_one_process_on_another_node_are_workers_of_their_own() -> None:
    occupancy = Occupancy()
    first, second = (
        occupancy.add(record(0, endpoint=each, via=FAR)) for each in ("a.b.c", "a.b.d")
    )
    occupancy.book(first, HOME, 1)
    assert (first.permits, second.permits) == (1, 0)
    occupancy.retire(second.place)
    assert list(occupancy.workers.values()) == [first]


def test_a_worker_whose_record_is_gone_stays_until_its_last_permit_is_back() -> None:
    occupancy = Occupancy()
    worker = occupancy.add(record(0, via=FAR))
    occupancy.book(worker, HOME, 1)
    occupancy.retire(worker.place)
    assert occupancy.find(HOME.incarnation, 1) is worker
    assert occupancy.settle((HOME.incarnation, 1))
    assert occupancy.workers == {}
    occupancy.retire(worker.place)


def test_a_worker_that_comes_back_is_kept_when_its_permits_are_back() -> None:
    occupancy = Occupancy()
    worker = occupancy.add(record(0, via=FAR))
    occupancy.book(worker, HOME, 1)
    occupancy.retire(worker.place)
    assert occupancy.add(record(0, via=FAR)) is worker
    assert occupancy.settle((HOME.incarnation, 1))
    assert list(occupancy.workers.values()) == [worker]


def test_what_an_ingress_tells_is_the_load_of_others_and_own_bookings_come_on_top() -> None:
    occupancy = Occupancy()
    worker = occupancy.add(record(0, via=FAR))
    for stream in (1, 2, 3):
        occupancy.book(worker, HOME, stream)
    assert occupancy.hear(worker, 1, 4, 2, 8, 2)  # two of ours had come there, four of others
    assert (worker.load, worker.permits, worker.capacity) == (7, 3, 8)
    assert occupancy.settle((HOME.incarnation, 1))
    assert (worker.load, worker.permits) == (6, 2)
    # Of an engine that counts a stream as gone before its ingress does.
    assert occupancy.hear(worker, 2, 1, 0, 8, 3)
    assert (worker.load, worker.others) == (2, 0)


def test_b122_of_two_messages_that_overtake_each_other_the_newer_stays() -> None:
    occupancy = Occupancy()
    far = occupancy.add(record(0, via=FAR))
    assert occupancy.hear(far, 5, 3, 0, 4, 0)
    assert not occupancy.hear(far, 4, 9, 9, 4, 0)
    assert not occupancy.hear(far, 5, 9, 9, 4, 0)
    assert (far.load, far.seq) == (3, 5)
    near = occupancy.add(record(1))
    occupancy.report(report(5, in_flight=3, worker=1))
    occupancy.report(report(4, in_flight=9, worker=1))
    assert (near.load, near.seq) == (3, 5)


def test_b122_a_new_incarnation_begins_its_numbers_anew() -> None:
    occupancy = Occupancy()
    assert occupancy.hear(occupancy.add(record(0, via=FAR)), 5, 3, 0, 4, 0)
    again = occupancy.add(record(2, via=FAR))
    assert occupancy.hear(again, 1, 1, 0, 4, 0)
    assert (again.load, again.seq) == (1, 1)


def test_when_nobody_tells_of_a_worker_any_more_own_streams_are_its_load() -> None:
    occupancy = Occupancy()
    worker = occupancy.add(record(0, via=FAR))
    occupancy.book(worker, HOME, 1)
    assert occupancy.hear(worker, 7, 5, 1, 8, 1)
    occupancy.unhear(worker)
    assert (worker.load, worker.permits) == (1, 1)
    assert occupancy.hear(worker, 1, 2, 0, 8, 1)  # whoever tells now counts from 1
    assert worker.load == 2


def test_every_change_of_a_load_is_told_after_it() -> None:
    occupancy = Occupancy()
    near, far = occupancy.add(record(0)), occupancy.add(record(1, via=FAR))
    seen: list[tuple[Carried, int]] = []
    for worker in (near, far):
        worker.watch = lambda worker: seen.append((worker, worker.load))
    occupancy.book(near, HOME, 1)
    occupancy.book(far, HOME, 2)
    occupancy.report(report(1, in_flight=3, opened=1))
    occupancy.hear(far, 1, 5, 0, 4, 1)
    occupancy.unbook(HOME, 1)
    occupancy.settle((HOME.incarnation, 2))
    occupancy.unhear(far)
    assert seen == [(near, 1), (far, 1), (near, 3), (far, 5), (near, 2), (far, 4), (far, 0)]
    occupancy.report(report(1, in_flight=9))  # no news
    occupancy.hear(far, 0, 9, 0, 4, 0)
    assert len(seen) == 7


class Truth:
    """An engine as it really is; its reports may be lost, doubled or come in any order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seq = self.opened = self.settled = 0
        self.running: list[tuple[int, int]] = []
        self.unnamed: list[list[object]] = []

    def report(self) -> Report:
        self.seq += 1
        named, self.unnamed = self.unnamed, []
        return report(
            self.seq, in_flight=len(self.running), opened=self.opened, settled=self.settled,
            ended=named, worker=self.number,
        )  # fmt: skip


def test_loads_and_permits_agree_with_the_truth_whatever_happens_to_reports() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        occupancy = Occupancy()
        truths = [Truth(number) for number in range(3)]
        workers = [occupancy.add(record(number, 8)) for number in range(3)]
        travelling: list[tuple[Truth, tuple[int, int]]] = []
        reports: list[Report] = []
        stream = 0
        for _ in range(400):
            action = draw.randrange(5)
            truth = draw.choice(truths)
            if action == 0:
                stream += 1
                occupancy.book(workers[truth.number], HOME, stream)
                travelling.append((truth, (1, stream)))
            elif action == 1 and travelling:
                arrived, key = travelling.pop(draw.randrange(len(travelling)))
                arrived.opened += 1
                arrived.running.append(key)
            elif action == 2 and truth.running:
                key = truth.running.pop(draw.randrange(len(truth.running)))
                truth.settled += 1
                truth.unnamed.append([*key, ""])
            elif action == 3:
                reports.append(truth.report())
            elif reports:
                each = reports.pop(draw.randrange(len(reports)))
                for _ in range(draw.choice((0, 1, 1, 2))):  # lost, once, twice
                    occupancy.report(each)
            for worker in workers:
                assert worker.permits >= 0
        for truth, worker in zip(truths, workers, strict=True):
            occupancy.report(truth.report())
            waiting = sum(each is truth for each, _ in travelling)
            assert worker.permits == len(truth.running) + waiting
            assert worker.load == len(truth.running) + waiting
