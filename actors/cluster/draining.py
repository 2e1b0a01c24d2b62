"""What of a node is to end: nobody new comes in, and what is under way gets its time.

Used by the node's actor. The engines' records are withdrawn first, so that routers here and
elsewhere choose others, and who has found them beyond the node gets the grace of its ingress; then
those are told who carry streams, and each says when it has none left. Only behind that does the
node stop them: routers and the ingress stay up for the streams of other nodes, too.

One that was drained and goes on stays so: it takes nothing until it is started anew, also when it
falls and its policy brings it back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from actors.cluster.inspecting import ref_to
from actors.discovery.publisher import Publisher
from actors.discovery.registry import Registry
from actors.errors import CallHomeError, RemoteProtocolError
from actors.kernel.beats import process_of
from actors.kernel.verdicts import STOPPED
from actors.messages import Record
from actors.notices import Drain, Drained, Grace
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome.node")

_CARRY: Final = ("engine", "router", "ingress")
#: Seconds beyond the limit until an actor that says nothing is not waited for any more.
_LATE: Final = 0.5
#: Seconds between two looks whether those that are waited for can answer at all.
_LOOK: Final = 0.1
#: Seconds for the processes of this node to hear of a withdrawal.
_HEARD: Final = 1.0
#: Seconds in which what was sent before that has arrived.
_ARRIVED: Final = 0.05
#: Seconds beyond its grace for an ingress to say that nobody is to come any more.
_SAID: Final = 4.0
_STOPS: Final = "its node stops"


class _Waited:
    """One actor that is to say when it carries nothing any more."""

    def __init__(self, address: Address, until: float) -> None:
        self.address = address
        self.until = until
        #: Streams that it had to cut; None until it has answered.
        self.left: int | None = None
        self.over = False


class NodeDrain:
    """Drains one node, or some of its actors; its tasks run in ``tasks``.

    ``mute`` tells of an actor's incarnation whether it gives no sign of life: it ends no stream,
    and would give no answer either. ``graced``: records of this node stand beyond it.
    """

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        publisher: Publisher,
        tasks: asyncio.TaskGroup,
        mute: Callable[[int], bool],
        graced: bool,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._publisher = publisher
        self._tasks = tasks
        self._mute = mute
        self._graced = graced
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waited] = {}
        #: Those of whom some are to end, withdrawn already.
        self._ending: dict[int, Record] = {}
        #: Until when those may take that were given less time before they were told of any.
        self._sooner: dict[int, float] = {}
        self._news = asyncio.Event()
        self._hurried = asyncio.Event()
        self._launcher = os.getppid()
        self._answering: asyncio.Task[None] | None = None
        self._whole: asyncio.Task[int] | None = None
        self._limit = 0.0
        #: No engine of the node is published any more.
        self.begun = False
        #: Actors, by name, that take nothing new: ``draining``, or ``drained`` in the end.
        self.states: dict[str, str] = {}
        #: Records that were withdrawn last, by the name of their actor.
        self._withdrawn: dict[str, Record] = {}
        #: Streams that were cut.
        self.cut = 0
        #: Why the node stops, where nobody has asked it to.
        self.why = ""
        runtime.on(Drain, self._asked)
        runtime.on(Drained, self._drained)
        runtime.when_down.append(lambda address, reason: self._left(address.incarnation, None))

    def _asked(self, sender: int, message: Drain) -> None:
        """The launcher, in whose process actors live that it will stop itself."""
        who = self._runtime.peers.find(sender)
        if who is None or who.pid != self._launcher:
            raise RemoteProtocolError("only its launcher drains a node by a message")
        if self._answering is None or self._answering.done():
            work = self._answer(sender, message.limit)
            self._answering = self._tasks.create_task(work, name="drain the node")

    async def _answer(self, sender: int, limit: float) -> None:
        await self.wait_drained(limit)
        asker = self._runtime.peers.find(sender)
        if asker is not None:
            self._send(asker, Drained(self.cut))

    def _send(self, to: Address, message: Drain | Drained) -> bool:
        try:
            self._runtime.send(to, message, control=True)
        except CallHomeError as error:
            log.info("%s was not told what is to end: %s", to, error)
            return False
        return True

    def _drained(self, sender: int, message: Drained) -> None:
        self._left(sender, message.left)

    def _left(self, incarnation: int, left: int | None) -> None:
        waited = self._waiting.pop(incarnation, None)
        if waited is not None:
            waited.left, waited.over = left, True
            self.cut += left or 0
            news, self._news = self._news, asyncio.Event()
            news.set()

    # The whole node.

    async def wait_drained(self, limit: float, why: str = "") -> None:
        """Returns when nothing is under way, at the latest after ``limit`` seconds, or those that
        are left of an earlier limit, and a little. ``why``, where the node does not stop.
        """
        if self._hurried.is_set():
            limit = 0.0
        if self._whole is None:
            self.begun, self._limit = True, limit
            self._whole = self._tasks.create_task(self._drain_node(why), name="drain all")
        else:
            self.shorten(limit)
        await asyncio.wait({self._whole})

    async def _drain_node(self, why: str) -> int:
        records = [each for each in self._registry.records if each.kind in _CARRY]
        records += self._ending.values()
        self.shorten(self._limit)
        for record in records:
            self.states[record.address.name] = "draining"
        engines = [each for each in records if each.kind == "engine"]
        why = self.why or why
        for record in engines:
            self._registry.remove(record.instance, record.endpoint, why or _STOPS)
            self._withdrawn[record.address.name] = record
        routers = [each.address for each in records if each.kind == "router"]
        behind = [each.address for each in records if each.kind != "router"]
        waits = self._tell(routers, self._limit, why)
        await self._wait_forgotten(engines)
        waits += self._tell(behind, self._limit, why)
        cut = await self._wait(waits)
        for record in records:
            self.states[record.address.name] = "drained"
        return cut

    def shorten(self, limit: float, only: Address | None = None) -> None:
        """What is under way, anywhere on the node or at one actor, has ``limit`` seconds more at
        most.
        """
        if only is None:
            self._limit = min(self._limit, limit)
        until = self._loop.time() + limit
        for incarnation, record in self._ending.items():
            if only in (None, record.address):
                self._sooner[incarnation] = min(until, self._sooner.get(incarnation, until))
        for incarnation, waited in list(self._waiting.items()):
            if until < waited.until and only in (None, waited.address):
                waited.until = until
                if not self._send(waited.address, Drain(limit, self.why)):
                    self._left(incarnation, None)

    def hurry(self) -> None:
        """What is under way has no more time."""
        self._hurried.set()
        self.shorten(0.0)

    @property
    def busy(self) -> bool:
        """All of the node is to end, and something is under way still."""
        return self._whole is not None and not self._whole.done()

    def resume(self, names: Iterable[str]) -> None:
        """A node that is drained serves again in part: its routers and its ingress of these
        ``names`` take what comes. Nothing is said of its engines.
        """
        self.begun, self._whole = False, None
        for record in self._registry.records:
            if record.address.name in names and self.states.pop(record.address.name, ""):
                self._send(record.address, Drain(-1.0))

    # Some of its actors.

    async def drain(
        self, records: Sequence[Record], limit: float, why: str, *, succeeded: bool = False
    ) -> int:
        """Withdraw these records and wait for what is under way, at most ``limit`` seconds; how
        many streams were cut. ``succeeded``: another has the place of an ingress.
        """
        for record in records:
            self._registry.remove(record.instance, record.endpoint, why)
            self._ending[record.instance] = record
            self._withdrawn[record.address.name] = record
        kept = False
        try:
            await self._publisher.sync(_HEARD, self.deaf)
            await self._wait_forgotten([each for each in records if each.kind == "engine"])
            await asyncio.sleep(_ARRIVED)
            waits = []
            for each in records:
                until = self._loop.time() + limit
                until = min(until, self._sooner.get(each.instance, until))
                left = max(0.0, until - self._loop.time())
                waits += self._tell([each.address], left, why, succeeded)
            return await self._wait(waits)
        except asyncio.CancelledError:
            kept = True  # the node stops: what they have under way still gets its time
            raise
        finally:
            for record in () if kept else records:
                self._ending.pop(record.instance, None)
                self._sooner.pop(record.instance, None)

    async def wait_ended(self, address: Address, limit: float) -> None:
        """Until an actor that drains has nothing under way: ``limit`` seconds more at most."""
        until = self._loop.time() + limit
        told = False
        while address.incarnation in self._ending:
            if not told and address.incarnation in self._waiting:
                told = True
                self.shorten(max(0.0, until - self._loop.time()), address)
            await asyncio.sleep(_LOOK)

    def deaf(self, address: Address) -> bool:
        """Whether it hears nothing now: it gives no sign of life, or is stopped."""
        if self._mute(address.incarnation):
            return True
        process = None if address.space else process_of(address.pid)
        return process is not None and process.state == STOPPED

    async def reopen(self, name: str, limit: float) -> Address | None:
        """One that was drained takes what comes again, in the process that it has: where that is
        there still, its address. What it has under way has ``limit`` seconds more first: one that
        goes on before its drain is over never says that it has ended.
        """
        if name in self._withdrawn:
            await self.wait_ended(self._withdrawn[name].address, limit)
        record = self._withdrawn.pop(name, None)
        if record is None or not self._runtime.peers.alive(record.address):
            return None
        self.states.pop(name, None)
        self._send(record.address, Drain(-1.0))
        self._registry.add(record)
        return record.address

    def keep_out(self, address: Address, why: str) -> None:
        """One of those that are drained has come up again: it takes nothing."""
        self._send(address, Drain(0.0, why))

    async def _wait_forgotten(self, engines: Sequence[Record]) -> None:
        """Until nobody is to come for these who has found them elsewhere; not once it is to be
        quick.
        """
        if not self._graced or not engines or self._hurried.is_set():
            return
        doors = [
            each.address
            for each in self._registry.records
            if each.kind == "ingress" and not self._mute(each.instance)
        ]
        instances = [each.instance for each in engines]
        asking = [self._tasks.create_task(self.settle(door, instances)) for door in doors]
        hurried = self._tasks.create_task(self._hurried.wait())
        try:
            while asking and not hurried.done():
                await asyncio.wait([*asking, hurried], return_when=asyncio.FIRST_COMPLETED)
                asking = [each for each in asking if not each.done()]
        finally:
            for each in (*asking, hurried):
                each.cancel()

    async def settle(self, door: Address, instances: list[int]) -> None:
        """What the ingress at ``door`` was told stands wherever it publishes, and nobody is to come
        for ``instances`` any more.
        """
        limit = self._runtime.settings.drain_grace + 2 * _SAID
        try:
            async with ref_to(self._runtime, door).stream(Grace(instances), timeout=limit) as said:
                async for _ in said:
                    pass
        except CallHomeError as error:
            log.info("%s did not say that its records are withdrawn: %s", door, error)

    def _tell(
        self, addresses: Iterable[Address], limit: float, why: str, succeeded: bool = False
    ) -> list[_Waited]:
        until = self._loop.time() + limit
        waits = []
        for address in addresses:
            waited = self._waiting.get(address.incarnation)
            if waited is None:
                waited = self._waiting[address.incarnation] = _Waited(address, until)
            waited.until = min(waited.until, until)
            waits.append(waited)
            if not self._send(address, Drain(limit, why, succeeded)):
                self._left(address.incarnation, None)
        return waits

    async def _wait(self, waits: Sequence[_Waited]) -> int:
        while any(not each.over for each in waits):
            news, now = self._news, self._loop.time()
            for each in waits:
                if not each.over and now >= each.until + _LATE:
                    log.warning("%s did not say that its streams have ended", each.address)
                    self._left(each.address.incarnation, None)
            self._forget_mute()
            if any(not each.over for each in waits):
                try:
                    async with asyncio.timeout(_LOOK):
                        await news.wait()
                except TimeoutError:
                    continue
        return sum(each.left or 0 for each in waits)

    def _forget_mute(self) -> None:
        for incarnation, waited in list(self._waiting.items()):
            if self._mute(incarnation) or _stopped(waited.address.pid):
                self._left(incarnation, None)


def _stopped(pid: int) -> bool:
    """A process is gone, or stopped by a signal: that shows before it has been silent for long."""
    process = process_of(pid)
    return process is None or process.state == STOPPED
