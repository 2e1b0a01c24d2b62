"""Client: a program's way into a node of this machine, for scripts, servers and the command
line.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from actors.config import SOCKET_NAME, Settings
from actors.discovery.base import Discovery
from actors.discovery.lookup import NodeLookup
from actors.discovery.registry import RegistryDiscovery
from actors.errors import ActorDead, NameTaken
from actors.kernel.calls import Caller
from actors.kernel.forks import Fork
from actors.kernel.names import NameClaim
from actors.kernel.ref import Ref
from actors.kernel.runtime import Runtime
from actors.kernel.space import whose
from actors.messages import Record, Workers
from transport.bus.address import Address
from transport.bus.port import Bus
from transport.context import Context
from transport.errors import LocalProtocolError, RemoteProtocolError

_OUTSIDE: Final = (
    "this client is not open; use it inside its block: 'async with cluster.client() as client:'"
)


class WorkerState(NamedTuple):
    """One worker of an endpoint as a router sees it; ``Client.workers`` tells of them.

    ``instance`` is what ``call``, ``stream`` and ``open`` take. ``load`` counts streams, ``device``
    is what its EngineSpec says, ``device_id`` which of its host's that is (``cuda:1``), "" where
    its environment does not tell. ``state``: ``free``, ``busy`` (over a threshold), ``leased`` (it
    has refused a stream a moment ago), ``quarantined`` (it failed), ``trial`` (the next stream
    shows whether it works again), ``frozen`` (its process is stopped), ``stalled`` (its event loop
    is blocked) or ``unready`` (it has not answered its canary). ``where``: "" on this node, else
    the ``host:port`` of its node.
    """

    instance: int
    endpoint: str
    worker: str
    load: int
    capacity: int
    device: str
    state: str
    where: str
    device_id: str


class _Records(Discovery, Protocol):
    """Where a client's records come from, until it is left."""

    @property
    def records(self) -> list[Record]: ...

    def stop(self) -> None: ...


