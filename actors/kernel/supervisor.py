"""Start children in order, watch them, restart them by policy, stop them in reverse.

Used by the node (``actors.cluster.node``), which decides what runs and tells the others about ups
and downs; the supervisor knows processes only. Children of one stage start in parallel, a stage
starts when the one before it is ready, and stopping goes through the stages backwards: SIGTERM, the
grace time, SIGKILL.

A child that does not come up when the supervisor starts makes ``start`` fail and stops the rest:
nobody should have to find out later that half a node came up. A child that fails afterwards is
restarted by its policy; when that gives up, the child stays down and its siblings live on, unless
it is ``essential``: then whoever watches is told to end them, too.

A child that is started anew by somebody's wish (``restart``, ``succeed``) has not failed: none of
that counts as a restart of its policy. For a moment there may be two children of one spec.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from actors.errors import SpawnError, SpecError
from actors.kernel.children import ChildSpec, ChildStatus, State, Watcher
from actors.kernel.restart import Restart, RestartPolicy
from actors.kernel.spawn import Child, Launch
from transport.bus.address import Address, remove_inboxes
from transport.errors import shown


class _Entry:
    """A child spec, its current process and its restart history."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.policy = RestartPolicy(spec.restart, spec.intensity)
        self.child: Child | None = None
        #: Whoever is to take its place, or has had it: no concern of its policy.
        self.beside: list[Child] = []
        self.keeper: asyncio.Task[None] | None = None
        self.gone: Address | None = None
        self.state: State = "starting"
        self.reason = ""

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive


