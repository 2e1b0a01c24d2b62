"""Streams that wait at the router while every worker is busy, so that a burst waits and does not
fail.

They wait as long as they were told to at most, and not past their own deadline. Whoever is free
next gets the one whose turn it is. They can be cancelled as any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from actors.errors import AllBusy, CallHomeError, DeadlineExceeded
from actors.messages import Open, Record
from actors.router.asks import Ask, Done, priority_of
from actors.router.custom import UserPolicy
from actors.router.loads import Worker
from actors.router.lookup import Waiting
from actors.router.pool import Pool
from actors.router.relay import Plane
from actors.router.waiting import Lines
from transport.bus.address import Address
from transport.errors import LocalProtocolError, text_of

#: Bytes of the requests that wait.
_BYTES: Final = 256 << 20


class RouterQueue:
    """Made by a router. At most ``limit`` streams wait, ``timeout`` seconds each.

    ``again`` routes a stream to somebody who is free, lets none wait for an endpoint whose last
    worker has left, and else lets it stand where it stands; whether others may be tried at once,
    too. ``refused`` counts a stream that has waited in vain.

    While somebody is free and nothing is about to be tried (``closed``), all who wait are known to
    have no use for those who are free.
    """

    def __init__(
        self,
        plane: Plane,
        limit: int,
        timeout: float,
        again: Callable[[Queued], bool],
        refused: Callable[[CallHomeError], None],
    ) -> None:
        self.plane = plane
        self.refused = refused
        self._timeout = timeout
        self._again = again
        self._lines: Lines[Queued] = Lines(limit)
        self._bytes = 0
        self._woken: dict[str, Pool] = {}
        #: Of each endpoint the one for which the user's policy is choosing; it stays in the line.
        self._chosen_for: dict[str, Queued] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def waiting(self, endpoint: str) -> bool:
        """Whether somebody waits for this endpoint."""
        return self._lines.waiting(endpoint)

    def closed(self, pool: Pool) -> bool:
        """Whether who comes now lines up behind those who wait, any of whom may be the next: nobody
        is free, or it has not been seen yet for whom.
        """
        endpoint = pool.endpoint
        return self._lines.waiting(endpoint) and (
            not pool.free or endpoint in self._woken or endpoint in self._chosen_for
        )

    def put(self, open: Open, pool: Pool) -> None:
        """A stream lines up. Raises AllBusy when there is no place for it, ActorDead when its home
        is gone, RemoteProtocolError for a priority that is none.
        """
        priority = priority_of(open)
        relay = Queued(self, pool, open)
        size = len(open.payload)
        if self._lines and self._bytes + size > _BYTES:
            raise self._full(pool)
        loser = self._lines.put(open.target, priority, relay)
        if loser is relay:
            raise self._full(pool)
        if loser is not None:
            self._bytes -= len(loser.open.payload)
            loser.fail(self._full(loser.pool))
        try:
            self.plane.begin(relay)
        except BaseException:
            self._lines.leave(relay)
            raise
        self._bytes += size
        left = self._timeout if open.remaining is None else min(self._timeout, open.remaining)
        relay.await_until(left)

    def left(self, relay: Queued) -> None:
        """A stream waits no more, for whatever reason; heard of once or several times."""
        if self._lines.leave(relay):
            self._bytes -= len(relay.open.payload)
        if relay.ask is not None:
            relay.ask.withdraw()
            self.chosen(relay)
            self.wake(relay.pool)

    def choosing(self, endpoint: str) -> bool:
        """Whether the user's policy is choosing for one of those who wait."""
        return endpoint in self._chosen_for

    def choose(
        self, user: UserPolicy, relay: Queued, workers: Sequence[Worker], done: Done
    ) -> None:
        """Have the user's policy choose for one that stays in the line meanwhile."""
        endpoint = relay.pool.endpoint
        self._chosen_for[endpoint] = relay
        try:
            ask = user.ask(relay.resumed(), workers, done)
        except BaseException:
            self.chosen(relay)
            raise
        if self._chosen_for.get(endpoint) is relay:
            relay.ask = ask

    def chosen(self, relay: Queued) -> None:
        """The user's policy chooses for this one no more."""
        relay.ask = None
        if self._chosen_for.get(relay.pool.endpoint) is relay:
            del self._chosen_for[relay.pool.endpoint]

    def wake(self, pool: Pool) -> None:
        """Somebody is free, or the last worker has left: see to those who wait, once for all that
        happens in this turn.
        """
        if self._lines.waiting(pool.endpoint):
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._look)
            self._woken[pool.endpoint] = pool

    def _look(self) -> None:
        woken, self._woken = self._woken, {}
        for endpoint, pool in woken.items():
            while (pool.free or not pool.members) and (
                relay := self._lines.next(endpoint)
            ) is not None:
                if not self._try(relay):
                    break
                if relay in self._lines:  # none of those who are free is for this one
                    self._look_behind(pool, relay)
                    break

    def _look_behind(self, pool: Pool, first: Queued) -> None:
        for relay in self._lines.ordered(pool.endpoint):
            if not pool.free:
                break
            if relay is not first and relay in self._lines and not self._try(relay):
                break

    def _try(self, relay: Queued) -> bool:
        """Whether others may be tried, too."""
        try:
            return self._again(relay)
        except Exception as error:  # it costs this one; the others go on
            runtime = self.plane.runtime
            runtime.complain(f"a stream of {relay.target} that had waited", error)
            text = f"{relay.target}: {runtime.address.name} failed: {text_of(error)}"
            relay.fail(LocalProtocolError(text))
            self.left(relay)
            return True

    def _full(self, pool: Pool) -> AllBusy:
        return AllBusy(
            f"{pool.endpoint}: {len(self._lines)} streams wait at the router already, which is all "
            f"that it lets wait (queue), or they hold {_BYTES >> 20} MiB; {pool.busy_words()}"
        )

    def late(self, relay: Queued) -> CallHomeError:
        """What a stream is told that has waited in vain."""
        remaining = relay.open.remaining
        why = relay.pool.busy_words()
        if relay.ask is not None:
            why = "the policy of this router is choosing for it: it is too slow"
        if remaining is not None and remaining <= self._timeout:
            return DeadlineExceeded(
                f"{relay.target}: waited for a worker until its deadline ({remaining:.3g} s); "
                f"{why}",
                limit="total",
            )
        return AllBusy(
            f"{relay.target}: waited {time.monotonic() - relay.since:.3g} s for a worker "
            f"(queue_timeout); {why}"
        )


class Queued(Waiting):
    """One stream in the line."""

    __slots__ = ("_queue", "ask", "pool")

    def __init__(self, queue: RouterQueue, pool: Pool, message: Open) -> None:
        nobody = Address(message.target, 0, 0, 0)
        super().__init__(queue.plane, message, Record(0, nobody, "engine", message.target))
        self._queue = queue
        self.pool = pool
        #: While the user's policy chooses for it.
        self.ask: Ask | None = None

    def cancel(self, reason: str) -> None:
        self._queue.left(self)
        super().cancel(reason)

    def finish(self, error: CallHomeError | None = None, total: int | None = None) -> None:
        self._queue.left(self)
        super().finish(error, total)

    def blame(self, error: CallHomeError) -> None:
        """No worker has anything to do with it: the router has refused it."""
        self._queue.refused(error)

    def expired(self) -> CallHomeError:
        return self._queue.late(self)