class Client(Caller):
    """Calls endpoints of a node: ``async with cluster.client() as client``.

    ``run`` is the node's folder (``Cluster.client`` and ``connect`` fill it in). Everything that
    was opened through the client is killed when its block is left. Belongs to the event loop that
    entered it. Raises SpecError for a ``name`` that cannot be part of a socket's path; used outside
    its block it raises LocalProtocolError.
    """

    #: No context stands above a client's streams.
    parent: Context | None = None

    def __init__(
        self,
        *,
        run: str,
        settings: Settings | None = None,
        name: str | None = None,
        bus: Bus | None = None,
    ) -> None:
        self._run = run
        self._settings = settings
        unique = f"client-{os.getpid():x}-{secrets.token_hex(2)}"
        self._name = unique if name is None else SOCKET_NAME(name, "Client.name")
        self._named = name is not None
        self._claim: NameClaim | None = None
        self._bus = bus
        self._entered = False
        self._open = False

    @functools.cached_property
    def runtime(self) -> Runtime:  # type: ignore[override]
        """What the client consists of. Read before the block it raises LocalProtocolError; entering
        puts the real one beside it, which is then found without any call.
        """
        raise LocalProtocolError(_OUTSIDE)

    async def __aenter__(self) -> Self:
        """Bind the inboxes and learn who is where. Raises ActorDead when the node does not
        answer, NameTaken when a living client or an actor of the node has the name that this one
        was given.
        """
        if self._entered:
            raise LocalProtocolError("this client was entered before; make another one")
        self._entered = True
        node = read_node(self._run)
        if self._named:
            self._claim = NameClaim(self._run, self._name)
        try:
            runtime = Runtime(
                run=self._run, name=self._name, settings=self._settings, bus=self._bus
            )
        except BaseException:
            self._give_name_back()
            raise
        try:
            discovery = RegistryDiscovery(runtime, node)
            await discovery.start(runtime.settings.connect_timeout)
            lookup = NodeLookup(discovery, runtime.vigil.well)
            await lookup.start()
            self._check_name(discovery.records)
        except BaseException:
            runtime.close()
            self._give_name_back()
            raise
        self._begin(runtime, discovery, lookup)
        return self

    def _check_name(self, records: list[Record]) -> None:
        """Logs and ``ps --memory`` tell who is who by name: an actor's is not for its callers."""
        holder = next((each for each in records if each.address.name == self._name), None)
        if self._named and holder is not None:
            raise NameTaken(
                f"client {self._name!r}: the node's {holder.kind} {holder.address} has this name; "
                "give the client another one, or none"
            )

    def _begin(self, runtime: Runtime, discovery: _Records, lookup: NodeLookup) -> None:
        """From now on it is a caller: over ``runtime``, to what ``lookup`` finds."""
        self._discovery = discovery
        self._lookup = runtime.lookup = lookup
        self._open = True
        self._fork = Fork()
        super().__init__(runtime, lookup.router)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and self._fork.happened:
            self._fork.end(f"left the block of client {self.runtime.address.name}", error)
        self.close()

    def close(self) -> None:
        """What leaving the block does; harmless before it was entered and after it was left, and
        when the client's loop has ended. Raises LocalProtocolError in another thread while that
        loop runs.
        """
        if self._open and not self.runtime.belonging.inherited:
            self.runtime.check_close()
            self._discovery.stop()
            self.runtime.close("its client was closed")
            self._give_name_back()

    def _give_name_back(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def ref(self, name: str) -> Ref:
        """An actor of the node by name, for tell, ask and stream; it need not be alive yet."""
        return Ref(name, self.runtime, self._lookup)

    async def workers(self, endpoint: str = "") -> list[WorkerState]:
        """Who serves ``endpoint`` (all endpoints without one), ordered by instance.

        Asks one router of the node, which knows the workers of other nodes too; where nobody serves
        it the list is empty. Raises NoWorkers when the node has no router.
        """
        if not self._open:
            raise LocalProtocolError(_OUTSIDE)
        asked = await self.call(Workers.__name__, [endpoint])
        try:
            found = [WorkerState(*(each[name] for name in WorkerState._fields)) for each in asked]
        except (TypeError, KeyError) as error:
            raise RemoteProtocolError(
                f"a router told of its workers what cannot be read: {error!r}; does it run another "
                "version?"
            ) from error
        return sorted(found)

    def statistics(self) -> dict[str, int]:
        """How many requests were sent once more (``retried``), and how many streams went on
        elsewhere: before their first item (``migrated.new_request``) or behind it
        (``migrated.ongoing_request``).
        """
        if not self._open:
            raise LocalProtocolError(_OUTSIDE)
        return self.runtime.home.between.statistics()

    def memory(self) -> dict[str, Any]:
        """The shared memory of this program, as ``callhome ps --memory --json`` shows that of an
        actor: ``limit``, ``segments``, ``leases``, what is ``borrowed``, who is ``waiting``.
        """
        if not self._open:
            raise LocalProtocolError(_OUTSIDE)
        return self.runtime.keeping.account()

    def records(self) -> list[Record]:
        """What can be found on the node: engines, routers and actors that serve now."""
        if not self._open:
            raise LocalProtocolError(_OUTSIDE)
        return self._discovery.records


def read_node(run: str) -> Address:
    """Address of the node that runs in this folder. Raises ActorDead when there is none."""
    try:
        with open(os.path.join(run, "node.json"), encoding="utf-8") as file:
            info: dict[str, Any] = json.load(file)
        name, *numbers = info["address"]
        return Address(str(name), *map(int, numbers))
    except FileNotFoundError:
        raise ActorDead(f"no node runs in {run}; start one with callhome up") from None
    except PermissionError as error:
        raise ActorDead(f"{run}/node.json cannot be read: {whose(run)}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ActorDead(f"{run}/node.json cannot be read: {error}") from error
