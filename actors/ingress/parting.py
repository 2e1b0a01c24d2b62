"""How an ingress ends, and an engine behind it, in the sight of other nodes.

Who has found a record beyond this node comes for it a while after it was withdrawn there: for the
setting ``drain_grace`` the engine is served on. Then the node ends what is under way. Where another
ingress has this one's place, at the same socket, nothing is refused: nodes of ours are sent there,
connections on which nothing is under way are closed, and what is left ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from actors.errors import Draining
from actors.ingress.connections import Connections
from actors.ingress.occupancy import Loads
from actors.ingress.publishing import Publishing
from actors.ingress.records import Records
from actors.ingress.streams import Streams
from actors.kernel.runtime import Runtime
from transport.callhome.server import RequestServer
from transport.errors import ConnectionLost, shown

#: Seconds for what stands elsewhere to be withdrawn there.
SETTLE: Final = 3.0
#: Seconds in which the nodes that are connected have gone over to the successor: what they had
#: asked for by then is on its way no more.
_WORD: Final = 0.25
#: Seconds that are waited for those who do not go.
_GONE: Final = 1.0
_LOOK: Final = 0.01


class Parting:
    """Made by an ingress when it starts; see ``actors.kernel.draining``."""

    def __init__(
        self,
        runtime: Runtime,
        server: RequestServer,
        streams: Streams,
        connections: Connections,
        records: Records,
        loads: Loads,
        publishing: Publishing,
    ) -> None:
        self._runtime = runtime
        self._server = server
        self._streams = streams
        self._connections = connections
        self._records = records
        self._loads = loads
        self._publishing = publishing
        self._loop = asyncio.get_running_loop()
        #: Why nothing new is taken any more; "" while it is.
        self._reason = ""
        #: When another ingress has taken our place; None while none has.
        self._left: float | None = None

    @property
    def succeeded(self) -> bool:
        """Whether another ingress has this one's place."""
        return self._left is not None

    def refuse(self, reason: str, succeeded: bool) -> None:
        """Take nothing new ("": again), or leave that to the successor."""
        if not succeeded:
            self._reason = reason
            self._records.close_withdrawn(None)
            return
        if self._left is None:
            self._left = self._loop.time()
            self._server.leave()
            self._connections.leave()
            moved = Draining("another ingress has the place of this one; ask again")
            for reader in [*self._records.streams, *self._loads.streams]:
                reader.fail(moved)

    def refusal(self, path: str) -> Draining | None:
        """What is told to a request for what is not served; None when that has nothing to do with
        an end.
        """
        if self._reason:
            return Draining(f"{shown(path)}: {self._reason}; try another worker")
        if self._records.was_withdrawn(path):
            return Draining(f"{shown(path)}: its engine is to stop; try another worker")
        return None

    def under_way(self) -> int:
        """How many streams are under way; one more while other nodes are still to go over to the
        successor.
        """
        count = len(self._streams.table)
        if self._left is None:
            return count
        since = self._loop.time() - self._left
        if since < _WORD:
            return count + 1
        self._server.part()
        waits = since < _GONE and (len(self._connections) or self._server.connections)
        return count + bool(waits)

    def cut(self, reason: str) -> None:
        """End what is under way."""
        for stream in list(self._streams.table.values()):
            error = ConnectionLost(f"{stream.record.endpoint}: {reason}")
            self._streams.fail(stream, error)

    async def wait_forgotten(self, instances: Sequence[int]) -> None:
        """Wait until nobody is to come any more for ``instances``, whose records are withdrawn:
        until that stands wherever it was published, and then for ``drain_grace``.
        """
        if not self._publishing.active:
            return
        until = self._loop.time() + SETTLE
        while self._loop.time() < until:
            if not self._records.serves(instances):
                break
            await asyncio.sleep(_LOOK)  # the node's word of it is on its way
        await self._publishing.settle(SETTLE)
        if instances:
            await asyncio.sleep(self._runtime.settings.drain_grace)
            self._records.close_withdrawn(instances)
