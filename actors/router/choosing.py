"""What becomes of an Open that is to be routed: chosen, booked and dispatched in one step, or held,
lined up or refused.

Nothing is awaited between the choice and the booking, so two streams never see the same load. A
stream that has to wait for anything is a ``Waiting`` relay, which can be cancelled; it has no
permit until somebody was chosen for it.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Final, cast

from actors.errors import AllBusy, CallHomeError, DeadlineExceeded
from actors.kernel.runtime import Runtime
from actors.messages import End, Open, Record, Route
from actors.metrics import Counters
from actors.router.asks import Ask
from actors.router.custom import UserPolicy
from actors.router.dispatch import StreamingDispatch, too_large
from actors.router.faults import FAULTS, OVERLOADED, SILENT, code_of
from actors.router.held import HeldStreams
from actors.router.loads import Worker
from actors.router.lookup import Waiting
from actors.router.members import Members
from actors.router.occupancy import Carried, Occupancy
from actors.router.options import Options
from actors.router.pool import Pool
from actors.router.queued import Queued, RouterQueue
from actors.router.relay import Plane
from actors.router.unserved import Knowledge
from transport.bus.address import Address
from transport.errors import LocalProtocolError, RemoteProtocolError, TooLarge, to_wire

#: What a dispatch may raise of one worker while another takes the stream.
_ELSEWHERE: Final = FAULTS | {OVERLOADED, "outbox.full", "actor.dead"}


class Choosing:
    """Made by a router when it starts. ``user`` asks a policy of the user's own, if it has one."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        counters: Counters,
        occupancy: Occupancy,
        members: Members,
        plane: Plane,
        knowledge: Knowledge,
        user: UserPolicy | None,
    ) -> None:
        self._runtime = runtime
        self._counters = counters
        self._occupancy = occupancy
        self._members = members
        self._pools = members.pools
        self._plane = plane
        self._knowledge = knowledge
        self._user = user
        self.held = HeldStreams(plane, self._is_ready, self.route, self._late)
        self.queue: RouterQueue | None = None
        if options.queue:
            self.queue = RouterQueue(
                plane, options.queue, options.queue_timeout, self._again, self.refused
            )
            members.when_removed.append(self._left)
        #: Not every choice is made at once.
        self._waits = self.queue is not None or user is not None
        #: What streams go by, and what this router's own do; set before the first one comes.
        self.dispatch: StreamingDispatch
        self.standard: StreamingDispatch

    def route(self, m: Open) -> None:
        """Choose, book, dispatch. Raises RemoteProtocolError for a stream that is here already."""
        pool = self._pools.get(m.target)
        if pool is None or not pool.members:
            self._unserved(m)
            return
        if self._occupancy.find(m.home.incarnation, m.stream) is not None:
            raise RemoteProtocolError(f"stream {m.stream} of {m.home} was opened twice")
        if self._waits:
            self._route_or_wait(m, pool)
            return
        try:
            worker = pool.choose(m)
        except CallHomeError as error:
            self.refuse(m, error)
            return
        self._occupancy.book(worker, m.home, m.stream)
        self.begin(m, worker.record, self.dispatch)

    def freed(self, pool: Pool) -> None:
        """Somebody has become free."""
        if self.queue is not None:
            self.queue.wake(pool)

    def _left(self, record: Record, reason: str) -> None:
        """A worker is gone: nobody waits for the last one."""
        pool = self._pools.get(record.endpoint)
        if pool is not None and not pool.members and self.queue is not None:
            self.queue.wake(pool)

    # Streams that may have to wait.

    def _route_or_wait(self, m: Open, pool: Pool) -> None:
        if self._plane.find(m.home.incarnation, m.stream) is not None:
            raise RemoteProtocolError(f"stream {m.stream} of {m.home} was opened twice")
        pinned = m.route is not None and m.route.instance
        try:
            if self.queue is not None and not pinned and self.queue.closed(pool):
                self.queue.put(m, pool)
            elif self._user is not None and not pinned:
                self._ask(self._user, pool, m)
            else:
                worker = pool.pick(m)
                if worker is None:
                    self._line_up(m, pool)
                else:
                    self._book(m, worker)
        except CallHomeError as error:
            self.refuse(m, error)

    def _book(self, m: Open, worker: Carried) -> None:
        self._occupancy.book(worker, m.home, m.stream)
        self.begin(m, worker.record, self.dispatch)

    def _line_up(self, m: Open, pool: Pool) -> None:
        """Nobody is free: wait, where the router lets wait. Raises AllBusy, NoWorkers."""
        if self.queue is None or (m.route is not None and m.route.avoid):
            error = pool.none(m)
            if self.queue is None or not isinstance(error, AllBusy):
                raise error
        self.queue.put(m, pool)

    def _again(self, relay: Queued) -> bool:
        """Somebody is free, or nobody is left: then it is routed as one that comes now. A stream
        goes out of the line as soon as somebody was chosen for it, or it failed; else it keeps its
        place, and others may be tried.
        """
        if not relay.pool.members:
            self._leave(relay)
            self.route(relay.resumed())
            return True
        try:
            if self._user is not None:
                return self._ask_again(self._user, relay)
            worker = relay.pool.pick(relay.open)
            if worker is not None:
                self._leave(relay)
                self._book(relay.resumed(), worker)
        except CallHomeError as error:
            self._leave(relay)
            self.refuse(relay.open, error)
        return True

    def _leave(self, relay: Queued) -> None:
        assert self.queue is not None
        self.queue.left(relay)
        if not relay.over:
            self._plane.undo(relay)

    def _ask_again(self, user: UserPolicy, relay: Queued) -> bool:
        """As ``_again``, one after the other: what is chosen for one is seen by the next."""
        queue, pool = self.queue, relay.pool
        assert queue is not None
        if queue.choosing(pool.endpoint):
            return False
        candidates = pool.candidates(relay.open)
        if not candidates:
            return True
        queue.choose(user, relay, candidates, partial(self._answered_again, relay))
        return False

    def _answered_again(self, relay: Queued, found: Worker | CallHomeError | None) -> None:
        assert self.queue is not None
        self.queue.chosen(relay)
        pool, m = relay.pool, relay.resumed()
        if isinstance(found, CallHomeError):
            self._leave(relay)
            self.refuse(m, found)
        elif found is not None and (worker := _there(pool, found)) is not None:
            self._leave(relay)
            self._book(m, cast(Carried, pool.chosen(m, worker)))
        # Else whoever it could have had is gone.
        if pool.free:
            self.freed(pool)

    def _ask(self, user: UserPolicy, pool: Pool, m: Open) -> None:
        """Have the user's policy choose; the stream waits for that."""
        candidates = pool.candidates(m)
        if not candidates:
            self._line_up(m, pool)
            return
        relay = _Asking(self, self._plane, m)
        self._plane.begin(relay)
        relay.await_until(math.inf if m.remaining is None else m.remaining)
        try:
            relay.ask = user.ask(m, candidates, partial(self._answered, pool, relay))
        except BaseException:
            if not relay.over:
                self._plane.undo(relay)
            raise

    def _answered(self, pool: Pool, relay: _Asking, found: Worker | CallHomeError | None) -> None:
        self._plane.undo(relay)
        m = relay.resumed()
        try:
            if isinstance(found, CallHomeError):
                self.refuse(m, found)
            elif found is not None and (worker := _there(pool, found)) is not None:
                self._book(m, cast(Carried, pool.chosen(m, worker)))
            elif found is None and pool.members:
                self._line_up(m, pool)
            else:
                self.route(m)  # it left while it was being chosen
        except CallHomeError as error:
            self.refuse(m, error)

    # The dispatch.

    def begin(self, m: Open, worker: Record, way: StreamingDispatch) -> None:
        """Dispatch a stream. What goes wrong before anything was sent moves it to another worker,
        its booking with it, or is told to its home.
        """
        first = error = self._dispatch(m, worker, way)
        avoid: list[list[object]] = []
        while error is not None and first is not None:
            code = code_of(error)
            other = None
            if self._unbook(m, code) and self._may_move(m, worker, code, len(avoid)):
                avoid.append([worker.instance, code])
                other = self._other(m, avoid)
            if other is None:
                self.refuse(m, first)
                return
            self._occupancy.book(other, m.home, m.stream)
            worker = other.record
            error = self._dispatch(m, worker, self.dispatch)

    def _dispatch(self, m: Open, worker: Record, way: StreamingDispatch) -> CallHomeError | None:
        try:
            if m.many:
                way.generate_bidirectional(m, worker, m.home)
            else:
                way.generate(m, worker, m.home)
            return None
        except CallHomeError as failure:
            error = too_large(m, failure) if type(failure) is TooLarge else failure
            if code_of(error) in _ELSEWHERE:
                error.details.setdefault("sent", "no")
            error.details.setdefault("instance", str(worker.instance))
            return error
        except Exception as failure:
            self._unbook(m, SILENT)
            self.refuse(m, LocalProtocolError(f"{m.target}: {self._name} failed: {failure}"))
            raise  # a bug: it is logged

    @property
    def _name(self) -> str:
        return self._runtime.address.name

    def _unbook(self, m: Open, code: str) -> bool:
        """The stream never left: its booking is taken back, a fault is noted; False where there was
        none.
        """
        worker = self._occupancy.find(m.home.incarnation, m.stream)
        if worker is None:
            return False
        code = code if code in FAULTS or code == OVERLOADED else SILENT
        if code != SILENT or self._members.troubled:
            self._members.ended(worker, (m.home.incarnation, m.stream), code)
        self._occupancy.unbook(m.home, m.stream)
        return True

    def _may_move(self, m: Open, worker: Record, code: str, moved: int) -> bool:
        """Whether another may have the stream: its frames are at hand, and it asks for nobody."""
        if code not in _ELSEWHERE or moved >= self._runtime.settings.retry_limit:
            return False
        if m.handles and worker.via:
            return False
        return m.route is None or not m.route.instance

    def _other(self, m: Open, avoid: list[list[object]]) -> Carried | None:
        route = m.route or Route()
        wanted = m._replace(route=route._replace(avoid=[*route.avoid, *avoid]))
        pool = self._pools.get(m.target)
        try:
            return None if pool is None or self._user is not None else pool.pick(wanted)
        except CallHomeError:
            return None

    # Nobody.

    def _unserved(self, m: Open) -> None:
        """Nobody serves it, unless it is another node's list of records, which we follow, or it is
        not known yet what others serve.
        """
        door = self._knowledge.door(m.home, m.target)
        if door is not None:
            self.begin(m, door, self.standard)
            return
        knowledge = self._knowledge
        try:
            held = knowledge.is_early() and self.held.hold(m, knowledge.patient)
        except CallHomeError as error:
            self.refuse(m, error)
            return
        if not held:
            self.refuse(m, knowledge.nobody(m.target))

    def _is_ready(self, target: str) -> bool:
        """Whether a stream that waits can be told something."""
        pool = self._pools.get(target)
        return (pool is not None and bool(pool.members)) or not self._knowledge.is_early()

    def _late(self, target: str) -> CallHomeError:
        """What a stream is told that has waited for somebody to be found."""
        error = self._knowledge.nobody(target)
        self.refused(error)
        return error

    def refused(self, error: CallHomeError) -> None:
        """Count a stream that does not begin."""
        self._counters.refused += 1
        self._counters.failed(error)

    def refuse(self, m: Open, error: CallHomeError) -> None:
        """Tell a home that its stream does not begin."""
        self.refused(error)
        self._runtime.port.send(m.home, End(m.stream, 0, to_wire(error)), size=512)