def _clear(spec: ChildSpec, child: Child | None) -> None:
    """Remove the sockets of a child that has ended, perhaps before it had told its address."""
    run = spec.spec.get("run")
    if run and child is not None:
        remove_inboxes(run, Address(spec.name, child.incarnation, child.pid, 0))


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
        self._begin_keeping(entry)

    def _begin_keeping(self, entry: _Entry) -> None:
        keeping = self._keep(entry)
        entry.keeper = self._group.create_task(keeping, name=f"keep {entry.spec.name}")

    def _launch(self, entry: _Entry) -> Child:
        entry.child = child = self._exec(entry.spec)
        return child

    def _exec(self, spec: ChildSpec) -> Child:
        incarnation = secrets.randbits(62) + 1
        launch = Launch(
            spec={**spec.spec, "name": spec.name, "incarnation": incarnation},
            env=spec.env,
            death_signal=signal.SIGKILL,
            fds=spec.fds,
            on_exec=lambda pid: self._watcher.on_exec(spec, pid),
        )
        child = Child(launch, lambda text: self._watcher.on_progress(spec, text))
        child.launch(spec.start_timeout)
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
                _clear(entry.spec, entry.child)
                return
            verdict = entry.policy.on_exit(self._clock(), clean=how.clean)
            again = isinstance(verdict, Restart)
            entry.state = "restarting" if again else "ended" if how.clean else "failed"
            self._down(entry, again=again)
            _clear(entry.spec, entry.child)
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

    # By somebody's wish.

    async def restart(self, name: str) -> Address:
        """Stop a child in its grace time and start it anew; its address when it serves.

        Raises SpawnError when it does not come up: from then on its policy has it. Raises SpecError
        for a name that is none.
        """
        entry = self._find(name)
        async with self._renewing(entry):
            if entry.child is not None and entry.child.alive:
                entry.state = "restarting"
                await self._end(entry.child, entry.spec)
            entry.reason = "it is started anew"
            self._down(entry, again=True)
            _clear(entry.spec, entry.child)
            self._check_stopping(entry)
            entry.policy.renew()
            entry.state = "restarting"
            child = self._launch(entry)
            try:
                address = await child.wait_ready()
            except asyncio.CancelledError:
                child.kill()
                raise
            self._up(entry, child)
        return address

    async def succeed(
        self, name: str, prove: Callable[[Address], Awaitable[None]]
    ) -> tuple[Address | None, Address]:
        """Start another child of the same spec and give it the place of the one that is there: the
        addresses of both. The old one goes on until ``see_off``, and is not started again.

        Raises SpawnError when the new one does not come up, and what ``prove`` of its address
        raises: the old one, if it lives still, has its place as before then, and no policy judges
        how the new one has ended. Raises SpecError for a name that is none.
        """
        entry = self._find(name)
        self._check_stopping(entry)
        child = self._exec(entry.spec)
        entry.beside.append(child)
        try:
            address = await child.wait_ready()
        except BaseException:
            child.kill()
            self._group.create_task(self._forget(entry, child), name=f"forget {name}")
            raise
        async with self._renewing(entry):
            old = self._give_place(entry, child)
            if old is not None and old.address is None:  # it had fallen, and was not up again yet
                old.kill()
            self._up(entry, child)
            try:
                await prove(address)
            except BaseException as error:
                if old is not None and old.alive and old.address is not None:
                    self._give_place(entry, old)
                    entry.state, entry.reason = "up", ""
                    if isinstance(error, Exception):
                        await self._end(child, entry.spec)
                raise
        return None if old is None or not old.alive else old.address, address

    def _give_place(self, entry: _Entry, child: Child) -> Child | None:
        """Who had it before, and is left beside it until his end."""
        before, entry.child = entry.child, child
        entry.beside.remove(child)
        entry.policy.renew()
        if before is not None and (before.alive or before.address not in (None, entry.gone)):
            entry.beside.append(before)
            name = f"forget {entry.spec.name}"
            self._group.create_task(self._forget(entry, before), name=name)
        return before

    async def see_off(self, address: Address) -> None:
        """Stop the child at ``address``, to which another has succeeded; returns at its end."""
        for entry in self._entries:
            for child in entry.beside:
                if child.address == address:
                    await self._end(child, entry.spec)

    def _find(self, name: str) -> _Entry:
        for entry in self._entries:
            if entry.spec.name == name:
                return entry
        known = ", ".join(entry.spec.name for entry in self._entries) or "none"
        raise SpecError(f"no child is called {shown(name)}; there are: {known}")

    def _check_stopping(self, entry: _Entry) -> None:
        if self._stopping.is_set():
            raise SpawnError(f"{entry.spec.name} is not started: all stops", actor=entry.spec.name)

    @contextlib.asynccontextmanager
    async def _renewing(self, entry: _Entry) -> AsyncIterator[None]:
        """Nobody keeps the child meanwhile: it ends and starts by somebody's wish."""
        if entry.keeper is not None:
            entry.keeper.cancel()
            await asyncio.wait({entry.keeper})
        try:
            yield
        finally:
            self._begin_keeping(entry)

    async def _forget(self, entry: _Entry, child: Child) -> None:
        """Wait for the end of a child that has no place any more, or never had one."""
        how = await child.wait_exit()
        if child not in entry.beside:
            return  # it has got its place back
        entry.beside.remove(child)
        if child.address is not None:
            self._watcher.on_down(entry.spec, child.address, str(how), again=False)
        _clear(entry.spec, child)

    async def _end(self, child: Child, spec: ChildSpec) -> None:
        child.terminate()
        await asyncio.wait((child.exited,), timeout=spec.grace)
        if child.alive:
            self._kill(child, spec)
        await child.wait_exit()

    # The end.

    async def stop(self) -> None:
        """Stop all children, last stage first; nothing of them is left when it returns."""
        self._stopping.set()
        for place in sorted({_stop_place(entry) for entry in self._entries}, reverse=True):
            await self._stop_stage([e for e in self._entries if _stop_place(e) == place])

    async def _stop_stage(self, entries: list[_Entry]) -> None:
        children = [
            (child, entry.spec)
            for entry in entries
            for child in (entry.child, *entry.beside)
            if child is not None
        ]
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
        return {
            child.pid
            for entry in self._entries
            for child in (entry.child, *entry.beside)
            if child is not None and child.alive
        }

    def status(self) -> list[ChildStatus]:
        """Every child as it is now, in the order of the specs; who leaves is behind his
        successor.
        """
        found = []
        for entry in self._entries:
            found.append(
                ChildStatus(
                    spec=entry.spec,
                    state=entry.state,
                    pid=entry.child.pid if entry.child and entry.alive else 0,
                    address=entry.child.address if entry.child and entry.alive else None,
                    restarts=entry.policy.total,
                    reason=entry.reason,
                )
            )
            for child in entry.beside:
                if child.alive and child.address is not None and child.ready.done():
                    why = "another has taken its place"
                    place = (child.pid, child.address, 0, why)
                    found.append(ChildStatus(entry.spec, "leaving", *place))
        return found
