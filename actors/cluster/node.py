"""The node's own process: starts the actors, keeps them, tells who serves what, answers ``ps``.

Started by the launcher through the same first code as every child, and itself an Actor: it can be
asked like any other (``Ps`` to the actor named ``node``). It touches no stream and no payload, so
nothing that goes wrong with one can take it down.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from actors.cluster.draining import NodeDrain
from actors.cluster.folder import NodeInfo, leave_word
from actors.cluster.holding import Holding
from actors.cluster.inspecting import Inspector
from actors.cluster.plan import children, here, record_of
from actors.cluster.porch import Porch
from actors.cluster.roll import Roll
from actors.cluster.rolling import Renewal
from actors.cluster.spec import NodeSpec
from actors.cluster.wellness import wellness
from actors.cluster.wishes import Wishes
from actors.discovery.publisher import Publisher
from actors.discovery.registry import Registry
from actors.errors import CallHomeError, RemoteProtocolError, SpawnError
from actors.health import Health
from actors.kernel.actor import Actor, handles
from actors.kernel.beats import Lookout
from actors.kernel.children import ChildSpec
from actors.kernel.exits import Exit, Orphans
from actors.kernel.space import own_space
from actors.kernel.supervisor import Supervisor
from actors.kernel.verdicts import Verdict
from actors.messages import Publish, Record, Withdraw
from actors.notices import DrainTarget, RestartActors
from transport.bus.address import Address, remove_inboxes
from transport.shm.files import sweep_files

log = logging.getLogger("callhome.node")

_DRAINS = "it stops, or was drained ('callhome restart' makes it serve again)"


class Ps(NamedTuple):
    """Ask a node for its actors; answered with a list of dicts, see ``NodeActor.ps``."""

    counters: bool = False


class NodeActor(Actor):
    """Supervisor and registry of one node; ``lock`` is the inherited descriptor of its claim."""

    def __init__(
        self,
        node: dict[str, Any],
        cluster: str,
        folder: str,
        lock: int,
        cpus: dict[str, list[int] | None],
    ) -> None:
        os.set_inheritable(lock, False)  # the claim must end with this process, not with a child
        self._lock = lock
        self._spec = NodeSpec.from_dict(node)
        self._cluster = cluster
        self._folder = folder
        self._roll = Roll(folder)
        self._cpus = cpus
        self._registry = Registry()
        self._serves = False
        self._door = ""
        #: Tells the launcher what is going on while the node starts; set by whoever runs it.
        self.progress: Callable[[str], None] = log.info
        #: Ends the node in order, with an exit code; set by whoever runs it.
        self.leave: Callable[[int], None] = lambda code: None
        # Sockets are unlinked as the runtime closes, after on_stop; the folder goes last of all.
        self._holding = Holding(folder, lock)
        atexit.register(self._holding.remove)

    async def on_start(self) -> None:
        """Start everything; returns when all of it serves. Raises SpawnError."""
        self._publisher = Publisher(self.runtime, self._registry, self.tasks)
        specs = children(
            self._spec,
            cluster=self._cluster,
            folder=self._folder,
            supervisor=self.address,
            cpus=self._cpus,
        )
        self._porch = Porch()
        self._supervisor = Supervisor([*map(self._porch.give, specs)], self.tasks, self)
        self._orphans = Orphans(lambda: self._supervisor.pids)
        self._orphans.start(adopt=True)
        self._lookout = Lookout(self.runtime, self._actors, self._judged)
        self._inspector = Inspector(self.runtime, self.tasks, self._lookout)
        graced = bool(self._spec.directory or self._spec.etcd)
        self._drain = NodeDrain(
            self.runtime, self._registry, self._publisher, self.tasks, self._lookout.mute, graced
        )
        self._renewal = Renewal(
            self.runtime, self._registry, self._publisher, self._supervisor, self._drain,
            self._lookout,
        )  # fmt: skip
        self._wishes = Wishes(
            self.runtime, self._spec, self._registry, self._supervisor, self._drain, self._renewal,
            self._inspector, self.tasks,
        )  # fmt: skip
        self._registry.add(Record(self.address.incarnation, self.address, "node"))
        self.runtime.on(Publish, self._on_publish)
        self.runtime.on(Withdraw, self._on_withdraw)
        self.runtime.when_down.append(self._on_peer_down)
        count = len(self._supervisor.status())
        self.progress(f"node {self._spec.name} starts {count} actor{'s' * (count != 1)}")
        await self._supervisor.start()
        self._serves = True
        self._lookout.start()
        self._write_info()
        if self._holding.stale:
            raise SpawnError(f"{self._holding.stale}; nobody would find the node")
        self._holding.start(self._write_info, self._lost)

    async def wait_drained(self, limit: float) -> int:
        self._wishes.close()
        await self._drain.wait_drained(limit)
        return self._drain.cut

    def hurry(self) -> None:
        self._drain.hurry()

    async def on_stop(self) -> None:
        """Withdraw every record, then stop the actors in reverse order, by force if need be."""
        self._serves = False
        self._wishes.close()
        self._porch.close()
        self._lookout.stop()
        self._holding.stop()
        for record in self._registry.records:
            why = self._drain.why or "the node stops"
            self._registry.remove(record.instance, record.endpoint, why)
        await asyncio.sleep(0)  # the withdrawals leave before the signals
        await self._supervisor.stop()
        await self._orphans.stop()
        sweep_files()  # of those that were killed
        if self._supervisor.killed:
            leave_word(self._lock, self._supervisor.killed)

    def _on_publish(self, sender: int, message: Publish) -> None:
        """The launcher's process has an actor; should that process die, ``when_down`` says so."""
        self._check_sender(sender, message.record.address)
        if self.runtime.peers.watch(message.record.address):
            self._registry.add(message.record)
            self._note_doors()

    def _on_withdraw(self, sender: int, message: Withdraw) -> None:
        for record in self._registry.records:
            if record.instance == message.instance:
                self._check_sender(sender, record.address)
        self._registry.remove(message.instance, None, message.reason)
        self._note_doors()

    def _check_sender(self, sender: int, actor: Address) -> None:
        """Only an actor's own process speaks for it. Raises RemoteProtocolError."""
        who = self.runtime.peers.find(sender)
        if sender != actor.incarnation and (who is None or who.pid != actor.pid):
            raise RemoteProtocolError(f"{actor} is not of the sender's process")

    def _on_peer_down(self, address: Address, reason: str) -> None:
        if not self.runtime.peers.alive(address):
            sweep_files()
            remove_inboxes(self.runtime.run, address)  # of a client that was killed
        self._registry.remove(address.incarnation, None, reason)

    def on_exec(self, spec: ChildSpec, pid: int) -> None:
        """A child's process is there: whoever sweeps up behind us must know of it."""
        if not self._holding.fault():
            self._roll.add(pid)

    def on_up(self, spec: ChildSpec, address: Address, facts: Mapping[str, Any]) -> None:
        """A child serves: publish it."""
        record = record_of(spec.spec, address, facts)
        kept_out = spec.name in self._drain.states
        if not (record.kind == "engine" and (kept_out or self._drain.begun)):
            self._registry.add(record)
        if kept_out:
            self._drain.keep_out(address, "it is drained")
        where = f", listens at {record.via}" if record.via else ""
        self.progress(f"{record.kind} {spec.name} is ready (pid {address.pid}{where})")
        self._write_info()

    def on_down(self, spec: ChildSpec, address: Address, reason: str, *, again: bool) -> None:
        """A child has ended: say how, before anybody may find it missing."""
        alive = [status.address for status in self._supervisor.status() if status.address]
        self._publisher.tell_down(address, reason, alive)
        self._registry.remove(address.incarnation, None, reason)
        sweep_files()
        if address.incarnation in self._renewal.ending:
            self._renewal.ending.discard(address.incarnation)
            log.info("%s %s: %s; it was to end", spec.spec["role"], address, reason)
        elif self._serves:
            what = "it will be started again" if again else "it stays down"
            log.warning("%s %s: %s; %s", spec.spec["role"], address, reason, what)
        self._write_info()

    def _actors(self) -> list[Address]:
        return [each.address for each in self._registry.records if each.kind != "node"]

    def _judged(self, address: Address, verdict: Verdict) -> None:
        if verdict.well:
            log.warning("%s goes on", address)
        else:
            log.warning("%s; it gets no new streams until it goes on", verdict.text(address))

    def on_trouble(self, spec: ChildSpec, text: str) -> None:
        """A restart failed or is given up; or a stop took force."""
        log.error("%s", text)
        if not any(status.spec is spec and status.pid for status in self._supervisor.status()):
            self._porch.shut(spec)

    def on_lost(self, spec: ChildSpec, how: Exit) -> None:
        """The node makes no sense without this one: end it, with that one's exit code."""
        name = spec.name
        log.error("%s is essential: the node stops, with exit code %d", name, how.status)
        who = f"{spec.spec['role']} {name} (pid {how.pid})"
        self._drain.why = f"{who}, which is essential, has ended: {how}"
        for record in self._registry.records:  # whoever waits for them is to know the first cause
            if record.kind != "node":
                self._publisher.tell_down(record.address, self._drain.why, [])
        self.leave(how.status)

    def on_progress(self, spec: ChildSpec, text: str) -> None:
        """A child says what it is busy with."""
        self.progress(f"{spec.name}: {text}")

    async def on_stage(self, stage: int) -> None:
        """The routers know the engines of this stage before anybody may call them."""
        await self._publisher.sync(self.settings.start_timeout)

    def _note_doors(self) -> None:
        """An ingress in the launcher's process has come or gone, perhaps."""
        if self._listen() != self._door:
            self._write_info()

    def _write_info(self) -> None:
        if not self._serves:
            return
        self._door = self._listen()
        alive = [status.address for status in self._supervisor.status() if status.address]
        info = NodeInfo(
            self._cluster,
            self._spec.name,
            self._folder,
            self.address,
            tuple(alive),
            self._door,
            own_space(),
        )
        self._holding.write(info)
        if not self._holding.fault():
            self._roll.keep()

    def _lost(self, error: CallHomeError) -> None:
        """Its folder is gone: this node ends, before it is in the way of another."""
        log.error("%s", error)
        self._broken(error)

    def _listen(self) -> str:
        """Where other nodes reach this one now, or ""."""
        return next((record.via for record in self._registry.records if record.via), "")

    @handles(Ps)
    async def ps(self, message: Ps) -> list[dict[str, Any]]:
        """One dict an actor: ``name, role, endpoint, listen, state`` (of one that is up and does
        not go on ``frozen`` or ``stalled``, for ``since`` seconds; of one that takes nothing
        ``draining`` or ``drained``), ``pid, cores, rss`` (bytes),
        ``restarts, reason, in_flight, queued, capacity``, of a router ``peers`` (why each cannot be
        seen, "" if it can) and ``away`` (workers that get no streams for having failed or refused,
        and which), of a router and an ingress ``discovery`` (why a directory or etcd cannot be
        used, "" if it can), of an ingress ``advertised`` (what is wrong with the address that it
        tells others) and, if asked for, ``counters``.

        What an actor does not answer within a second is None: it is down, or too busy to say.
        """
        listens = {record.address: record.via for record in self._registry.records}
        found = await self._inspector.rows(self._supervisor.status(), listens, message.counters)
        for row in found:
            if row["state"] == "up":
                row["state"] = self._drain.states.get(row["name"], "up")
        return found

    @handles(Health)
    async def health(self, message: Health) -> AsyncIterator[dict[str, Any]]:
        """See the message; used by ``callhome health``."""
        found = await wellness(
            self._inspector,
            self.address,
            self._supervisor.status(),
            here(self._spec),
            self._registry.records,
            self._drain.states,
        )
        stops = (self._drain.why or _DRAINS) if self._drain.begun else ""
        yield found | {"stops": stops}

    @handles(DrainTarget)
    async def drain(self, message: DrainTarget) -> AsyncIterator[dict[str, Any]]:
        """See the message; used by ``callhome drain``."""
        async for step in self._wishes.drain(message):
            yield step

    @handles(RestartActors)
    async def restart(self, message: RestartActors) -> AsyncIterator[dict[str, Any]]:
        """See the message; used by ``callhome restart``."""
        async for step in self._wishes.restart(message):
            yield step
