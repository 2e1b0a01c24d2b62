"""Keeps shared memory no longer than it is used, and tells who has it. Used by a runtime, on its
loop.

Segments in which nothing was in use for ``arena_idle`` seconds go back to the system; peers that
have them mapped are told. A timer looks after them as long as there are any, nothing on the way of
a frame does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from actors.notices import Retired
from transport.bus.address import Address
from transport.shm.memory import Memory
from transport.shm.slots import Lease

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: Looks within the time after which a segment is idle, so that it goes little later than that.
_LOOKS = 4
#: Leases that are told one by one; those are the oldest.
_LEASES = 200


class Keeping:
    """The shared memory of one runtime as time goes by."""

    def __init__(self, runtime: Runtime, memory: Memory) -> None:
        self._runtime = runtime
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._idle = runtime.settings.arena_idle
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        memory.watch(self._changed, self._name)
        runtime.on(Retired, self._retired)

    def account(self) -> dict[str, Any]:
        """What ``callhome ps --memory`` shows of this process: ``limit``, ``segments``,
        ``leases`` (the oldest, and how many ``more``), what is ``borrowed`` from others, what of
        that is held for whom it was ``passed`` on to, and who is ``waiting``; by which ``road`` the
        ``readers`` of this memory reach it. Sizes in bytes, ages in seconds.
        """
        now, found = time.monotonic(), self._memory.account()
        passed = list(islice(self._memory.passing.leases(), _LEASES))
        leases = sorted(found.leases, key=_since)
        return {
            "limit": self._runtime.settings.arena_limit,
            "segments": [each._asdict() for each in found.segments[:_LEASES]],
            "leases": [self._lease(each, now) for each in leases[:_LEASES]],
            "more": max(len(leases) - _LEASES, 0),
            "borrowed": [
                {
                    **self._who(each.owner),
                    "segments": each.segments,
                    "frames": each.frames,
                    "size": each.size,
                    "age": round(now - each.since, 3) if each.since else None,
                    "unopened": each.expected,
                    "road": self._memory.reading.roads.taken(each.owner),
                }
                for each in found.borrowed[:_LEASES]
            ],
            "passed": [
                {
                    **(
                        {"actor": None, "pid": None}
                        if each.borrower < 0
                        else self._who(each.borrower)
                    ),
                    "owner": self._who(each.owner)["actor"],
                    "stream": each.stream,
                    "size": each.size,
                    "age": round(now - each.since, 3) if each.since else None,
                }
                for each in passed
            ],
            "readers": [
                {**self._who(peer), "road": road}
                for peer, road in islice(self._memory.readers.roads(), _LEASES)
            ],
            "waiting": [
                {"size": each.size, "age": round(now - each.since, 3)}
                for each in found.waiting[:_LEASES]
            ],
        }

    def _lease(self, lease: Lease, now: float) -> dict[str, Any]:
        who = {"actor": None, "pid": None} if lease.borrower is None else self._who(lease.borrower)
        age = round(now - lease.since, 3)
        return {**who, "stream": lease.stream, "size": lease.size, "age": age}

    def _who(self, incarnation: int) -> dict[str, Any]:
        """Name and pid of a peer; of one that never introduced itself, only its number."""
        address = self._find(incarnation)
        if incarnation == self._runtime.address.incarnation:
            address = self._runtime.address
        if address is None:
            return {"actor": f"{incarnation:x}", "pid": None}
        return {"actor": address.name, "pid": address.pid}

    def _name(self, incarnation: int) -> str:
        """In any thread: it only looks something up."""
        runtime = self._runtime
        found = runtime.links.parted.name(incarnation) or runtime.peers.find(incarnation)
        return str(found or f"{incarnation:x}")

    def _find(self, incarnation: int) -> Address | None:
        """A peer, or one who has closed and looks at our memory all the same."""
        runtime = self._runtime
        return runtime.peers.find(incarnation) or runtime.links.parted.find(incarnation)

    def _changed(self) -> None:
        """In any thread: segments were made, mapped or given back."""
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._closed:
            return
        self._tell(self._memory.retired().items())
        if self._idle and self._timer is None:
            self._timer = self._loop.call_later(self._idle / _LOOKS, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        left = self._memory.sweep(self._idle)
        self._tell(self._memory.retired().items())
        if left and self._timer is None:
            self._timer = self._loop.call_later(self._idle / _LOOKS, self._sweep)

    def _tell(self, retired: Iterable[tuple[int, list[int]]]) -> None:
        for incarnation, numbers in retired:
            peer = self._runtime.peers.find(incarnation)
            if peer is not None:
                self._runtime.port.send(peer, Retired(numbers), control=True)

    def _retired(self, sender: int, m: Retired) -> None:
        self._memory.reading.retire(sender, [each for each in m.segments if type(each) is int])

    def close(self) -> None:
        """Look no more; the memory itself is closed by ``Links``."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def _since(lease: Lease) -> float:
    return lease.since
