"""One worker in its pool: whether it is busy, ill, or left alone for having refused a stream.

Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from actors.kernel.verdicts import ILLNESSES
from actors.router.occupancy import Carried

if TYPE_CHECKING:
    from actors.router.pool import Pool

#: A limit that nobody reaches.
NEVER: Final = 1 << 62
#: What a worker can be, as ``callhome ps`` shows it.
FREE, BUSY, LEASED, QUARANTINED, TRIAL = "free", "busy", "leased", "quarantined", "trial"
#: Those that get no stream for a cause of their own: not the same as having no room.
AWAY: Final = (QUARANTINED, TRIAL, *ILLNESSES)


class Limits:
    """From when on a worker is busy, for all endpoints of a router.

    ``streams``: from this many on; ``fraction``: from this part of its capacity on. ``lease``: how
    long one that has refused a stream is left alone, in seconds. ``queue``: whether streams may
    wait.
    """

    def __init__(
        self,
        streams: int | None = None,
        fraction: float | None = None,
        lease: float = 1.0,
        queue: bool = False,
    ) -> None:
        self.streams = streams
        self.fraction = fraction
        self.lease = lease
        self.queue = queue

    def of(self, capacity: int) -> int:
        """Streams with which a worker of this capacity is busy; 0 is an unknown capacity."""
        limit = NEVER if self.streams is None else self.streams
        if self.fraction is not None and capacity > 0:
            limit = min(limit, max(1, math.ceil(self.fraction * capacity)))
        return limit


class Member:
    """One worker in its pool."""

    __slots__ = (
        "busy",
        "capacity",
        "carried",
        "free",
        "ill",
        "ill_since",
        "ill_why",
        "lease",
        "limit",
        "pool",
        "queued",
        "sent",
        "seq",
        "settled",
        "shown",
        "struck",
        "trial",
    )

    def __init__(self, pool: Pool, carried: Carried) -> None:
        self.pool = pool
        self.carried = carried
        self.capacity = carried.capacity
        #: Streams with which it is busy.
        self.limit = NEVER
        self.busy = False
        #: The policy has it.
        self.free = False
        #: One of ``ILLNESSES``, as whoever looks after its process tells, since when (clock), and
        #: why, where that says more; "" where it is well.
        self.ill = ""
        self.ill_since = 0.0
        self.ill_why = ""
        #: Until when it is left alone for having refused a stream (clock; 0: it is not); the number
        #: of its report, the streams that waited there and those of ours that were sent and had
        #: settled when it did, the refused one among both.
        self.lease = 0.0
        self.seq = 0
        self.queued = 0
        self.sent = 0
        self.settled = 0
        #: Its state when it was last looked at.
        self.shown = FREE
        #: When its last refusal or fault was seen here.
        self.struck = -math.inf
        #: Of the streams that were ever sent to it the one that tries it, by its number.
        self.trial = 0

    def watched(self, carried: Carried) -> None:
        """Its load or its report has changed, and something hangs on it."""
        if (
            (carried.load >= self.limit) != self.busy
            or carried.capacity != self.capacity
            or (self.lease and self._has_room())
        ):
            self.pool.update(self)
        elif self.free and self.pool.policy.aware:
            self.pool.stale.add(carried)

    def refuse(self, now: float, *, settled: bool) -> None:
        """It has refused a stream for want of room. One that tells, by now, of room has it.

        ``settled``: that stream has no permit any more; else it comes back next.
        """
        carried = self.carried
        self.struck = now
        told = not carried.record.via and carried.seq > 0
        if told and carried.in_flight < carried.capacity:
            return
        self.lease = now + self.pool.limits.lease
        self.pool.troubled()
        self.seq, self.queued = carried.seq, carried.queued
        self.sent, self.settled = carried.sent, carried.settled + (not settled)

    def _has_room(self) -> bool:
        """Whether it tells of room since it refused, or one of our streams there has ended: of a
        worker elsewhere that is known before it tells, if it ever does.
        """
        carried = self.carried
        # The refused one may have been taken back instead: then fewer were sent.
        ended = carried.settled + max(0, self.sent - carried.sent)
        if carried.record.via and ended > self.settled:
            return True
        return carried.seq > self.seq and (
            carried.in_flight < carried.capacity or carried.queued < self.queued
        )

    @property
    def tried(self) -> bool:
        """Whether it tells that the stream which tries it has come; a worker of this node does."""
        carried = self.carried
        return not carried.record.via and carried.sent - carried.unseen >= self.trial

    def look(self) -> None:
        """See afresh whether it is busy, or left alone."""
        carried = self.carried
        self.capacity = carried.capacity
        self.limit = self.pool.limits.of(carried.capacity)
        self.busy = carried.load >= self.limit
        if self.lease and self._has_room():
            self.lease = 0.0

    @property
    def state(self) -> str:
        """What it is now, in one word."""
        if self.ill:
            return self.ill
        faults, instance = self.pool.faults, self.carried.instance
        if faults.rests(instance):
            return TRIAL if faults.tried(instance) else QUARANTINED
        if self.lease:
            return LEASED
        return BUSY if self.busy else FREE
