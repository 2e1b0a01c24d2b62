"""What workers on other nodes carry: follows the ingress of each node of ours that is known.

It tells the load of each of its engines at a reserved path, as a stream like any other. The router
opens it as its own client, once an ingress, and keeps it while it knows a record there. Where
nobody tells (an older node, or one that is away) a worker's load is what this router has with it,
and the node is asked again with growing pauses, of which nothing is heard in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from actors.discovery.loads import FOLLOWS, OCCUPANCY, Ill, Load, read_ill, read_loads
from actors.discovery.record import SPEAKS
from actors.errors import CallHomeError, Draining
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Record
from actors.router.occupancy import Occupancy, Place, place_of
from transport.bus.address import Address
from transport.errors import shown

log = logging.getLogger("callhome")

#: Ingresses that are followed at the same time; the workers of further ones go by own counts.
MOST: Final = 1024
#: Pauses between two attempts, in seconds: the first, and the longest. It is told there, too, whose
#: process is frozen: behind a cable that is plugged in again that must not be missing for long.
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
#: Loads that are kept of one ingress; those of engines whose record has not come yet are among
#: them.
_LOADS: Final = 65_536
_PREFIX: Final = "callhome.occupancy@"


class _Followed:
    """One ingress: whom we know behind it, and what it told."""

    def __init__(self) -> None:
        self.places: dict[int, set[Place]] = {}
        self.newest: dict[int, Load] = {}
        #: Those that are frozen, stalled or unready there.
        self.ill: dict[int, Ill] = {}
        self.task: asyncio.Task[None] | None = None


class RemoteReports:
    """Brings the loads of workers on other nodes into ``occupancy``; used by a router, on its loop.

    The router says which records it has come to know and which are gone, and answers a stream of
    its own with the record that ``find`` gives.
    """

    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        occupancy: Occupancy,
        judge: Callable[[int, str, float, str, str], None] = lambda *_: None,
    ) -> None:
        """``judge`` takes how a worker is; see ``Members.judge``."""
        self._runtime = runtime
        self._tasks = tasks
        self._occupancy = occupancy
        self._judge = judge
        self._followed: dict[str, _Followed] = {}
        #: Those that have no place among ``MOST``; they get one when another node is gone.
        self._beyond: dict[str, _Followed] = {}
        self._full = False

    def known(self, record: Record) -> None:
        """A worker can serve; one of a node that tells no loads is none of ours."""
        if not record.via or record.speaks != SPEAKS:
            return
        address = record.via.partition("/")[0]
        followed = self._followed.get(address) or self._beyond.get(address)
        if followed is None:
            followed = _Followed()
            if len(self._followed) < MOST:
                self._begin(address, followed)
            else:
                self._beyond[address] = followed
                self._warn()
        followed.places.setdefault(record.instance, set()).add(place_of(record))
        load = followed.newest.get(record.instance)
        if load is not None:
            self._take(followed, load)
        if record.instance in followed.ill:
            self._tell(followed, record.instance)

    def _begin(self, address: str, followed: _Followed) -> None:
        self._followed[address] = followed
        name = f"{self._runtime.address.name} follows the loads of {address}"
        followed.task = self._tasks.create_task(self._follow(address, followed), name=name)

    def gone(self, record: Record) -> None:
        """A worker gets no new streams; with the last of its ingress that is not followed."""
        address = record.via.partition("/")[0]
        followed = self._followed.get(address) or self._beyond.get(address)
        places = None if followed is None else followed.places.get(record.instance)
        if followed is None or places is None:
            return
        places.discard(place_of(record))
        if not places:
            del followed.places[record.instance]
        if followed.places:
            return
        if followed.task is None:
            del self._beyond[address]
            return
        followed.task.cancel()
        del self._followed[address]
        if self._beyond:
            address = next(iter(self._beyond))
            self._begin(address, self._beyond.pop(address))

    def stop(self) -> None:
        """Follow nobody any more."""
        for followed in self._followed.values():
            if followed.task is not None:
                followed.task.cancel()
        self._followed.clear()
        self._beyond.clear()

    def find(self, home: Address, target: str) -> Record | None:
        """The ingress that is meant by a stream of this router's own; None for all others."""
        if home != self._runtime.address or not target.startswith(_PREFIX):
            return None
        address = target.removeprefix(_PREFIX)
        name = Address(f"occupancy@{address}", 0, 0, 0)
        return Record(0, name, "engine", target, via=f"{address}/{OCCUPANCY}", speaks=SPEAKS)

    def _warn(self) -> None:
        if not self._full:
            self._full = True
            log.warning(
                "%s: %d nodes tell it what their workers carry; those of further ones go by what "
                "it sends them itself", self._runtime.address.name, MOST,
            )  # fmt: skip

    async def _follow(self, address: str, followed: _Followed) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._read(address, followed)
            except Draining:
                pause = _FIRST_PAUSE  # another ingress has its place, and tells the same anew
            except CallHomeError as error:
                log.debug(
                    "%s: %s does not tell what its workers carry: %s",
                    self._runtime.address.name, shown(address), error,
                )  # fmt: skip
            except Exception as failure:  # costs what one node tells, and not the router
                self._runtime.complain(f"following the loads of {shown(address)}", failure)
            if followed.newest:
                pause = _FIRST_PAUSE
            self._forget(followed)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _read(self, address: str, followed: _Followed) -> None:
        own = self._runtime.address
        caller = Caller(self._runtime, lambda _: own)
        limit = self._runtime.settings.prologue_timeout
        async with caller.stream(
            f"{_PREFIX}{address}", FOLLOWS, first_item_timeout=limit, gap_timeout=None
        ) as items:
            async for item in items:
                for load in read_loads(item):
                    self._hear(followed, load)
                if (ill := read_ill(item)) is not None:
                    self._hear_ill(followed, ill)

    def _hear(self, followed: _Followed, load: Load) -> None:
        newest = followed.newest
        known = newest.get(load.instance)
        if known is not None and load.seq <= known.seq:
            return
        if known is None and len(newest) >= _LOADS:
            # Most likely of an engine that is long gone; of others there will be word again.
            del newest[next(iter(newest))]
        newest[load.instance] = load
        self._take(followed, load)

    def _take(self, followed: _Followed, load: Load) -> None:
        for place in followed.places.get(load.instance, ()):
            worker = self._occupancy.workers.get(place)
            if worker is not None:
                self._occupancy.hear(worker, *load[1:])

    def _hear_ill(self, followed: _Followed, ill: list[Ill]) -> None:
        """Who is frozen, stalled or unready there; all others are well."""
        before, now = followed.ill, time.monotonic()
        followed.ill = {each.instance: each._replace(since=now - each.since) for each in ill}
        for instance in before.keys() | followed.ill.keys():
            old, new = before.get(instance), followed.ill.get(instance)
            if old is None or new is None or (old.code, old.why) != (new.code, new.why):
                self._tell(followed, instance)
            else:
                followed.ill[instance] = old  # since when is known

    def _tell(self, followed: _Followed, instance: int) -> None:
        ill = followed.ill.get(instance)
        for place in followed.places.get(instance, ()):
            worker = self._occupancy.workers.get(place)
            if worker is not None:
                code, since, why = ("", 0.0, "") if ill is None else ill[1:]
                self._judge(instance, code, since, worker.endpoint, why)

    def _forget(self, followed: _Followed) -> None:
        """Nobody tells any more, and whoever does next counts from 1."""
        self._hear_ill(followed, [])
        followed.newest.clear()
        for places in followed.places.values():
            for place in places:
                worker = self._occupancy.workers.get(place)
                if worker is not None:
                    self._occupancy.unhear(worker)
