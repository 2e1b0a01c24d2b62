"""Permits and the pool above them: any order of choosing, ends, reports that come late or twice,
refusals, faults, deaths and time. Every permit comes back once, and who can be chosen is who has
room.
"""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.errors import AllBusy, NoWorkers
from actors.messages import Report
from actors.router.member import BUSY, FREE, LEASED, QUARANTINED, TRIAL, Limits
from actors.router.occupancy import Carried, Key
from tests.router.pools import HOME, Rig

WHICH = st.integers(0, 1 << 16)
LIMIT = 3


class Engine:
    """An engine of this node: what has come, runs and has settled there; what it has told."""

    def __init__(self, worker: Carried) -> None:
        self.worker = worker
        self.on_the_way: deque[Key] = deque()
        self.running: list[Key] = []
        self.opened = self.settled = self.seq = 0
        self.ended: list[list[object]] = []

    def report(self) -> Report:
        self.seq += 1
        ended, self.ended = self.ended, []
        return Report(
            self.worker.instance,
            self.seq,
            len(self.running),
            0,
            8,
            self.opened,
            self.settled,
            ended,
        )


class PermitsMachine(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from(["least_loaded", "round_robin", "random", "power_of_two_choices"])
    )
    def begin(self, mode: str) -> None:
        self.rig = Rig(0, mode, limits=Limits(streams=LIMIT, lease=1.0), quarantine=5.0)
        self.instance = 0
        #: Workers elsewhere with their streams, and engines of this node.
        self.far: dict[int, tuple[Carried, list[Key]]] = {}
        self.near: dict[int, Engine] = {}
        self.reports: deque[Report] = deque()
        self.late: list[Report] = []
        self.dead_keys: list[Key] = []
        self.come(True)
        self.come(False)

    @precondition(lambda self: len(self.far) + len(self.near) < 4)
    @rule(far=st.booleans())
    def come(self, far: bool) -> None:
        self.instance += 1
        worker = self.rig.add(self.instance, via="far:1/p" if far else "")
        if far:
            self.far[self.instance] = worker, []
        else:
            self.near[self.instance] = Engine(worker)

    @rule()
    def choose(self) -> None:
        members = self.rig.pool.members.values()
        free = [each for each in members if each.state in (FREE, TRIAL)]
        resting = [each for each in members if each.state == QUARANTINED]
        try:
            worker, key = self.rig.send()
        except AllBusy:
            assert members
            assert not [each for each in free if each.state == FREE]
            return
        except NoWorkers:
            assert not members
            return
        assert any(each.carried is worker for each in (*free, *resting))
        assert worker.permits <= LIMIT, "nobody gets more than the limit"
        if worker.instance in self.far:
            self.far[worker.instance][1].append(key)
        else:
            self.near[worker.instance].on_the_way.append(key)

    @precondition(lambda self: any(keys for _, keys in self.far.values()))
    @rule(which=WHICH, code=st.sampled_from(["", "", "engine", "overloaded", "connection.lost"]))
    def end_far(self, which: int, code: str) -> None:
        worker, keys = [each for each in self.far.values() if each[1]][which % 1]
        key = keys.pop(which % len(keys))
        permits = worker.permits
        self.rig.end(worker, key, code)
        assert worker.permits == permits - 1
        self.dead_keys.append(key)

    @precondition(lambda self: self.dead_keys)
    @rule(which=WHICH)
    def end_again(self, which: int) -> None:
        total = self.rig.occupancy.permits()
        assert not self.rig.occupancy.settle(self.dead_keys[which % len(self.dead_keys)])
        assert self.rig.occupancy.permits() == total

    @precondition(lambda self: any(each.on_the_way for each in self.near.values()))
    @rule()
    def open_near(self) -> None:
        engine = next(each for each in self.near.values() if each.on_the_way)
        engine.running.append(engine.on_the_way.popleft())
        engine.opened += 1

    @precondition(lambda self: any(each.on_the_way for each in self.near.values()))
    @rule()
    def never_left(self) -> None:
        """The Open could not be sent: as if it had not been booked."""
        engine = next(each for each in self.near.values() if each.on_the_way)
        _, stream = engine.on_the_way.pop()
        self.rig.occupancy.unbook(HOME, stream)

    @precondition(lambda self: any(each.running for each in self.near.values()))
    @rule(which=WHICH, code=st.sampled_from(["", "engine"]))
    def settle_near(self, which: int, code: str) -> None:
        engine = next(each for each in self.near.values() if each.running)
        home, stream = engine.running.pop(which % len(engine.running))
        engine.settled += 1
        engine.ended.append([home, stream, code])

    @precondition(lambda self: self.near)
    @rule(which=WHICH)
    def tell(self, which: int) -> None:
        self.reports.append(list(self.near.values())[which % len(self.near)].report())

    @precondition(lambda self: self.reports)
    @rule(late=st.booleans())
    def report_comes(self, late: bool) -> None:
        report = self.reports.popleft()
        if late:
            self.late.append(report)
        else:
            self.take_in(report)

    @precondition(lambda self: self.late)
    @rule(which=WHICH, again=st.booleans())
    def late_report_comes(self, which: int, again: bool) -> None:
        report = self.late.pop(which % len(self.late))
        self.take_in(report)
        if again:
            assert self.rig.occupancy.report(report) == []

    def take_in(self, report: Report) -> None:
        for key, code in self.rig.occupancy.report(report):
            assert self.rig.occupancy.find(*key) is None
            self.rig.pool.ended(self.near[report.incarnation].worker, key, code)

    @rule(far=st.booleans())
    def die(self, far: bool) -> None:
        if far and self.far:
            instance, (worker, keys) = next(iter(self.far.items()))
            self.rig.pool.remove(worker)
            self.rig.occupancy.retire(worker.place)
            for key in keys:  # each ends by itself, of which its relay hears
                assert self.rig.occupancy.settle(key)
            del self.far[instance]
            assert worker.place not in self.rig.occupancy.workers
        elif not far and self.near:
            instance, engine = next(iter(self.near.items()))
            self.rig.pool.remove(engine.worker)
            lost = self.rig.occupancy.remove(instance)
            told = {
                key for each in (*self.reports, *self.late) for key in self.named(each, instance)
            }
            told |= {(int(each[0]), int(each[1])) for each in engine.ended}  # type: ignore[call-overload]
            assert {(home.incarnation, stream) for home, stream in lost} == {
                *engine.on_the_way,
                *engine.running,
                *told,
            }
            del self.near[instance]
            self.reports = deque(each for each in self.reports if each.incarnation != instance)
            self.late = [each for each in self.late if each.incarnation != instance]

    @staticmethod
    def named(report: Report, instance: int) -> set[Key]:
        if report.incarnation != instance:
            return set()
        return {(each[0], each[1]) for each in report.ended}

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 70.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.rig.pass_time(seconds)

    @invariant()
    def permits_are_what_is_under_way(self) -> None:
        if not hasattr(self, "rig"):
            return
        for worker, keys in self.far.values():
            assert worker.permits == worker.load == len(keys)
        for engine in self.near.values():
            # Those that have settled and of which nobody has told here yet count, too.
            least = len(engine.on_the_way) + len(engine.running)
            assert engine.worker.permits >= least
            assert engine.worker.others == 0, "nobody else sends"
            assert engine.worker.permits == engine.worker.sent - engine.worker.settled

    @invariant()
    def candidates_are_those_with_room(self) -> None:
        if not hasattr(self, "rig"):
            return
        pool, now = self.rig.pool, self.rig.now
        assert sum(pool._states.values()) == len(pool.members)
        assert pool.free == sum(each.free for each in pool.members.values())
        for member in pool.members.values():
            worker = member.carried
            assert member.shown == member.state
            if member.state == FREE:
                assert worker.load < LIMIT
            elif member.state == BUSY:
                assert worker.load >= LIMIT
            elif member.state == LEASED:
                assert now - member.struck <= 1.1
            if member.free:
                assert worker.load < LIMIT

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for engine in list(self.near.values()):
            while engine.on_the_way:
                engine.running.append(engine.on_the_way.popleft())
                engine.opened += 1
            for home, stream in engine.running:
                engine.settled += 1
                engine.ended.append([home, stream, ""])
            engine.running.clear()
            self.reports.append(engine.report())
        for report in (*self.reports, *self.late):
            self.take_in(report)
        for worker, keys in self.far.values():
            while keys:
                self.rig.end(worker, keys.pop())
        assert self.rig.occupancy.permits() == 0
        assert not self.rig.occupancy._booked, "every stream is forgotten"
        self.rig.pass_time(1000.0)
        self.rig.pool.check(self.rig.now, lambda key: True)
        assert all(each.state in (FREE, TRIAL) for each in self.rig.pool.members.values())


PermitsMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestPermits = PermitsMachine.TestCase
