"""What ``callhome ps`` shows of the actors of a node: asked of each, and of the system.

Used by the node's actor, and by the command line for actors in the launcher's process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors.cluster.unmet import plain
from actors.errors import ActorDead, NoWorkers
from actors.kernel.beats import Lookout
from actors.kernel.children import ChildStatus
from actors.kernel.ref import Ref
from actors.kernel.verdicts import ILLNESSES
from actors.messages import Inspect
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome.node")

#: How long ``ps`` waits for an actor to say what it carries, in seconds.
_INSPECT: Final = 1.0
#: States of workers, as routers tell them, of which somebody may want to know.
_AWAY: Final = ("quarantined", "trial", "leased", *ILLNESSES)


class Inspector:
    """Asks the actors of one node; its tasks run in ``tasks``."""

    def __init__(self, runtime: Runtime, tasks: asyncio.TaskGroup, lookout: Lookout) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._lookout = lookout

    async def rows(
        self, statuses: Sequence[ChildStatus], listens: Mapping[Address, str], counters: bool
    ) -> list[dict[str, Any]]:
        """A row for each actor; see ``NodeActor.ps``. ``listens``: where an ingress is reached."""
        rows = [
            _row(status, found, listens.get(status.address) if status.address else None)
            | self.ill(status.address)
            for status, found in zip(statuses, await self.inspect_all(statuses), strict=True)
        ]
        if not counters:
            for row in rows:
                del row["counters"]
        return rows

    def ill(self, address: Address | None) -> dict[str, Any]:
        """``lag`` and ``since`` of an actor, and ``state`` and ``reason`` of one that is there and
        not well.
        """
        now = time.monotonic()
        lag = None if address is None else self._runtime.vigil.lag(address, now)
        told = {"since": None, "lag": None if lag is None else round(lag, 4)}
        verdict = None if address is None else self._lookout.unwell.get(address.incarnation)
        if verdict is None:
            return told
        since = round(now - verdict.since, 1)
        return told | {"state": verdict.code, "since": since, "reason": verdict.why}

    async def inspect_all(self, statuses: Sequence[ChildStatus]) -> list[dict[str, Any]]:
        """``inspect`` of each, all at once: one that hangs costs no more than many."""
        asking = [self._tasks.create_task(self.inspect(status)) for status in statuses]
        for task in asking:
            await asyncio.wait({task})
        return [task.result() for task in asking]

    async def inspect(self, status: ChildStatus) -> dict[str, Any]:
        """What one actor says it carries; empty when it does not say, or is not asked."""
        address = status.address
        if address is None or self._lookout.mute(address.incarnation):
            return {}
        found: dict[str, Any] = {}
        try:
            answers = ref_to(self._runtime, address).stream(Inspect(), timeout=_INSPECT)
            async with answers:
                async for answer in answers:
                    found = read_inspection(answer)
        except Exception as error:  # whatever an actor answers, the node lives on
            log.info("%s was not inspected: %s", address.name, error)
        return found


def read_inspection(answer: Any) -> dict[str, Any]:
    """What an actor says it carries, without what makes no sense: a user's code may say it."""
    if not isinstance(answer, dict):
        return {}
    found: dict[str, Any] = {
        key: count
        for key in ("in_flight", "queued", "capacity")
        if type(count := answer.get(key)) is int
    }
    peers = answer.get("peers")
    if isinstance(peers, dict):
        found["peers"] = {str(peer): plain(str(peer), str(why)) for peer, why in peers.items()}
    found |= _beyond(answer)
    away = [each for each in answer.get("workers") or () if isinstance(each, dict)]
    found["away"] = {
        f"{each.get('worker')} ({each.get('instance')}) of {each.get('endpoint')}": str(state)
        for each in away
        if (state := each.get("state")) in _AWAY
    }
    counters = answer.get("counters")
    return {**found, "counters": counters} if isinstance(counters, dict) else found


def _beyond(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a router or an ingress says of a directory or etcd, and of the address that it tells."""
    sources, warning = answer.get("discovery"), answer.get("advertised")
    return {
        "discovery": {str(name): str(why) for name, why in sources.items()}
        if isinstance(sources, dict)
        else None,
        "advertised": warning if isinstance(warning, str) else "",
    }


def ref_to(runtime: Runtime, address: Address) -> Ref:
    """One incarnation of an actor of this node, for the node to ask."""
    return Ref(address.name, runtime, _One(address))


class _One:
    """A look-up that knows a single incarnation."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def actor(self, name: str) -> Address:
        if name != self._address.name:
            raise ActorDead(f"{name!r} is not {self._address}")
        return self._address

    def router(self, target: str) -> Address:
        raise NoWorkers(f"{target}: the node's own process calls no endpoints")


def _row(status: ChildStatus, found: Mapping[str, Any], listen: str | None) -> dict[str, Any]:
    spec = status.spec.spec
    return {
        "name": status.spec.name + (" (old)" if status.state == "leaving" else ""),
        "role": spec["role"],
        "endpoint": spec.get("endpoint"),
        "listen": listen or None,
        "state": status.state,
        "pid": status.pid or None,
        "cores": cores_of(status.pid),
        "rss": _rss(status.pid),
        "restarts": status.restarts,
        "reason": status.reason,
        "in_flight": found.get("in_flight"),
        "queued": found.get("queued"),
        "capacity": found.get("capacity"),
        "peers": found.get("peers") or None,
        "discovery": found.get("discovery") or None,
        "advertised": found.get("advertised") or None,
        "away": found.get("away") or None,
        "counters": found.get("counters"),
    }


def cores_of(pid: int) -> list[int] | None:
    """The cores that a process may use; None when it is gone, or there is none (0)."""
    try:
        return sorted(os.sched_getaffinity(pid)) if pid else None
    except OSError:
        return None


def _rss(pid: int) -> int | None:
    """Resident bytes of a process, shared pages included."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) if pid else None
    except OSError:
        return None
    return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")
