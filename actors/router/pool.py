"""The workers of one endpoint: who can be chosen now, who not and why, and the choice itself.

Pure. A worker is a *candidate* unless it is busy by the limits that were set, has just refused a
stream for want of room, or has failed. The policy knows the candidates only. What makes a worker
one, or none any more, is looked at when something about that worker changes and never for a choice,
which therefore costs the same for ten workers and for ten thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, cast

from actors.errors import AllBusy, NoWorkers, WorkerUnavailable
from actors.kernel.verdicts import ILLNESSES
from actors.messages import Open, Route
from actors.router.faults import FAULTS, OVERLOADED, SILENT, Faults, failures
from actors.router.loads import Worker
from actors.router.member import AWAY, NEVER, Limits, Member
from actors.router.occupancy import Carried, Key
from actors.router.policy import Everybody, Policy
from actors.router.words import busy_words, ill_words
from transport.errors import CallHomeError

#: Workers that an error names.
_NAMED: Final = 8


def _nobody() -> None:
    """Nobody minds."""


class Pool:
    """Made by a router for each endpoint that it has heard of.

    ``running`` tells the streams that a worker has now. ``freed`` is called when a worker becomes a
    candidate, ``troubled`` when there is something that only ``check`` ends.
    """

    def __init__(
        self,
        endpoint: str,
        policy: Policy,
        limits: Limits,
        faults: Faults,
        clock: Callable[[], float],
        running: Callable[[Carried], Iterable[Key]] = lambda _: (),
    ) -> None:
        self.endpoint = endpoint
        self.policy = policy
        self.limits = limits
        self.faults = faults
        self.members: dict[int, Member] = {}
        #: Who left last, and why.
        self.left = ""
        self._clock = clock
        self._running = running
        self.freed: Callable[[], None] = _nobody
        self.troubled: Callable[[], None] = _nobody
        self._choose = cast(Callable[[Open], Carried | None], policy.choose)
        #: How many candidates there are.
        self.free = 0
        #: Candidates whose load may have changed since the last choice. The policy hears of each
        #: once, when it chooses: a stream that has come and gone meanwhile costs it nothing.
        self.stale: set[Carried] = set()
        #: Candidates whose next stream is a trial, and workers that are left alone.
        self._due: set[int] = set()
        self._leased: dict[int, Member] = {}
        #: How many are in which state: many may be refused in a short time, and each is told.
        self._states: Counter[str] = Counter()

    # Who there is.

    def add(self, worker: Carried) -> None:
        """A worker can serve; known already: its record may have changed."""
        member = self.members.get(worker.instance)
        if member is not None and member.carried is not worker:
            self.remove(member.carried)
            member = None
        if member is None:
            member = self.members[worker.instance] = Member(self, worker)
            self._states[member.shown] += 1
        elif member.free:
            self.policy.add(worker)
        self.update(member)

    def remove(self, worker: Carried) -> None:
        """A worker gets no new streams."""
        member = self.members.get(worker.instance)
        if member is not None and member.carried is worker:
            del self.members[worker.instance]
            self._due.discard(worker.instance)
            self._leased.pop(worker.instance, None)
            self._states[member.shown] -= 1
            self.faults.leave(worker.instance)
            worker.watch = None
            if member.free:
                member.free = False
                self.free -= 1
                self._out(worker)

    def update(self, member: Member) -> None:
        """Something about a worker has changed: it becomes a candidate, or is none any more."""
        worker, instance = member.carried, member.carried.instance
        member.look()
        free = not (member.busy or member.lease or member.ill or self.faults.rests(instance))
        if free and self.faults.due(instance):
            self._due.add(instance)
        else:
            self._due.discard(instance)
        self._states[member.shown] -= 1
        member.shown = member.state
        self._states[member.shown] += 1
        was, member.free = member.free, free
        self.free += free - was
        if free and not was:
            self.policy.add(worker)
        elif was and not free:
            self._out(worker)
        elif free and self.policy.aware:
            self.stale.add(worker)
        self._watch(member)
        if free and not was:
            self.freed()

    def _out(self, worker: Carried) -> None:
        self.stale.discard(worker)
        self.policy.remove(worker)

    def _watch(self, member: Member) -> None:
        """Hear of a worker's load just as much as is needed now."""
        worker = member.carried
        if member.lease:
            self._leased[worker.instance] = member
        else:
            self._leased.pop(worker.instance, None)
        if member.lease or member.limit < NEVER or self.limits.fraction is not None:
            worker.watch = member.watched
        elif member.free and self.policy.aware:
            worker.watch = self.stale.add
        else:
            worker.watch = None

    def judge(self, instance: int, code: str, since: float, why: str = "") -> None:
        """Somebody who looks after the worker's process says how it is: one of ``ILLNESSES``, or ""
        for well. Its streams and permits stay; it gets no new ones.
        """
        member, told = self.members.get(instance), (code, since, why)
        if member is not None and (member.ill, member.ill_since, member.ill_why) != told:
            member.ill, member.ill_since, member.ill_why = told
            self.update(member)

    def reload(self) -> None:
        """The limits have changed."""
        for member in self.members.values():
            self.update(member)

    # The choice.

    def choose(self, open: Open) -> Carried:
        """The worker for a stream, to be booked in the same step.

        Raises NoWorkers when nobody is left that could serve it, AllBusy when there is somebody and
        none is free, WorkerUnavailable when the one that it asks for is not there, and what the
        policy raises.
        """
        if open.route is None and not self._due:  # most, by far
            if self.stale:
                self._catch_up()
            worker = self._choose(open)
            if worker is not None:
                return worker
        worker = self.pick(open)
        if worker is None:
            raise self.none(open)
        return worker

    def pick(self, open: Open) -> Carried | None:
        """As ``choose``; None when nobody is left or free, of which ``none`` tells more."""
        self._catch_up()
        if open.route is not None and (open.route.instance or open.route.avoid):
            return self._routed(open, open.route)
        worker = self._choose(open)
        if worker is None or self._due:
            return self.chosen(open, worker or self._resting())
        return worker

    def _catch_up(self) -> None:
        changed = self.policy.changed
        for worker in self.stale:
            changed(worker)
        self.stale.clear()

    def chosen(self, open: Open, worker: Carried | None) -> Carried | None:
        """A choice was made while somebody has failed before: it may be his trial."""
        if worker is not None and worker.instance in self.faults:
            member, key = self.members[worker.instance], (open.home.incarnation, open.stream)
            if self.faults.begin_trial(worker.instance, key, self._clock()):
                member.trial = worker.sent + 1
                self.troubled()
            self.update(member)
        return worker

    def candidates(self, open: Open) -> Sequence[Worker]:
        """Who can be chosen for a stream, for a choice that somebody else makes; where possible the
        list goes on as they come and go.
        """
        failed: Collection[int] = ()
        if open.route is not None:
            failed = self._avoided(open.route)
        if not failed and self.free and isinstance(self.policy, Everybody):
            return self.policy.bag.workers
        found: list[Carried] = []
        if self.free > sum(self.members[each].free for each in failed):
            found = [
                each.carried
                for each in self.members.values()
                if each.free and each.carried.instance not in failed
            ]
        resting = None if found else self._resting(failed)
        return found if resting is None else [resting]

    def _resting(self, failed: Collection[int] = ()) -> Carried | None:
        """Nobody is free: of those that have failed, the one whose turn is next. Where others are
        only busy, one stream at a time may try it; else any, for there is nobody else.
        """
        if not self.faults:
            return None
        resting = [
            self.members[each]
            for each in self.faults.resting()
            if each in self.members and each not in failed
        ]
        found = [each for each in resting if not self.faults.tried(each.carried.instance)]
        if not found:
            ill = sum(
                1
                for each in self.members.values()
                if each.ill and each.carried.instance not in failed
            )
            resting = [each for each in resting if not each.ill]
            if len(resting) == len(self.members) - len(failed) - ill:
                found = resting
        found = [each for each in found if not (each.busy or each.lease or each.ill)]
        if not found:
            return None
        return min(found, key=lambda each: self.faults.until(each.carried.instance)).carried

    def _routed(self, open: Open, route: Route) -> Carried | None:
        """The choice for a stream that asks for one worker, or against some."""
        failed = self._avoided(route)
        if route.instance:
            return self._pinned(route.instance)
        out = [self.members[each] for each in failed if self.members[each].free]
        for each in out:
            self._out(each.carried)
        try:
            worker = self._choose(open)
        finally:
            for each in out:
                self.policy.add(each.carried)
        return self.chosen(open, worker or self._resting(failed))

    def _avoided(self, route: Route) -> set[int]:
        """Those that have failed the request before. One that had no room may have it again: it is
        a candidate when it has.
        """
        return {
            instance
            for instance, code in failures(self.endpoint, route)
            if code != OVERLOADED and instance in self.members
        }

    def _pinned(self, instance: int) -> Carried:
        member = self.members.get(instance)
        if member is None:
            known = ", ".join(map(str, sorted(self.members)[:_NAMED]))
            more = f" and {len(self.members) - _NAMED} more" if len(self.members) > _NAMED else ""
            raise WorkerUnavailable(
                f"{self.endpoint}: no worker {instance} is there any more; there are: {known}{more}"
                " (instance= names one and no other)",
                pinned="yes",
                instance=str(instance),
            )
        if member.ill:
            raise WorkerUnavailable(
                f"{self.endpoint}: {ill_words(member, self._clock())}, and gets no new streams "
                "until it goes on (instance= names one and no other)",
                pinned="yes",
                instance=str(instance),
            )
        return member.carried

    def told(self, route: Route) -> None:
        """Once for each Open that comes of an attempt which has failed: its home says who failed
        it. That counts against the newest alone, of the others there was word before; and not at
        all where this router has seen as much a moment ago. Raises RemoteProtocolError.
        """
        instance, code = failures(self.endpoint, route)[-1]
        member, now = self.members.get(instance), self._clock()
        if member is None:
            return
        if code == OVERLOADED and now - member.struck >= self.limits.lease:
            member.refuse(now, settled=True)
            self.update(member)
        elif code in FAULTS and now - member.struck >= self.faults.longest:
            self._strike(member, None, now)

    def none(self, open: Open) -> CallHomeError:
        """Why nobody is left for a stream."""
        failed = self._avoided(open.route) if open.route is not None else ()
        if len(failed) < len(self.members):
            return AllBusy(f"{self.endpoint}: {self.busy_words(failed)}")
        if not self.members:
            return NoWorkers(f"no worker of endpoint {self.endpoint!r} is there any more")
        who = f"all {len(self.members)} workers" if len(self.members) > 1 else "the one worker"
        return NoWorkers(f"{who} of {self.endpoint} failed this request before; try again later")

    def busy_words(self, failed: Collection[int] = ()) -> str:
        """How many workers there are without those that ``failed``, and why none takes a stream."""
        states = self._states
        if failed:
            states = states - Counter(self.members[each].shown for each in failed)
        ill: list[Member] = []
        if any(states[each] for each in ILLNESSES):
            ill = [each for each in self.members.values() if each.ill]
        return busy_words(states, self.limits, ill, self._clock())

    # What became of streams.

    def ended(self, worker: Carried, key: Key, code: str) -> None:
        """Stream ``key`` has ended at the worker with ``code`` ("": well). Called before the permit
        of one that was relayed comes back; an engine of this node names those that have settled.
        """
        member = self.members.get(worker.instance)
        if member is None or member.carried is not worker:
            return
        now = self._clock()
        if code == OVERLOADED:
            self.faults.works(worker.instance, key)
            member.refuse(now, settled=False)
            self.update(member)
        elif code in FAULTS:
            self._strike(member, key, now)
        elif worker.instance in self.faults:
            if code == SILENT:
                self.faults.undecided(worker.instance, key)
            else:
                self.faults.works(worker.instance, key)
            self.update(member)

    def _strike(self, member: Member, key: Key | None, now: float) -> None:
        instance = member.carried.instance
        member.struck = now
        self.troubled()
        # The last one that is left goes on: a glitch must not become an outage.
        rest = sum(self._states[each] for each in AWAY)
        others = len(self.members) > rest + (member.shown not in AWAY)
        if (others or instance in self.faults) and self.faults.strike(
            instance, key, self._running(member.carried), now
        ):
            self.update(member)

    def check(self, now: float, runs: Callable[[Key], bool]) -> bool:
        """The coarse timer: ends of quarantines and leases, and trials whose stream ``runs``, or
        whose worker tells that it has come; True while there is something to wait for.
        """
        for member in [each for each in self._leased.values() if now >= each.lease]:
            member.lease = 0.0
            self.update(member)
        waits = bool(self._leased)
        if self.faults:
            for instance in self.faults.over(now):
                self._look(instance)
            for instance, key in self.faults.trials():
                tried = self.members.get(instance)
                came = runs(key) or (tried is not None and tried.tried)
                if came and self.faults.works(instance, key):
                    self._look(instance)
            for instance in self.faults.undecided_since(now):
                self._look(instance)
            self.faults.forget_strangers(self.members, now)
            waits = waits or self.faults.waits(self.members)
        return waits

    def _look(self, instance: int) -> None:
        member = self.members.get(instance)
        if member is not None:
            self.update(member)

    @property
    def calm(self) -> bool:
        """Whether nobody here has failed or refused not long ago."""
        return not self.faults and not self._leased

    def seen(self) -> list[tuple[Carried, str]]:
        """Each worker and what it is now."""
        return [(each.carried, each.shown) for each in self.members.values()]
