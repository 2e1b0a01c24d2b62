"""The launcher's own place on a node: what finds actors there, and the actors placed in this
process.

Used by ``actors.cluster.launcher``. An actor with ``place="here"`` is the same class with the same
inboxes as in a process of its own; other ports of this process reach it without a socket, all
others through its sockets. It is not restarted: its failure is logged and told to the node, and its
callers see it gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Final, TypeVar

from actors.client import Client
from actors.cluster.entry import facts_of, make_actor, running
from actors.cluster.meeting import missing, unreadable
from actors.cluster.plan import GRACE, actor_child, here, record_of
from actors.cluster.spec import Instance, NodeSpec
from actors.config import Settings
from actors.discovery.base import Change
from actors.discovery.lookup import NodeLookup
from actors.discovery.record import within
from actors.discovery.registry import RegistryDiscovery
from actors.errors import CallHomeError, DeadlineExceeded, SpawnError, SpecError
from actors.kernel.actor import Actor
from actors.kernel.ref import Ref
from actors.kernel.runtime import Runtime
from actors.kernel.spawn import OWN_ROLES
from actors.kernel.stage import StageError
from actors.messages import Added, Inspect, Publish, Record, Snapshot, Withdraw
from actors.notices import Drain, Drained
from transport.bus.address import Address
from transport.bus.port import Bus

log = logging.getLogger("callhome.launcher")
_T = TypeVar("_T")

#: Seconds between two questions whether nodes have met.
_MEETING: Final = 0.05
#: Seconds beyond the limit for streams in which a node that is well has told that they have ended.
_DRAINED: Final = 1.5


class _Contained(Coroutine[Any, Any, _T]):
    """A coroutine whose ``SystemExit`` is a failure like any other.

    A task lets it through to the loop, where it would end the program and not the actor. Not a
    coroutine around the other one: a task that is cancelled before its first step would leave the
    inner one behind, never awaited.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        try:
            return self._coroutine.send(value)
        except SystemExit as error:
            raise StageError("exit", error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._coroutine.throw(*error)
        except SystemExit as left:
            raise StageError("exit", left) from left

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._coroutine.__await__()


class _Group(asyncio.TaskGroup):
    """The tasks of an actor in this process."""

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return super().create_task(_Contained(coro), name=name, context=context)


class Placed:
    """One actor in this process, run by a task of its own until it is told to stop.

    ``prepare`` gets the actor before it starts.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        bus: Bus,
        prepare: Callable[[Actor], None] = lambda actor: None,
    ) -> None:
        self.spec = spec
        self._bus = bus
        self._prepare = prepare
        self._stopping = asyncio.Event()
        self.started: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.started.add_done_callback(_retrieve)

    async def run(self) -> None:
        """Start, serve, stop. A failure goes to ``started``, or to the log if it comes later."""
        try:
            actor = make_actor(self.spec)
            self._prepare(actor)
            async with running(self.spec, actor, self._bus, _Group()) as (_, runtime):
                facts = facts_of(self.spec, actor)
                self.started.set_result(record_of(self.spec, runtime.address, facts))
                await self._stopping.wait()
        except (Exception, SystemExit) as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        stage = error.stage if isinstance(error, StageError) else "exit"
        cause = error.cause if isinstance(error, StageError) else error
        title = f"{self.spec['role']} {self.spec['name']!r} (in this process)"
        if self.started.done():
            log.error("%s failed and is gone", title, exc_info=cause)
            return
        ours = isinstance(cause, SpecError) and self.spec["role"] in OWN_ROLES
        why = f"{cause}" if ours else f"{stage}: {type(cause).__name__}: {cause}"
        failure = SpawnError(
            f"{title} did not start: {why}",
            actor=self.spec["name"],
            stage=stage,
            type=type(cause).__name__,
        )
        failure.__cause__ = cause
        self.started.set_exception(failure)

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    async def wait_started(self, task: asyncio.Task[None], limit: float) -> Record:
        """Its record, once it serves; ``task`` runs it. Raises SpawnError."""
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self.started)
        except TimeoutError:
            task.cancel()
            raise SpawnError(
                f"{self.spec['role']} {self.spec['name']!r} (in this process) was not ready after "
                f"{limit:g} s; make it start faster, or allow more time (setting start_timeout)",
                actor=self.spec["name"],
                stage="timeout",
            ) from None

    async def wait_stopped(self, task: asyncio.Task[None], limit: float) -> None:
        """Stop it, by force after ``limit`` seconds; returns when its task has ended."""
        self.stop()
        if not self.started.done():
            task.cancel()
        _, late = await asyncio.wait({task}, timeout=limit)
        if late:
            task.cancel()
            await asyncio.wait({task})


def _retrieve(started: asyncio.Future[Record]) -> None:
    """A failure that nobody awaits any more (the whole cluster is stopping) is no warning."""
    if not started.cancelled():
        started.exception()


class Outpost:
    """One node as the launcher's process sees it. Its tasks run in ``group``."""

    def __init__(self, spec: NodeSpec, cluster: str, group: asyncio.TaskGroup) -> None:
        self._spec = spec
        self._cluster = cluster
        self._group = group
        self._bus = Bus()
        self._folder = ""
        self._runtime: Runtime | None = None
        self._placed: list[tuple[Placed, asyncio.Task[None]]] = []
        self._clients: list[Client] = []

    async def start(self, folder: str, node: Address) -> None:
        """Join the node, start what is placed here, wait until it is found. Raises SpawnError."""
        name = f"launcher-{os.getpid():x}-{secrets.token_hex(2)}"
        self._runtime = Runtime(run=folder, name=name, settings=self._spec.settings, bus=self._bus)
        self._folder = folder
        self._node = node
        self._discovery = RegistryDiscovery(self._runtime, node)
        self._lookup = NodeLookup(self._discovery, self._runtime.vigil.well)
        await self._lookup.start()
        self._runtime.lookup = self._lookup
        for instance in here(self._spec):
            await self._place(instance, folder)

    async def _place(self, instance: Instance, folder: str) -> None:
        spec = actor_child(
            instance,
            cluster=self._cluster,
            node=self._spec,
            folder=folder,
            supervisor=self._node,
            cpus=None,
        )
        placed = Placed(spec, self._bus)
        task = self._group.create_task(placed.run(), name=f"{instance.name} here")
        self._placed.append((placed, task))
        record = await placed.wait_started(task, self._spec.settings.start_timeout)
        await self._publish(record)
        task.add_done_callback(lambda _: self._withdraw(record))

    async def _publish(self, record: Record) -> None:
        """Tell the node, and wait until its registry has it: then everybody finds it."""
        assert self._runtime is not None
        found = asyncio.Event()

        def listen(change: Change) -> None:
            records = change.records if isinstance(change, Snapshot) else ()
            if record in records or (isinstance(change, Added) and change.record == record):
                found.set()

        subscription = await self._discovery.subscribe(listen)
        self._runtime.send(self._node, Publish(record), control=True)
        try:
            async with asyncio.timeout(self._spec.settings.start_timeout):
                await found.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the registry of {self._node} did not take {record.address.name!r}; "
                "see whether the node hangs (callhome ps)"
            ) from None
        finally:
            subscription.cancel()

    def _withdraw(self, record: Record) -> None:
        # A node that is gone, or going, has withdrawn everything.
        with contextlib.suppress(CallHomeError):
            if self._runtime is not None:
                message = Withdraw(record.instance, "it has ended")
                self._runtime.send(self._node, message, control=True)

    def engines(self, namespace: str = "") -> set[int]:
        """The instances of the engines that this node serves in a namespace ("" is all)."""
        return {
            each.instance
            for each in self._discovery.records
            if each.kind == "engine" and within(each.endpoint, namespace)
        }

    async def meet(
        self, peers: Mapping[str, Callable[[], set[int]]], limit: float
    ) -> dict[str, str]:
        """Wait until this node's routers know the engines of ``peers``: what tells the instances
        there now, by the ``host:port`` of their node.

        What is missing after ``limit`` seconds, and why; the routers go on trying. Nobody waits for
        a directory or an etcd that cannot be read.
        """
        lacking: dict[str, str] = {}
        named = self._spec.peers
        deadline = asyncio.get_running_loop().time() + limit
        for router in self._spec.routers:
            while lacking := missing(told := await self._inspect(router.name), peers, named):
                away = unreadable(told)
                if asyncio.get_running_loop().time() > deadline or (
                    away and set(lacking.values()) == {away}
                ):
                    return lacking
                await asyncio.sleep(_MEETING)
        return lacking

    async def _inspect(self, router: str) -> dict[str, Any]:
        found: Any = None
        try:
            async with self.ref(router).stream(Inspect(), timeout=1.0) as answers:
                async for answer in answers:
                    found = answer
        except CallHomeError as error:
            log.info("router %s was not asked for its peers: %s", router, error)
        return found if isinstance(found, dict) else {}

    def ref(self, name: str) -> Ref:
        """An actor of the node by name."""
        assert self._runtime is not None
        return Ref(name, self._runtime, self._lookup)

    def client(self, name: str | None, settings: Settings | None) -> Client:
        """A client that has not been entered yet."""
        settings = settings or self._spec.settings
        if not self._placed:
            return Client(run=self._folder, settings=settings, name=name)
        # On the bus of the placed actors it needs no socket, but must be closed before the bus.
        client = Client(run=self._folder, settings=settings, name=name, bus=self._bus)
        self._clients.append(client)
        return client

    async def wait_drained(self) -> None:
        """Where actors are placed here: have the node end what is under way, as long as they and
        all others serve. Elsewhere the node does so when it is told to stop.
        """
        if not self._placed or self._runtime is None:
            return
        settings = self._spec.settings
        limit = settings.drain_limit
        if self._runtime.peers.alive(self._node):
            os.kill(self._node.pid, signal.SIGCONT)  # where somebody has stopped it
        done = asyncio.Event()

        def gone(address: Address, reason: str) -> None:
            if address == self._node:
                done.set()

        self._runtime.on(Drained, lambda sender, message: done.set())
        self._runtime.when_down.append(gone)
        try:
            self._runtime.send(self._node, Drain(limit), control=True)
            async with asyncio.timeout(limit + _DRAINED + settings.drain_grace + GRACE):
                await done.wait()
        except (CallHomeError, TimeoutError) as error:
            log.info("the streams of %s were not waited for: %s", self._node, error)

    async def stop(self) -> None:
        """Stop what is placed here, last started first, then leave the node."""
        for placed, task in reversed(self._placed):
            await placed.wait_stopped(task, self._spec.settings.stop_grace)
        self._placed.clear()
        for client in self._clients:
            client.close()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._discovery.stop()
            runtime.close("the cluster stops")
        self._bus.close()
