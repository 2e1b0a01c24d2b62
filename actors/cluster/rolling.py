"""Actors of a node that are started anew by somebody's wish, without a failed request.

Used by the node's actor. An engine that is not the only one of its endpoint drains, ends and starts
again. One that is, a router that is, and the ingress are replaced: the new process starts beside
the old one, is published and known, and then the old one drains and ends. So at each moment
somebody takes what comes. What was begun with one actor is finished, whoever loses interest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from actors.cluster.draining import NodeDrain
from actors.cluster.inspecting import ref_to
from actors.cluster.steps import Work, ended
from actors.discovery.publisher import Publisher
from actors.discovery.registry import Registry
from actors.errors import CallHomeError, SpawnError
from actors.kernel.beats import Lookout
from actors.kernel.children import ChildSpec, ChildStatus
from actors.kernel.supervisor import Supervisor
from actors.kernel.verdicts import Verdict
from actors.messages import Record, Workers
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: The order of roles in which a node is started anew.
ORDER: Final = ("engine", "router", "ingress", "actor")
#: States of workers, as routers tell them, of which a stream can be had.
_ROUTABLE: Final = ("free", "busy")
#: Seconds for a router to say who serves an endpoint.
_ASKED: Final = 2.0
#: Seconds between two looks whether an actor is well.
_LOOK: Final = 0.1
#: Seconds that it has to be well: somebody has looked at it then who did not before.
_HOLD: Final = 0.3
_WHY: Final = "it is started anew"


class Renewal:
    """Starts actors of one node anew; ``work`` hears of each step."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        publisher: Publisher,
        supervisor: Supervisor,
        drain: NodeDrain,
        lookout: Lookout,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._publisher = publisher
        self._supervisor = supervisor
        self._drain = drain
        self._lookout = lookout
        #: Incarnations that end by wish: their end is no trouble.
        self.ending: set[int] = set()

    async def run(self, work: Work, names: Sequence[str], rolling: bool, limit: float) -> None:
        """Start these anew, one after the other or all at once; ends with the step ``done``."""
        finished: list[str] = []
        failed: dict[str, str] = {}

        async def one(name: str, together: Sequence[str]) -> None:
            work.now, before = name, self._status(name)
            try:
                await self._renew(work, name, limit, together)
            except CallHomeError as error:
                why = f"{error}{self._sequel(before)}"
                failed[name] = f"{name}: {why}"
                work.tell("failed", name, f"{name} did not come up: {why}", code=error.code)
            else:
                finished.append(name)

        if rolling:
            for name in names:
                if work.abandoned or failed:
                    break
                await one(name, [name])
        else:
            await asyncio.gather(*(one(name, names) for name in names))
        left = [each for each in names if each not in finished and each not in failed]
        ok = not left and not failed
        text = f"{len(finished)} of {len(names)} actors were started anew"
        if work.abandoned and left and not failed:
            text += "; nobody wanted the others any more"
        if work.cut:
            text += f"; {ended(work.cut)} at the limit of {limit:g} s"
        if left:
            text += f"; left as they were: {', '.join(left)}"
        work.tell(
            "done", "", text, ok=ok, cut=work.cut, finished=finished, left=left,
            error="; ".join(failed.values()),
        )  # fmt: skip

    async def _renew(self, work: Work, name: str, limit: float, together: Sequence[str]) -> None:
        """One actor. Raises SpawnError."""
        status = self._status(name)
        if status is None:
            await self._reopen(work, name, limit)
            return
        role = str(status.spec.spec["role"])
        record = self._record(status.address)
        if self._drain.states.get(name) == "draining" and status.address is not None:
            await self._drain.wait_ended(status.address, limit)
        was_drained = self._drain.states.get(name, "")
        self._open_doors(role)
        if record is None or role == "actor" or (was_drained and role == "engine"):
            await self._in_place(work, status)
        elif role == "ingress" or await self._is_alone(record, together):
            await self._replace(work, status, record, limit, len(together) == 1)
        else:
            await self._drain_one(work, record, limit)
            await self._in_place(work, status)

    def _status(self, name: str) -> ChildStatus | None:
        """As it is now; None for one in the launcher's process."""
        return next((each for each in self._supervisor.status() if each.spec.name == name), None)

    def _sequel(self, before: ChildStatus | None) -> str:
        """What becomes of an actor that was not started anew, and what to do."""
        if before is None:
            return ""
        name, spec = before.spec.name, before.spec
        now = self._status(name)
        anew = f"'callhome restart {name}'"
        if now and now.address and self._runtime.peers.alive(now.address):
            if now.address == before.address:
                return f"; the one before (pid {now.pid}) goes on in its place; mend it and {anew}"
            return f"; it is left as it is, and gets nothing until it is well; mend it and {anew}"
        if _rests(spec):
            if spec.essential:
                return "; it stays down and is essential: the node stops"
            return f"; it stays down: mend it and {anew}"
        return "; its restart policy tries it again"

    def _open_doors(self, role: str) -> None:
        """What leads to an engine takes what comes, where the whole node was drained."""
        if self._drain.begun:
            doors = [each for each in self._registry.records if each.kind in ("router", "ingress")]
            self._drain.resume([each.address.name for each in doors if role == "engine"])

    async def _reopen(self, work: Work, name: str, limit: float) -> None:
        """One in the launcher's process, which was drained and goes on. Raises SpawnError."""
        self._open_doors("engine")
        address = await self._drain.reopen(name, limit)
        if address is None:
            raise SpawnError(f"{name} has ended with the launcher's process", actor=name)
        work.tell("serves", name, f"{name} serves again (in the launcher's process)")

    def _record(self, address: Address | None) -> Record | None:
        return next((each for each in self._registry.records if each.address == address), None)

    async def _is_alone(self, record: Record, together: Sequence[str]) -> bool:
        """Whether nobody else takes what it does while it is away."""
        alike = [
            each
            for each in self._registry.records
            if (each.kind, each.endpoint) == (record.kind, record.endpoint)
            and each.address.name not in together
            and each.address.name not in self._drain.states
            and each.instance not in self._lookout.unwell
        ]
        if record.kind == "router" and not alike and self._runtime.settings.call_home_port:
            return False  # no two can listen there: it is away for a moment
        if alike or record.kind == "router":
            return not alike
        routers = [each for each in self._registry.records if each.kind == "router"]
        for router in routers:
            if any(
                each.get("where") and each.get("state") in _ROUTABLE
                for each in await self._workers(router.address, record.endpoint)
            ):
                return False  # on another node
        return True

    async def _workers(self, router: Address, endpoint: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        asked = ref_to(self._runtime, router).stream(Workers(endpoint), timeout=_ASKED)
        try:
            async with asked as answers:
                async for answer in answers:
                    found = [each for each in answer if isinstance(each, dict)]
        except (CallHomeError, TypeError) as error:
            self._runtime.note(f"{router} did not say who serves {endpoint}: {error}")
        return found

    async def _drain_one(self, work: Work, record: Record, limit: float) -> None:
        name = record.address.name
        work.tell("withdrawn", name, f"{name} gets nothing new (instance {record.instance})")
        self.ending.add(record.instance)
        cut = await self._drain.drain([record], limit, _WHY, succeeded=record.kind == "ingress")
        work.cut += cut
        how = f"; {ended(cut)}" if cut else ""
        work.tell("drained", name, f"{name} has nothing under way any more{how}", cut=cut)

    async def _in_place(self, work: Work, status: ChildStatus) -> None:
        name = status.spec.name
        if status.address is not None:
            self.ending.add(status.address.incarnation)
            self._registry.remove(status.address.incarnation, None, _WHY)
            text = f"{name} stops (pid {status.pid}) and starts again"
            if status.spec.essential and _rests(status.spec):
                text += "; it is essential: the node stops if it does not come up"
            work.tell("stops", name, text)
        else:
            work.tell("begins", name, f"{name} starts")
        self._drain.states.pop(name, None)
        await self._serves(work, await self._supervisor.restart(name))

    async def _replace(
        self, work: Work, status: ChildStatus, record: Record, limit: float, alone: bool
    ) -> None:
        name = status.spec.name
        what = (
            f"the only one of {record.endpoint}" if record.endpoint else f"the only {record.kind}"
        )
        why = what if alone else "not to be missed while others are away, too"
        work.tell("begins", name, f"{name} is {why}: its successor starts beside it")
        state = self._drain.states.pop(name, "")

        async def prove(address: Address) -> None:
            try:
                await self._serves(work, address)
            except SpawnError:
                self.ending.add(address.incarnation)
                raise

        try:
            old, _ = await self._supervisor.succeed(name, prove)
        except SpawnError:
            if state:  # the one before still takes nothing
                self._drain.states[name] = state
            raise
        if old is not None:
            await self._drain_one(work, record, limit)
            work.tell("stops", name, f"{name}: the old one ends (pid {old.pid})")
            await self._supervisor.see_off(old)

    async def _serves(self, work: Work, address: Address) -> None:
        """Wait until everybody knows it, and it is well and stays so. Raises SpawnError."""
        settings = self._runtime.settings
        await self._publisher.sync(settings.start_timeout, self._drain.deaf)
        doors = [each.address for each in self._registry.records if each.kind == "ingress"]
        for door in doors:
            if not self._drain.deaf(door):
                await self._drain.settle(door, [])
        if not await self._stays_well(address, settings.start_timeout):
            verdict = self._verdict(address)
            why = "it has ended again" if verdict.well else verdict.text(address)
            raise SpawnError(f"{address} was up, and then {why}", actor=address.name)
        if self._record(address) is None:
            raise SpawnError(f"{address} is up, and withdrawn again", actor=address.name)
        work.tell("serves", address.name, f"{address.name} serves (pid {address.pid})")

    async def _stays_well(self, address: Address, limit: float) -> bool:
        """Whether it is found well, and again until ``_HOLD`` seconds later; waits for that."""
        loop = asyncio.get_running_loop()
        until, since = loop.time() + limit, 0.0
        while self._runtime.peers.alive(address) and loop.time() < until:
            if not self._verdict(address).well:
                since = 0.0
            elif not since:
                since = loop.time()
            elif loop.time() - since >= _HOLD:
                return True
            await asyncio.sleep(_LOOK)
        return False

    def _verdict(self, address: Address) -> Verdict:
        return self._runtime.vigil.of(address, time.monotonic())


def _rests(spec: ChildSpec) -> bool:
    """Whether its policy does not try it again where it has failed once."""
    return spec.restart == "never" or not spec.intensity.max_restarts