def _there(pool: Pool, found: Worker) -> Carried | None:
    """Who was chosen a moment ago; None: he has left."""
    member = pool.members.get(found.instance)
    return member.carried if member is not None and member.carried is found else None


class _Asking(Waiting):
    """A stream for which the user's policy is choosing a worker."""

    __slots__ = ("_choosing", "ask")

    def __init__(self, choosing: Choosing, plane: Plane, message: Open) -> None:
        nobody = Address(message.target, 0, 0, 0)
        super().__init__(plane, message, Record(0, nobody, "engine", message.target))
        self._choosing = choosing
        self.ask: Ask | None = None

    def cancel(self, reason: str) -> None:
        self._withdraw()
        super().cancel(reason)

    def finish(self, error: CallHomeError | None = None, total: int | None = None) -> None:
        self._withdraw()
        super().finish(error, total)

    def _withdraw(self) -> None:
        if self.ask is not None:
            self.ask.withdraw()

    def blame(self, error: CallHomeError) -> None:
        """No worker has anything to do with it: the router has refused it."""
        self._choosing.refused(error)

    def expired(self) -> CallHomeError:
        waited = time.monotonic() - self.since
        return DeadlineExceeded(
            f"{self.target}: no worker was chosen within {waited:.3g} s, its deadline: the policy "
            "of this router is too slow",
            limit="total",
        )
