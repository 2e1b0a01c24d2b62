"""Who can be chosen: limits, refusals, quarantines; and what is said when nobody can."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from actors.errors import AllBusy, NoWorkers, Overloaded, Unsupported, WorkerUnavailable
from actors.router.member import BUSY, FREE, QUARANTINED, TRIAL, Limits, Member
from actors.router.policy import MODES
from tests.router.pools import Rig

CHOOSING = [each for each in MODES if each != "direct"]


@pytest.mark.parametrize("mode", MODES)
def test_b117_no_worker_all_busy_and_one_worker(mode: str) -> None:
    route = {"instance": 1} if mode == "direct" else {}
    rig = Rig(0, mode)
    if not route:  # one that is to be named comes before all
        with pytest.raises(NoWorkers):
            rig.send()
    rig.add(1)
    assert rig.send(**route)[0].instance == 1
    if mode == "direct":
        with pytest.raises(Unsupported, match="instance="):
            rig.send()
        with pytest.raises(WorkerUnavailable, match="no worker 9 is there"):
            rig.send(instance=9)
        return
    rig.limits.streams = 1
    rig.pool.reload()
    with pytest.raises(AllBusy) as caught:
        rig.send()
    assert not isinstance(caught.value, NoWorkers)
    assert isinstance(caught.value, Overloaded)
    assert caught.value.retry


def test_b117_two_choices_never_take_the_one_that_is_full_of_work() -> None:
    rig = Rig(4, "power_of_two_choices", capacity=1000)
    for _ in range(50):
        rig.send(instance=2)
    counts = Counter(rig.send()[0].instance for _ in range(100))
    assert counts[2] == 0


# Limits.


@pytest.mark.parametrize("mode", CHOOSING)
def test_a_worker_at_its_limit_gets_no_more_and_comes_back(mode: str) -> None:
    rig = Rig(3, mode, limits=Limits(streams=4))
    sent = [rig.send() for _ in range(12)]
    assert Counter(worker.instance for worker, _ in sent) == {1: 4, 2: 4, 3: 4}
    assert rig.states() == [BUSY] * 3
    with pytest.raises(AllBusy, match=r"all 3 workers are busy \(3 at the limit .busy_str"):
        rig.send()
    worker, key = sent[5]
    rig.end(worker, key)
    assert rig.pool.free == 1
    assert rig.send()[0] is worker
    assert rig.freed == 4


def test_a_fraction_goes_by_the_capacity_that_is_told_now() -> None:
    rig = Rig(1, limits=Limits(fraction=0.5), capacity=8, via="")
    for _ in range(4):
        rig.send()
    with pytest.raises(AllBusy, match=r"busy_fraction=0\.5"):
        rig.send()
    rig.workers[0].capacity = 16
    rig.workers[0].changed()
    assert [rig.send()[0].instance for _ in range(4)] == [1] * 4
    with pytest.raises(AllBusy):
        rig.send()


def test_a_fraction_of_an_unknown_capacity_is_no_limit() -> None:
    rig = Rig(1, limits=Limits(fraction=0.5), capacity=0)
    for _ in range(50):
        rig.send()


def test_a_small_fraction_still_lets_one_in() -> None:
    rig = Rig(1, limits=Limits(fraction=0.01), capacity=8)
    rig.send()
    with pytest.raises(AllBusy):
        rig.send()


def test_limits_change_at_once() -> None:
    rig = Rig(2)
    for _ in range(6):
        rig.send()
    rig.limits.streams = 3
    rig.pool.reload()
    with pytest.raises(AllBusy):
        rig.send()
    rig.limits.streams = None
    rig.pool.reload()
    assert rig.send()
    assert rig.pool.free == 2


def test_b122_a_busy_worker_that_goes_idle_is_eligible_again_by_its_report_alone() -> None:
    rig = Rig(1, limits=Limits(streams=5), via="")
    for _ in range(5):
        rig.send()
    rig.report(rig.workers[0], 5, seq=5)
    with pytest.raises(AllBusy):
        rig.send()
    rig.report(rig.workers[0], 0, settled=5, seq=6)
    assert rig.send()
    rig.report(rig.workers[0], 5, seq=4)  # older: no news
    assert rig.states() == [FREE]


# Quarantines.


def test_b119_a_worker_that_fails_at_once_gets_a_few_then_one_probe() -> None:
    rig = Rig(3)
    counts: Counter[int] = Counter()
    for _ in range(300):
        worker, key = rig.send()
        counts[worker.instance] += 1
        rig.end(worker, key, "connection.lost" if worker.instance == 2 else "")
    assert counts[2] == 1
    rig.pass_time(5.1)
    for _ in range(300):
        worker, key = rig.send()
        counts[worker.instance] += 1
        rig.end(worker, key, "connection.lost" if worker.instance == 2 else "")
    assert counts[2] == 2
    assert rig.pool.faults.until(2) == rig.now + 10.0


def test_b119_if_all_are_in_quarantine_calls_still_try_one() -> None:
    rig = Rig(2)
    for worker in rig.workers:
        _, key = rig.send(instance=worker.instance)
        rig.end(worker, key, "connection.callback")
    assert sorted(rig.states()) == [FREE, QUARANTINED]  # never the last one
    rig.pool.remove(rig.workers[1])
    assert rig.states() == [QUARANTINED]
    worker, key = rig.send()
    assert worker.instance == 1
    assert rig.states() == [TRIAL]
    assert rig.send()[0].instance == 1
    rig.end(worker, key)
    assert rig.states() == [FREE]


def test_b119_zero_switches_quarantines_off() -> None:
    rig = Rig(3, quarantine=0.0)
    for _ in range(30):
        worker, key = rig.send()
        rig.end(worker, key, "connection.lost")
    assert rig.states() == [FREE] * 3


@pytest.mark.parametrize(
    "code", ["engine", "payload.size", "payload.encode", "cancelled", "protocol.remote", "deadline"]
)
def test_b119_what_is_no_fault_of_the_worker_inhibits_nobody(code: str) -> None:
    rig = Rig(3)
    for _ in range(30):
        rig.end(*rig.send(), code)
    assert rig.states() == [FREE] * 3


def test_conformance_14_a_cut_stream_inhibits_its_worker_once() -> None:
    rig = Rig(3)
    sent = [rig.send() for _ in range(9)]
    for worker, key in sent:
        if worker.instance == 1:
            rig.end(worker, key, "connection.lost")
            rig.now += 1.0
    assert rig.states() == [QUARANTINED, FREE, FREE]
    assert rig.pool.faults.until(1) == 1000.0 + 5.0
    assert rig.workers[0].permits == 0


def test_one_trial_decides_and_success_brings_it_back() -> None:
    rig = Rig(2)
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    assert rig.pool.free == 2
    sent = [rig.send() for _ in range(10)]
    assert [worker.instance for worker, _ in sent].count(1) == 1
    assert rig.states() == [TRIAL, FREE]
    rig.end(*next(each for each in sent if each[0].instance == 1))
    assert rig.states() == [FREE, FREE]
    assert rig.pool.calm


@pytest.mark.parametrize("code", ["engine", "overloaded"])
def test_a_trial_that_the_worker_answers_in_any_way_is_a_success(code: str) -> None:
    rig = Rig(2)
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    trial = rig.send(instance=1)
    rig.pool.faults.begin_trial(1, trial[1], rig.now)
    rig.end(*trial, code)
    assert 1 not in rig.pool.faults


def test_a_trial_that_was_cancelled_decides_nothing() -> None:
    rig = Rig(2, "round_robin")
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    trial = next(each for each in (rig.send(), rig.send()) if each[0].instance == 1)
    rig.end(*trial, "cancelled")
    assert [rig.send()[0].instance for _ in range(6)].count(1) == 1


def test_a_trial_whose_stream_runs_needs_no_end() -> None:
    rig = Rig(2)
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    trial = next(each for each in (rig.send(), rig.send()) if each[0].instance == 1)
    assert rig.pool.check(rig.now, lambda key: False)
    assert rig.states()[0] == TRIAL
    assert not rig.pool.check(rig.now, lambda key: key == trial[1])
    assert rig.states()[0] == FREE


def test_a_trial_here_is_over_when_the_worker_tells_of_its_stream() -> None:
    """A session of hours must not keep a healthy worker from all others."""
    rig = Rig(2, "round_robin", via="")
    worker, key = rig.send(instance=1)
    rig.end(worker, key, "worker.unavailable")
    rig.report(rig.workers[0], 0, settled=1)
    rig.pass_time(5.0)
    assert {rig.send()[0].instance for _ in range(4)} == {1, 2}
    rig.pass_time(0.1)
    assert rig.states() == [TRIAL, FREE]
    rig.report(rig.workers[0], 1, settled=1)
    rig.pass_time(0.1)
    assert rig.states() == [FREE, FREE]
    assert 1 not in rig.pool.faults


def test_a_trial_that_shows_nothing_is_tried_again_after_a_while() -> None:
    rig = Rig(2, "round_robin", longest=20.0)
    rig.end(*rig.send(instance=1), "connection.lost")
    rig.pass_time(5.0)
    for _ in range(3):
        assert [rig.send()[0].instance for _ in range(6)].count(1) == 1
        assert rig.states() == [TRIAL, FREE]
        rig.pass_time(19.9)
        assert rig.states() == [TRIAL, FREE]
        rig.pass_time(0.2)
    trial = next(each for each in (rig.send(), rig.send()) if each[0].instance == 1)
    rig.end(*trial, "connection.lost")
    assert rig.pool.faults.until(1) == rig.now + 10.0


def test_who_left_on_trial_and_comes_back_is_tried_again() -> None:
    rig = Rig(2)
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    assert 1 in {rig.send()[0].instance for _ in range(4)}
    assert rig.states()[0] == TRIAL
    rig.pool.remove(rig.workers[0])
    rig.pool.add(rig.workers[0])
    assert rig.states()[0] == FREE
    assert [rig.send()[0].instance for _ in range(10)].count(1) == 1


class Looked(dict[int, Member]):
    """Counts how many are looked at by whoever goes through all of them, C too."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += len(self)
        return super().__iter__()

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def test_what_a_fault_costs_does_not_grow_with_the_workers_or_their_streams() -> None:
    """A switch dies: ten times the workers fail, each for ten times the looks at the others."""

    def cost(workers: int, streams: int) -> int:
        """In steps of Python, and workers that are looked at by what is none."""
        rig, steps = Rig(workers, "random"), 0
        sent = [rig.send(instance=1 + number % workers) for number in range(streams)]
        known = rig.pool.members = Looked(rig.pool.members)

        def counted(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal steps
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            steps += event == "opcode"
            return counted

        before = sys.gettrace()
        sys.settrace(counted)
        try:
            for each in sent:
                rig.end(*each, "connection.lost")
        finally:
            sys.settrace(before)
        return steps + known.looks

    assert cost(1000, 1000) < 15 * cost(100, 100)
    assert cost(2, 2000) < 15 * cost(2, 200)


def test_discovery_does_not_undo_a_quarantine() -> None:
    rig = Rig(3)
    _, key = rig.send(instance=2)
    rig.end(rig.workers[1], key, "connection.lost")
    rig.add(9)
    rig.pool.remove(rig.workers[0])
    rig.pool.add(rig.workers[1])
    assert rig.pool.members[2].state == QUARANTINED
    rig.pool.remove(rig.workers[1])
    rig.pool.add(rig.workers[1])
    assert rig.pool.members[2].state == QUARANTINED
    assert {rig.send()[0].instance for _ in range(20)} == {3, 9}


def test_one_that_rests_is_tried_when_all_others_are_busy() -> None:
    rig = Rig(2, limits=Limits(streams=2))
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    assert [rig.send()[0].instance for _ in range(2)] == [2, 2]
    assert rig.send()[0].instance == 1
    with pytest.raises(AllBusy, match=r"1 at the limit .*; 1 on trial after a fault"):
        rig.send()


def test_a_worker_that_leaves_is_neither_chosen_nor_heard() -> None:
    rig = Rig(2, limits=Limits(streams=2))
    sent = [rig.send(instance=1) for _ in range(2)]
    rig.pool.remove(rig.workers[0])
    assert rig.workers[0].watch is None
    for each in sent:
        rig.end(*each, "connection.lost")
    assert rig.states() == [FREE]
    assert rig.pool.free == 1
    rig.pool.remove(rig.workers[0])


@pytest.mark.parametrize("mode", CHOOSING)
def test_a_random_walk_keeps_the_candidates_what_they_are(mode: str) -> None:
    draw = random.Random(3)
    rig = Rig(5, mode, limits=Limits(streams=6), quarantine=2.0, longest=8.0, capacity=4)
    out: list[tuple[object, tuple[int, int]]] = []
    for _ in range(3000):
        step = draw.random()
        if step < 0.5:
            try:
                out.append(rig.send())
            except (AllBusy, NoWorkers):
                assert all(each.state != FREE for each in rig.pool.members.values())
        elif step < 0.9 and out:
            worker, key = out.pop(draw.randrange(len(out)))
            code = draw.choice(["", "", "", "engine", "connection.lost", "overloaded", "cancelled"])
            rig.end(worker, key, code)  # type: ignore[arg-type]
        elif step < 0.95:
            rig.pass_time(draw.random())
        else:
            worker = draw.choice(rig.workers)
            if worker.instance in rig.pool.members:
                rig.pool.remove(worker)
            else:
                rig.pool.add(worker)
        free = [each for each in rig.pool.members.values() if each.state == FREE]
        assert rig.pool.free == len(free) == sum(each.free for each in rig.pool.members.values())
        assert all(each.carried.load < 6 for each in free)
        seen = Counter(each.state for each in rig.pool.members.values())
        assert +rig.pool._states == seen == Counter(state for _, state in rig.pool.seen())
    assert sum(each.permits for each in rig.workers) == len(out)
