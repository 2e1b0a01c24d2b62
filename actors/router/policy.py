"""Which worker gets the next stream: the modes of a router, as pure functions of workers, loads and
a source of randomness.

A policy is made once a router and endpoint. The router tells it who can be chosen now and asks it
for each stream; it books what was chosen in the same step and, of a policy that wants to know,
tells it of the change. Policies steer, they never refuse for want of room: only an engine knows
whether it is full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from actors.errors import SpecError, Unsupported
from actors.router.loads import Bag, Draw, Loads, Worker
from actors.router.sticky import Rendezvous

if TYPE_CHECKING:  # specs name the modes and need no messages
    from actors.messages import Open
    from actors.router.options import Options

#: Workers of which each is looked at rather than kept in order.
_FEW: Final = 8
#: Workers that left in the round that goes on and are remembered as served.
_LEFT: Final = 1024


class Policy(Protocol):
    """Chooses among the workers that can be chosen now."""

    #: Whether it is to be told when loads change.
    aware: bool

    def add(self, worker: Worker) -> None:
        """It can be chosen from now on; known already: looked at afresh."""

    def remove(self, worker: Worker) -> None:
        """It can be chosen no more."""

    def changed(self, worker: Worker) -> None:
        """The load of one that can be chosen may have changed."""

    def choose(self, open: Open) -> Worker | None:
        """The worker for a stream; None when none can be chosen. Raises CallHomeError when the
        request lacks what the mode goes by.
        """


class Random:
    """Any, each as likely as the others."""

    aware = False

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._workers = Bag()

    def add(self, worker: Worker) -> None:
        self._workers.add(worker)

    def remove(self, worker: Worker) -> None:
        self._workers.remove(worker)

    def changed(self, worker: Worker) -> None:
        """No load is looked at before the choice."""

    def choose(self, open: Open) -> Worker | None:
        return self._workers.drawn(self._draw)


class PowerOfTwoChoices(Random):
    """Of two that were drawn, the one that carries less; never the same one twice."""

    def choose(self, open: Open) -> Worker | None:
        workers = self._workers.workers
        count = len(workers)
        if count < 2:
            return workers[0] if workers else None
        one = self._draw(count)
        other = self._draw(count - 1)
        if other >= one:
            other += 1
        first, second = workers[one], workers[other]
        return second if second.expected < first.expected else first


class RoundRobin:
    """One after the other: whoever has waited longest. In a round each is chosen once.

    A counter modulo the number of workers would give double load to the neighbour of one that
    leaves, and start anew whenever the list changes. Here a worker that leaves and comes back has
    had its turn, if it had it, until the round is over; a new one is next.
    """

    aware = False

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        #: Whoever is next comes first. The number is the round that the worker waits for: that of
        #: the first, or the one after it.
        self._queue: OrderedDict[Worker, int] = OrderedDict()
        #: Those that came since the last choice: they come next, in an order that was drawn, for
        #: several routers hear of workers in the same order and must not go through it in step.
        self._fresh: dict[Worker, None] = {}
        self._left: OrderedDict[int, int] = OrderedDict()
        self._round = 0

    def add(self, worker: Worker) -> None:
        if worker in self._queue:
            return
        waits_for = self._left.pop(worker.instance, 0)
        if waits_for > self._round:
            self._queue[worker] = waits_for
        else:
            self._fresh[worker] = None

    def remove(self, worker: Worker) -> None:
        self._fresh.pop(worker, None)
        waits_for = self._queue.pop(worker, 0)
        if waits_for <= self._round:
            return
        self._left[worker.instance] = waits_for
        if len(self._left) > _LEFT:
            self._left.popitem(last=False)

    def changed(self, worker: Worker) -> None:
        """No load is looked at."""

    def choose(self, open: Open) -> Worker | None:
        if self._fresh:
            self._line_up()
        for worker, waits_for in self._queue.items():
            if waits_for != self._round:
                self._round = waits_for
                self._left.clear()
            self._queue[worker] = waits_for + 1
            self._queue.move_to_end(worker)
            return worker
        return None

    def _line_up(self) -> None:
        fresh = list(self._fresh)
        self._fresh.clear()
        for last in range(len(fresh) - 1, 0, -1):
            other = self._draw(last + 1)
            fresh[last], fresh[other] = fresh[other], fresh[last]
        # A round in which all have had their turn is over.
        now = next(iter(self._queue.values()), self._round)
        for worker in fresh:
            self._queue[worker] = now
            self._queue.move_to_end(worker, last=False)


class LeastLoaded:
    """The one that carries least; among equals any, so that several routers do not all pick the
    first.

    A few workers are looked at for each choice: to keep them in order takes two changes a stream,
    which for up to ``_FEW`` costs more (3.3 µs a stream, a tenth of what a router spends on one).
    """

    aware = True

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._all = Bag()
        #: Once there have been more than a few.
        self._loads: Loads | None = None

    def add(self, worker: Worker) -> None:
        self._all.add(worker)
        if self._loads is not None:
            self._loads.add(worker)
        elif len(self._all) > _FEW:
            self._loads = Loads()
            for each in self._all:
                self._loads.add(each)

    def remove(self, worker: Worker) -> None:
        self._all.remove(worker)
        if self._loads is not None:
            self._loads.remove(worker)

    def changed(self, worker: Worker) -> None:
        if self._loads is not None:
            self._loads.add(worker)

    def choose(self, open: Open) -> Worker | None:
        if self._loads is not None:
            bag = self._loads.least()
            return None if bag is None else bag.drawn(self._draw)
        workers = self._all.workers
        if len(workers) < 2:
            return workers[0] if workers else None
        loads = [worker.expected for worker in workers]
        least = min(loads)
        if loads.count(least) == 1:
            return workers[loads.index(least)]
        ties = [worker for worker, load in zip(workers, loads, strict=True) if load == least]
        return ties[self._draw(len(ties))]


class DeviceAwareWeighted:
    """Least loaded of the accelerators, until the CPUs are due a share: an accelerator is worth
    ``ratio`` CPU workers.

    A CPU worker is one whose device is ``cpu``; whatever has not said is an accelerator.
    """

    aware = True

    def __init__(self, draw: Draw, ratio: float) -> None:
        self._draw = draw
        self._ratio = ratio
        self._cpus, self._others = Loads(), Loads()

    def add(self, worker: Worker) -> None:
        own, other = self._cpus, self._others
        if worker.device.lower() != "cpu":
            own, other = other, own
        other.remove(worker)  # it may have said something else before
        own.add(worker)

    def remove(self, worker: Worker) -> None:
        self._cpus.remove(worker)
        self._others.remove(worker)

    def changed(self, worker: Worker) -> None:
        (self._cpus if worker in self._cpus else self._others).add(worker)

    def choose(self, open: Open) -> Worker | None:
        bag = (self._cpus if self._is_cpus_turn() else self._others).least()
        return None if bag is None else bag.drawn(self._draw)

    def _is_cpus_turn(self) -> bool:
        cpus, others = self._cpus, self._others
        if not cpus or not others:
            return bool(cpus)
        # cpus.total < others.total * len(cpus) // (ratio * len(others)), and a ratio such as 0.1 is
        # not made more or less of than it says.
        due = others.total * len(cpus) * (1 + 1e-9)
        return (cpus.total + 1) * self._ratio * len(others) <= due


class Direct:
    """The one that the request names."""

    aware = False

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}

    def add(self, worker: Worker) -> None:
        self._workers[worker.instance] = worker

    def remove(self, worker: Worker) -> None:
        if self._workers.get(worker.instance) is worker:
            del self._workers[worker.instance]

    def changed(self, worker: Worker) -> None:
        """No load is looked at."""

    def choose(self, open: Open) -> Worker | None:
        """Raises Unsupported for a request that names nobody."""
        if open.route is None or not open.route.instance:
            raise Unsupported(
                f"{open.target}: this router chooses nobody by itself (policy 'direct'); name a "
                "worker with the keyword instance=, or use another policy"
            )
        return self._workers.get(open.route.instance)


class Sticky:
    """Requests with the same text under ``key`` of their metadata go to the same worker, those
    without to the one that carries least.

    All routers agree on the worker. One that goes moves its own texts alone, and gets them back; a
    new one takes those only that are now its own.
    """

    aware = True

    def __init__(self, draw: Draw, key: str) -> None:
        self._key = key
        self._keyless = LeastLoaded(draw)
        self._rendezvous = Rendezvous()

    def add(self, worker: Worker) -> None:
        self._keyless.add(worker)
        self._rendezvous.add(worker)

    def remove(self, worker: Worker) -> None:
        self._keyless.remove(worker)
        self._rendezvous.remove(worker)

    def changed(self, worker: Worker) -> None:
        self._keyless.changed(worker)

    def choose(self, open: Open) -> Worker | None:
        text = open.metadata.get(self._key)
        # What is no text comes from no client of ours, and its worker refuses the request.
        if not text or not isinstance(text, str):
            return self._keyless.choose(open)
        return self._rendezvous.find(text)


class Everybody:
    """Holds the candidates for a policy that is asked elsewhere."""

    aware = False

    def __init__(self) -> None:
        self.bag = Bag()
        self.add = self.bag.add
        self.remove = self.bag.remove

    def changed(self, worker: Worker) -> None:
        """No load is looked at."""

    def choose(self, open: Open) -> Worker | None:
        """Nobody: it is asked for those whom a home has named only."""
        return None


_MAKERS: Final[dict[str, Callable[[Options, Draw], Policy]]] = {
    "least_loaded": lambda options, draw: LeastLoaded(draw),
    "round_robin": lambda options, draw: RoundRobin(draw),
    "random": lambda options, draw: Random(draw),
    "power_of_two_choices": lambda options, draw: PowerOfTwoChoices(draw),
    "device_aware_weighted": lambda options, draw: DeviceAwareWeighted(draw, options.device_ratio),
    "direct": lambda options, draw: Direct(),
    "sticky": lambda options, draw: Sticky(draw, options.sticky_key),
}
#: The ways in which a router can choose by itself, the usual one first.
MODES: Final = tuple(_MAKERS)


def make_policy(options: Options, draw: Draw) -> Policy:
    """The policy of a mode, for one endpoint. Raises SpecError for a mode that there is not."""
    make = _MAKERS.get(options.policy)
    if make is None:
        raise SpecError(f"policy {options.policy!r} is unknown; use one of {', '.join(MODES)}")
    return make(options, draw)
