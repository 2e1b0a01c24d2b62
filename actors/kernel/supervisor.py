"""Start children in order, watch them, restart them by policy, stop them in reverse.

Used by the node (``actors.cluster.node``), which decides what runs and tells the others about ups
and downs; the supervisor knows processes only. Children of one stage start in parallel, a stage
starts when the one before it is ready, and stopping goes through the stages backwards: SIGTERM, the
grace time, SIGKILL.

A child that does not come up when the supervisor starts makes ``start`` fail and stops the rest:
nobody should have to find out later that half a node came up. A child that fails afterwards is
restarted by its policy; when that gives up, the child stays down and its siblings live on, unless
it is ``essential``: then whoever watches is told to end them, too.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from actors.errors import SpawnError
from actors.kernel.exits import Exit
from actors.kernel.restart import Intensity, Restart, RestartPolicy, Strategy
from actors.kernel.spawn import Child, Launch
from transport.bus.address import Address, remove_inboxes

State: TypeAlias = Literal["starting", "up", "restarting", "failed", "ended", "stopped"]


@dataclass(frozen=True)
class ChildSpec:
    """One child: what it runs, when it starts, how it restarts and stops. Times in seconds.

    ``stage`` is its place in the order of starting, ``stop`` the one in the order of stopping,
    which runs backwards: the highest stops first. None: the same as ``stage``. ``essential``: the
    others make no sense once this one stays down. ``early``: it is told as up as soon as it is, for
    others of its stage may wait for it; else with all of the stage.
    """

    name: str
    spec: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    stage: int = 0
    stop: int | None = None
    restart: Strategy = "on-failure"
    intensity: Intensity = field(default_factory=Intensity)
    start_timeout: float = 10.0
    grace: float = 5.0
    essential: bool = False
    early: bool = False


@dataclass(frozen=True)
class ChildStatus:
    """A child as it is now; ``pid`` is 0 and ``address`` None while it is down."""

    spec: ChildSpec
    state: State
    pid: int
    address: Address | None
    restarts: int
    reason: str


class Watcher(Protocol):
    """Who hears of the children. Called on the loop; must neither block nor raise."""

    def on_exec(self, spec: ChildSpec, pid: int) -> None:
        """The child's process is there; no code of its actor has run yet."""

    def on_up(self, spec: ChildSpec, address: Address, facts: Mapping[str, Any]) -> None:
        """The child serves; ``facts`` is what it told about itself."""

    def on_down(self, spec: ChildSpec, address: Address, reason: str, *, again: bool) -> None:
        """The child that served at ``address`` has ended; ``again``: it will be restarted."""

    def on_trouble(self, spec: ChildSpec, text: str) -> None:
        """A restart failed, the child is given up, or had to be killed; text for the operator."""

    def on_lost(self, spec: ChildSpec, how: Exit) -> None:
        """An essential child has ended and stays down."""

    def on_progress(self, spec: ChildSpec, text: str) -> None:
        """What a starting child is busy with."""

    async def on_stage(self, stage: int) -> None:
        """All children of a stage serve; the next stage starts when this returns."""


