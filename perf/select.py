"""What one selection costs inside a router: the very objects that it chooses and books with.

``routing.select.MODE.WORKERS``, in one process and without any message. ``us``: find the pool of
the endpoint, choose, book. ``choose_us``: the first two alone. ``settle_us``: give the permit back.
The workers carry a few streams each, and a permit comes back for each that was taken, in another
order. Times are those of the processor: nobody else's work is in them.

``sticky`` chooses by keys that it has met before, ``sticky_cold`` by new ones, which takes a look
at every worker. ``user`` is a function of the user's own that looks at every worker, too, and runs
in a thread; its time is that of the clock.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from actors.messages import Open, Record, Route
from actors.router.custom import LIMIT, RoutedRequest, UserPolicy, WorkerView
from actors.router.faults import Faults
from actors.router.member import Limits
from actors.router.occupancy import Carried, Occupancy
from actors.router.options import Options
from actors.router.policy import MODES, Everybody, Policy, make_policy
from actors.router.pool import Pool
from perf.figures import Sample
from perf.plan import PerfError, Plan
from transport.bus.address import Address

ENDPOINT = "perf.routing.select"
SIZES = (10, 1_000, 10_000)
#: Selections of one round, and rounds that count, after one that does not.
COUNT, ROUNDS = 2_000, 7
#: Texts of requests in the sticky mode.
_KEYS = 64
#: Looks at a worker that a round of sticky_cold or user may take.
_LOOKS = 100_000
_HOME = Address("client", 1, 1, 1)


def select(plan: Plan) -> list[Sample]:
    """The figures of every mode at every size."""
    samples = []
    for size in SIZES[: plan.count(len(SIZES), least=2)]:
        for mode in MODES:
            samples += _mode(plan, mode, size)
        samples += _mode(plan, "sticky", size, cold=True)
    return samples


async def select_by_user(plan: Plan) -> list[Sample]:
    """The figures of a policy of the user's own; it needs a loop."""
    samples = []
    for size in SIZES[: plan.count(len(SIZES), least=2)]:
        stand = _Stand("user", size, min(plan.count(COUNT, least=10), max(5, _LOOKS // size)))
        times = [await stand.ask() for _ in range(1 + plan.count(3))]
        samples.append(_sample("user", size, "us", times[1:]))
    return samples


def _mode(plan: Plan, mode: str, size: int, cold: bool = False) -> list[Sample]:
    count = plan.count(COUNT, least=50)
    if cold:
        count = min(count, max(5, _LOOKS // size))
    stand = _Stand(mode, size, count)
    booked, chosen, settled = [], [], []
    for turn in range(1 + plan.count(ROUNDS)):
        stand.open(turn if cold else 0)
        chosen.append(0.0 if cold else stand.choose())
        booked.append(stand.book())
        settled.append(stand.settle())
    name = "sticky_cold" if cold else mode
    samples = [_sample(name, size, "us", booked[1:]), _sample(name, size, "settle_us", settled[1:])]
    return samples if cold else [*samples, _sample(name, size, "choose_us", chosen[1:])]


def _sample(mode: str, size: int, metric: str, times: Sequence[float]) -> Sample:
    name = f"routing.select.{mode}.{size}"
    return Sample("routing", name, metric, "us", statistics.median(times))


def _shortest(workers: Sequence[WorkerView], request: RoutedRequest) -> WorkerView:
    """A policy as a user may write it."""
    return min(workers, key=lambda worker: worker.load)


class _Stand:
    """One router's knowledge of one endpoint, and requests for it. Times are microseconds each."""

    def __init__(self, mode: str, size: int, count: int) -> None:
        self._mode = mode
        self._count = count
        self._chance = random.Random(size)
        self._occupancy = Occupancy()
        policy: Policy = Everybody()
        if mode != "user":
            policy = make_policy(Options(policy=mode), self._chance.randrange)
        pool = Pool(ENDPOINT, policy, Limits(), Faults(5.0, 60.0), time.monotonic)
        for number in range(1, size + 1):
            address = Address(f"engine-{number}", number << 32, number, number)
            device = "cpu" if number % 4 == 0 else "cuda"
            record = Record(
                number << 32, address, "engine", ENDPOINT, capacity=64, device=device
            )  # fmt: skip
            pool.add(self._occupancy.add(record))
        self._pools = {ENDPOINT: pool}
        self._instances = list(pool.members)
        self._opens: list[Open] = []
        self.open(0)

    def open(self, turn: int) -> None:
        """Make the requests; those of another ``turn`` have other keys."""
        self._opens = [self._request(number, turn) for number in range(self._count)]

    def _request(self, number: int, turn: int) -> Open:
        route, metadata = None, {}
        if self._mode == "direct":
            route = Route(self._chance.choice(self._instances))
        elif self._mode == "sticky":
            key = number if turn else number % _KEYS
            metadata = {"session": f"{turn} {key}"}
        empty: list[object] = []
        # fmt: off
        return Open(
            number, _HOME, ENDPOINT, False, "msgpack", True, b"", empty, empty, 256, 1 << 24, None,
            metadata, "", None, [], route,
        )
        # fmt: on

    def choose(self) -> float:
        """Choose for every request, and book none."""
        pools = self._pools
        start = time.thread_time()
        for each in self._opens:
            pools[each.target].choose(each)
        return self._each(start)

    def book(self) -> float:
        """Choose and book as the router does, for every request."""
        pools, occupancy = self._pools, self._occupancy
        start = time.thread_time()
        for each in self._opens:
            pool = pools.get(each.target)
            if pool is None or occupancy.find(each.home.incarnation, each.stream) is not None:
                raise PerfError("a request was booked before")
            occupancy.book(pool.choose(each), each.home, each.stream)
        return self._each(start)

    def settle(self) -> float:
        """Give all permits back."""
        occupancy = self._occupancy
        keys = [(each.home.incarnation, each.stream) for each in self._opens]
        self._chance.shuffle(keys)
        start = time.thread_time()
        for key in keys:
            occupancy.settle(key)
        taken = self._each(start)
        if occupancy.permits():
            raise PerfError(f"{occupancy.permits()} permits did not come back")
        return taken

    async def ask(self) -> float:
        """Have the user's function choose for every request, one after the other, and book."""
        loop = asyncio.get_running_loop()
        user = UserPolicy(_shortest, "perf.select:_shortest", LIMIT, loop)
        pool = self._pools[ENDPOINT]
        start = time.perf_counter()
        try:
            for each in self._opens:
                told: asyncio.Future[object] = loop.create_future()
                user.ask(each, pool.candidates(each), told.set_result)
                worker = await told
                if not isinstance(worker, Carried):
                    raise PerfError(f"nobody was chosen: {worker}")
                self._occupancy.book(worker, each.home, each.stream)
            taken = (time.perf_counter() - start) / self._count * 1e6
        finally:
            user.close()
        self.settle()
        return taken

    def _each(self, start: float) -> float:
        return (time.thread_time() - start) / self._count * 1e6
