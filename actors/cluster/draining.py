"""A node that stops: nobody new comes in, and what is under way gets its time.

Used by the node's actor. The engines' records are withdrawn first, so that routers here and
elsewhere choose others; then all who carry streams are told, and each says when it has none left.
Only behind that does the node stop them: routers and the ingress stay up for the streams of other
nodes, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from actors.discovery.registry import Registry
from actors.errors import CallHomeError, RemoteProtocolError
from actors.kernel.beats import process_of
from actors.kernel.verdicts import STOPPED
from actors.messages import Record
from actors.notices import Drain, Drained
from transport.bus.address import Address

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome.node")

_CARRY: Final = ("engine", "router", "ingress")
#: Seconds beyond the limit until an actor that says nothing is not waited for any more.
_LATE: Final = 0.5
#: Seconds between two looks whether those that are waited for can answer at all.
_LOOK: Final = 0.1
_STOPS: Final = "its node stops"


class NodeDrain:
    """Drains one node, once; its tasks run in ``tasks``.

    ``unwell`` tells of an actor's incarnation whether it gives no sign of life: it ends no stream,
    and would give no answer either.
    """

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        tasks: asyncio.TaskGroup,
        unwell: Callable[[int], bool],
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._tasks = tasks
        self._unwell = unwell
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, Address] = {}
        self._news = asyncio.Event()
        self._until = 0.0
        self._hurried = False
        self._launcher = os.getppid()
        self._answering: asyncio.Task[None] | None = None
        #: No engine is published any more.
        self.begun = False
        #: Streams that were cut.
        self.cut = 0
        #: Why the node stops, where nobody has asked it to.
        self.why = ""
        runtime.on(Drain, self._asked)
        runtime.on(Drained, self._drained)
        runtime.when_down.append(lambda address, reason: self._left(address.incarnation))

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
            log.info("%s was not told that the node stops: %s", to, error)
            return False
        return True

    def _drained(self, sender: int, message: Drained) -> None:
        if sender in self._waiting:
            self.cut += message.left
            self._left(sender)

    def _left(self, incarnation: int) -> None:
        if self._waiting.pop(incarnation, None) is not None:
            self._news.set()

    async def wait_drained(self, limit: float) -> None:
        """Returns when nothing is under way, at the latest after ``limit`` seconds, or those that
        are left of an earlier limit, and a little.
        """
        if self._hurried:
            limit = 0.0
        until = self._loop.time() + limit
        if not self.begun:
            self.begun, self._until = True, until
            self._begin(limit)
        elif until < self._until:
            self._until = until
            self._tell(limit)
        while self._waiting and self._loop.time() < self._until + _LATE:
            self._news.clear()
            try:
                async with asyncio.timeout(_LOOK):
                    await self._news.wait()
            except TimeoutError:
                self._forget_unwell()
        for address in self._waiting.values():
            log.warning("%s did not say that its streams have ended", address)
        self._waiting.clear()

    def _begin(self, limit: float) -> None:
        records = self._registry.records
        for record in records:
            if record.kind == "engine":
                self._registry.remove(record.instance, record.endpoint, self.why or _STOPS)
        self._waiting = {each.instance: each.address for each in records if _carries(each)}
        self._tell(limit)

    def _tell(self, limit: float) -> None:
        for incarnation, address in list(self._waiting.items()):
            if not self._send(address, Drain(limit, self.why)):
                self._left(incarnation)

    def hurry(self) -> None:
        """What is under way has no more time."""
        self._hurried = True
        self._until = min(self._until, self._loop.time())
        self._tell(0.0)

    def _forget_unwell(self) -> None:
        for incarnation, address in list(self._waiting.items()):
            if self._unwell(incarnation) or _stopped(address.pid):
                self._left(incarnation)


def _carries(record: Record) -> bool:
    return record.kind in _CARRY


def _stopped(pid: int) -> bool:
    """A process is gone, or stopped by a signal: that shows before it has been silent for long."""
    process = process_of(pid)
    return process is None or process.state == STOPPED