class _Entry:
    """A child spec, its current process and its restart history."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.policy = RestartPolicy(spec.restart, spec.intensity)
        self.child: Child | None = None
        self.incarnation = 0
        self.gone: Address | None = None
        self.state: State = "starting"
        self.reason = ""

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive


def _clear(entry: _Entry) -> None:
    """Remove the sockets of a child that has ended, perhaps before it had told its address."""
    run = entry.spec.spec.get("run")
    if run and entry.child is not None:
        address = Address(entry.spec.name, entry.incarnation, entry.child.pid, 0)
        remove_inboxes(run, address)


def _stop_place(entry: _Entry) -> int:
    return entry.spec.stage if entry.spec.stop is None else entry.spec.stop


class Supervisor:
    """Keeps the children of one process; its tasks run in ``group``, which must outlive it."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        group: asyncio.TaskGroup,
        watcher: Watcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = [_Entry(spec) for spec in specs]
        self._group = group
        self._watcher = watcher
        self._clock = clock
        self._stopping = asyncio.Event()
        #: Children that ``stop`` had to kill, for they did not end in their grace time.
        self.killed: list[str] = []

    async def start(self) -> None:
        """Start all children, stage by stage; returns when all are ready.

        Raises the first SpawnError after everything that had started is stopped again; the same
        goes for a cancellation.
        """
        try:
            for stage in sorted({entry.spec.stage for entry in self._entries}):
                await self._start_stage([e for e in self._entries if e.spec.stage == stage])
        except BaseException:
            await self.stop()
            raise

    async def _start_stage(self, entries: list[_Entry]) -> None:
        children = {entry.spec.name: self._launch(entry) for entry in entries}
        early = {children[each.spec.name].ready: each for each in entries if each.spec.early}
        waiting = {child.ready for child in children.values()}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
            for future in done & early.keys():
                self._serves(early[future])
        for entry in entries:
            if not entry.spec.early:
                self._serves(entry)
        await self._watcher.on_stage(entries[0].spec.stage)

    def _serves(self, entry: _Entry) -> None:
        assert entry.child is not None
        self._up(entry, entry.child)
        self._group.create_task(self._keep(entry), name=f"keep {entry.spec.name}")

    def _launch(self, entry: _Entry) -> Child:
        spec = entry.spec
        entry.incarnation = secrets.randbits(62) + 1
        launch = Launch(
            spec={**spec.spec, "name": spec.name, "incarnation": entry.incarnation},
            env=spec.env,
            death_signal=signal.SIGKILL,
            on_exec=lambda pid: self._watcher.on_exec(spec, pid),
        )
        child = Child(launch, lambda text: self._watcher.on_progress(spec, text))
        child.launch(spec.start_timeout)
        entry.child = child
        return child

    def _up(self, entry: _Entry, child: Child) -> None:
        if child.address is not None and child.alive:
            entry.state, entry.reason = "up", ""
            entry.policy.up(self._clock())
            self._watcher.on_up(entry.spec, child.address, child.facts)

    async def _keep(self, entry: _Entry) -> None:
        """Wait for the child's end, again and again, until it is not to be restarted."""
        while True:
            assert entry.child is not None
            how = await entry.child.wait_exit()
            failure = entry.child.failure
            entry.reason = f"{how} ({failure})" if failure else str(how)
            if self._stopping.is_set():
                entry.state = "stopped"
                self._down(entry, again=False)
                _clear(entry)
                return
            verdict = entry.policy.on_exit(self._clock(), clean=how.clean)
            again = isinstance(verdict, Restart)
            entry.state = "restarting" if again else "ended" if how.clean else "failed"
            self._down(entry, again=again)
            _clear(entry)
            if not isinstance(verdict, Restart):
                self._watcher.on_trouble(
                    entry.spec,
                    f"{entry.child.title} stays down after {entry.reason}: {verdict.reason}",
                )
                if entry.spec.essential:
                    self._watcher.on_lost(entry.spec, how)
                return
            if not await self._start_again(entry, verdict.delay):
                entry.state = "stopped"
                return

    def _down(self, entry: _Entry, *, again: bool) -> None:
        assert entry.child is not None
        address = entry.child.address
        if address is not None and address != entry.gone:
            entry.gone = address
            self._watcher.on_down(entry.spec, address, entry.reason, again=again)

    async def _start_again(self, entry: _Entry, delay: float) -> bool:
        """One attempt after ``delay`` seconds; False when the supervisor stops meanwhile.

        A failed attempt returns True as well: the child has then ended, and ``_keep`` judges that.
        """
        try:
            async with asyncio.timeout(delay):
                await self._stopping.wait()
        except TimeoutError:
            pass
        if self._stopping.is_set():
            return False
        try:
            child = self._launch(entry)
            await child.wait_ready()
        except SpawnError as error:
            if self._stopping.is_set():
                return False
            # Nobody waits for this one at a call site, so the child's traceback goes along.
            trace = error.details.get("traceback", "")
            text = f"restart failed: {error}\n{trace}".rstrip()
            self._watcher.on_trouble(entry.spec, text)
            return True
        self._up(entry, child)
        return True

    async def stop(self) -> None:
        """Stop all children, last stage first; nothing of them is left when it returns."""
        self._stopping.set()
        for place in sorted({_stop_place(entry) for entry in self._entries}, reverse=True):
            await self._stop_stage([e for e in self._entries if _stop_place(e) == place])

    async def _stop_stage(self, entries: list[_Entry]) -> None:
        children = [(entry.child, entry.spec) for entry in entries if entry.child]
        for child, _ in children:
            child.terminate()
        began = self._clock()
        for child, spec in sorted(children, key=lambda pair: pair[1].grace):
            left = max(0.0, began + spec.grace - self._clock())
            if child.alive:
                await asyncio.wait((child.exited,), timeout=left)
                if child.alive:
                    self._kill(child, spec)
        for child, _ in children:
            await child.wait_exit()
        for entry in entries:
            entry.state = "stopped"

    def _kill(self, child: Child, spec: ChildSpec) -> None:
        child.kill()
        who = f"{child.title} (pid {child.pid})"
        self.killed.append(who)
        text = f"{who} did not stop within {spec.grace:g} s and was killed (setting stop_grace)"
        self._watcher.on_trouble(spec, text)

    @property
    def pids(self) -> set[int]:
        """The processes of children that have not been seen to end."""
        return {entry.child.pid for entry in self._entries if entry.child and entry.alive}

    def status(self) -> list[ChildStatus]:
        """Every child as it is now, in the order of the specs."""
        return [
            ChildStatus(
                spec=entry.spec,
                state=entry.state,
                pid=entry.child.pid if entry.child and entry.alive else 0,
                address=entry.child.address if entry.child and entry.alive else None,
                restarts=entry.policy.total,
                reason=entry.reason,
            )
            for entry in self._entries
        ]
