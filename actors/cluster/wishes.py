"""What somebody asks of a node that runs: to drain it or one of its engines, to start actors anew.

Used by the node's actor. Each wish is a piece of work that goes on whoever follows it; at most one
restart and, for each target, one drain are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.cluster.draining import NodeDrain
from actors.cluster.inspecting import Inspector
from actors.cluster.rolling import ORDER, Renewal
from actors.cluster.spec import Instance, NodeSpec
from actors.cluster.steps import Work, ended
from actors.discovery.registry import Registry
from actors.errors import Overloaded, SpecError
from actors.kernel.children import ChildStatus
from actors.kernel.supervisor import Supervisor
from actors.messages import Record
from actors.notices import DrainTarget, RestartActors
from transport.errors import shown

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: Seconds between two lines of what is under way still.
_EVERY: Final = 1.0
#: So many of them at most: all steps are kept until the work is over.
_LINES: Final = 3600
_WHY: Final = "it is drained"
#: Longest limit, in seconds.
_LONGEST: Final = 31_536_000.0


class Wishes:
    """Its tasks run in ``tasks``; ``close`` before they are to end."""

    def __init__(
        self,
        runtime: Runtime,
        spec: NodeSpec,
        registry: Registry,
        supervisor: Supervisor,
        drain: NodeDrain,
        renewal: Renewal,
        inspector: Inspector,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._registry = registry
        self._supervisor = supervisor
        self._drain = drain
        self._renewal = renewal
        self._inspector = inspector
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._drains: dict[str, Work] = {}
        self._restart: Work | None = None
        self._closed = False

    def close(self) -> None:
        """The node stops: nothing more is begun, what is under way ends with it."""
        self._closed = True
        for work in (*self._drains.values(), *([self._restart] if self._restart else ())):
            if not work.over:
                self._over(work, "the node stops")
        for task in self._running:
            task.cancel()

    def _begin(self, work: Work, running: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(self._guarded(work, running), name="a wish")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: running.close())  # one that was ended before it began

    async def _guarded(self, work: Work, running: Coroutine[Any, Any, None]) -> None:
        """What nobody has foreseen ends the wish, and neither the node nor its followers' wait."""
        try:
            await running
        except Exception as error:
            self._runtime.complain("a wish", error)
            if not work.over:
                self._over(work, f"it has failed: {error}")

    @staticmethod
    def _over(work: Work, why: str) -> None:
        work.tell("done", "", why, ok=False, cut=work.cut, finished=[], left=[], error=why)

    def _limit(self, limit: float) -> float:
        if not limit <= _LONGEST:
            raise SpecError(f"limit: {limit} is not allowed; expected seconds up to a year")
        return self._runtime.settings.drain_limit if limit < 0 else float(limit)

    # Drain.

    async def drain(self, message: DrainTarget) -> AsyncIterator[dict[str, Any]]:
        """See ``DrainTarget``. Raises SpecError for what is none of this node's."""
        limit = self._limit(message.limit)
        record = None if message.target in ("", self._spec.name) else self._engine(message.target)
        key = "" if record is None else record.address.name
        work = self._drains.get(key)
        if self._closed:
            raise Overloaded("the node stops")
        if work is not None and not work.over:
            self._drain.shorten(limit, None if record is None else record.address)
        else:
            work = self._drains[key] = Work()
            if self._restart is not None:
                self._restart.abandoned = self._restart.abandoned or record is None
            self._begin(work, self._drain_it(work, record, limit))
        async for step in work.follow():
            yield step

    def _engine(self, target: str) -> Record:
        """The engine of a name, or of an instance in decimal or hexadecimal digits."""
        known = {each.address: each for each in self._registry.records if each.kind == "engine"}
        for status in self._supervisor.status():  # one that is drained stands in no registry
            if status.address and status.spec.spec["role"] == "engine":
                endpoint = str(status.spec.spec["endpoint"])
                address = status.address
                drained = Record(address.incarnation, address, "engine", endpoint)
                known.setdefault(address, drained)
        numbers = {_number(target, base) for base in (10, 16)}
        for address, record in known.items():
            if target == address.name or address.incarnation in numbers:
                return record
        names = ", ".join(sorted(each.name for each in known)) or "none"
        raise SpecError(
            f"{shown(target)} is neither node {self._spec.name!r} nor one of its engines ({names}) "
            "or their instances; routers and the ingress end with 'callhome restart'"
        )

    async def _drain_it(self, work: Work, record: Record | None, limit: float) -> None:
        states, before = self._drain.states, self._drain.cut
        names = [
            each.address.name
            for each in ([record] if record else self._registry.records)
            if each.kind == "engine"
        ]
        what = f"node {self._spec.name}" if record is None else record.address.name
        new = "its engines are withdrawn" if record is None else "it is withdrawn"
        work.tell("withdrawn", "" if record is None else what, f"{what}: {new}")
        watching = self._tasks.create_task(self._watch(work, what, names))
        try:
            if record is None:
                await self._drain.wait_drained(limit, _WHY)
                cut = self._drain.cut - before
            else:
                if not self._leaves(record):  # its successor bears the same name
                    states[what] = "draining"
                cut = await self._drain.drain([record], limit, _WHY)
                if states.get(what) == "draining":
                    states[what] = "drained"
        finally:
            watching.cancel()
        how = f"; {ended(cut)} at the limit" if cut else ""
        work.tell("drained", "" if record is None else what, f"{what} is drained{how}", cut=cut)
        left = names if cut else []
        work.tell(
            "done", "", f"{what} takes nothing new; 'callhome restart' has it serve again",
            ok=not cut, cut=cut, finished=names, left=left, error=how.lstrip("; "),
        )  # fmt: skip

    def _leaves(self, record: Record) -> bool:
        children = self._supervisor.status()
        return any(each.address == record.address and each.state == "leaving" for each in children)

    async def _watch(self, work: Work, what: str, names: Sequence[str]) -> None:
        """Tell again and again what is under way, as long as somebody may look on."""
        for _ in range(_LINES):
            await asyncio.sleep(_EVERY)
            counts = []
            for status in self._named(names):
                found = await self._inspector.inspect(status)
                counts.append(found.get("in_flight", 0) + found.get("queued", 0))
            streams = sum(counts)
            text = f"{what}: {streams} stream{'s' * (streams != 1)} under way"
            work.tell("waits", "", text, streams=streams)

    def _named(self, names: Sequence[str]) -> list[ChildStatus]:
        found = self._supervisor.status()
        return [each for each in found if each.spec.name in names and each.state != "leaving"]

    # Restart.

    async def restart(self, message: RestartActors) -> AsyncIterator[dict[str, Any]]:
        """See ``RestartActors``. Raises SpecError for a name that is none of this node's,
        Overloaded while another restart or a drain of the node is under way.
        """
        limit, names = self._limit(message.limit), self._chosen(message.actors)
        if self._closed or (self._drain.begun and self._drain.busy):
            raise Overloaded("the node drains or stops; wait for its end")
        if self._restart is not None and not self._restart.over:
            raise Overloaded(
                f"a restart is under way already, at {self._restart.now or 'its beginning'}; wait "
                "for its end, or interrupt the command that began it"
            )
        work = self._restart = Work()
        self._begin(work, self._renewal.run(work, names, message.rolling, limit))
        try:
            async for step in work.follow():
                yield step
        finally:
            work.abandoned = True

    def _chosen(self, names: object) -> list[str]:
        """In the order of restarting. Raises SpecError."""
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            raise SpecError(f"actors: {shown(str(names))} is not allowed; expected a list of names")
        roles = {each.spec.name: str(each.spec.spec["role"]) for each in self._supervisor.status()}
        placed = {each.name: each.role for each in self._spec.instances() if _is_here(each)}
        # Doors that were drained take what comes with the first engine that is started anew.
        engines = [name for name, role in placed.items() if role == "engine"]
        drained = [name for name in engines if name in self._drain.states]
        own = [name for name, role in roles.items() if role in ORDER[:3]] + drained
        wanted = list(dict.fromkeys(names)) or own
        for name in wanted:
            if name in placed and name not in drained:
                raise SpecError(
                    f"{name} runs in the launcher's own process (place='here'): restart that"
                )
            if name not in roles and name not in placed:
                known = ", ".join(roles) or "none"
                raise SpecError(
                    f"{shown(name)} is no actor of node {self._spec.name!r}, which has {known}"
                )
        order = {**placed, **roles}
        return sorted(wanted, key=lambda name: ORDER.index(order[name]))


def _is_here(instance: Instance) -> bool:
    return instance.spec.place == "here"


def _number(text: str, base: int) -> int:
    digits = text.lower().removeprefix("0x") if base == 16 else text
    if not digits.isascii() or not digits.isalnum() or len(digits) > 20:
        return -1
    try:
        return int(digits, base)
    except ValueError:
        return -1
