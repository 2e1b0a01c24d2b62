"""What a ``StreamingDispatch`` is held against: real nodes, and whoever reaches workers through it.

    async with dispatch_case(factory, "local") as case:
        for check in CHECKS.values():
            await check(case)
            await case.idle()  # every permit is back

A case starts a node with two routers, each with a dispatch that ``factory`` has made, in this
process, so that a check sees what each of them hears. Its road says where the workers are: on this
node ("local"), on another ("remote"), or with the dispatch itself ("own": it publishes the
endpoints of ``actors.testing.engines.HANDLERS``). ``CHECKS`` stand in ``actors.testing.checks``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple, NoReturn

from actors.client import Client
from actors.cluster.launcher import Cluster
from actors.cluster.spec import EngineSpec, IngressSpec, NodeSpec, RouterSpec
from actors.errors import SpawnError, SpecError
from actors.kernel.ref import Ref
from actors.messages import Inspect, Open, Record
from actors.router.dispatch import DispatchSeat, StreamingDispatch
from actors.router.seat import made_by
from actors.testing.engines import CRASH, ECHO, SLOW, TALK, Crash, Echo, Slow, Talk
from transport.bus.address import Address

Factory = Callable[[DispatchSeat], StreamingDispatch]
ROADS: Final = ("local", "remote", "own")
#: Seconds that anything may take which a check waits for.
PATIENCE: Final = 10.0
_PAUSE: Final = 0.005
_ROUTERS: Final = ("router", "second")


class CheckFailed(AssertionError):
    """The dispatch does not do what every dispatch must; the text says what."""


def fail(text: str) -> NoReturn:
    """Raise CheckFailed."""
    raise CheckFailed(text)


class Heard(NamedTuple):
    """One call of a lifecycle callback."""

    what: str
    instance: int
    endpoint: str


class Watched:
    """The dispatch under test in its router, and what was asked of it."""

    def __init__(self, seat: DispatchSeat, inner: StreamingDispatch) -> None:
        self.seat = seat
        self.inner = inner
        self.heard: list[Heard] = []
        #: Instances to which streams were brought.
        self.sent: list[int] = []

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``."""
        self.sent.append(worker.instance)
        self.inner.generate(open, worker, home)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``."""
        self.sent.append(worker.instance)
        self.inner.generate_bidirectional(open, worker, home)

    def on_instance_added(self, record: Record) -> None:
        """See ``StreamingDispatch``."""
        self.heard.append(Heard("added", record.instance, record.endpoint))
        self.inner.on_instance_added(record)

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """See ``StreamingDispatch``."""
        self.heard.append(Heard("removed", record.instance, record.endpoint))
        self.inner.on_instance_removed(record, reason)


class DispatchCase:
    """Two dispatches under test, workers that they reach, and a client. Made by
    ``dispatch_case``.
    """

    def __init__(self, road: str, cluster: Cluster, client: Client, made: list[Watched]) -> None:
        self.road = road
        self.client = client
        #: The dispatches under test, one a router.
        self.watched = made
        self._cluster = cluster

    def routers(self) -> list[Ref]:
        """The routers, in the order of ``watched``."""
        return [self._cluster.ref(name) for name in _ROUTERS]

    async def carried(self) -> list[dict[str, Any]]:
        """What each router says that it carries."""
        found: list[dict[str, Any]] = []
        for router in self.routers():
            async with router.stream(Inspect(), timeout=PATIENCE) as answers:
                found.extend([answer async for answer in answers])
        return found

    async def idle(self) -> None:
        """Wait until every permit is back and every router is free of streams."""
        counts: list[int] = []

        async def is_idle() -> bool:
            counts[:] = [each["in_flight"] for each in await self.carried()]
            return not any(counts)

        await self.until(is_idle, lambda: f"permits that are not given back, by router: {counts}")

    async def until(
        self, condition: Callable[[], bool | Awaitable[bool]], what: str | Callable[[], str]
    ) -> None:
        """Wait until ``condition`` holds. Raises CheckFailed with ``what`` when it does not."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = condition()
                    if found if isinstance(found, bool) else await found:
                        return
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            text = what if isinstance(what, str) else what()
            raise CheckFailed(f"{text} (after {PATIENCE:g} s)") from None


class _Stand:
    """Where the routers of this process find the dispatch that is under test now."""

    def __init__(self) -> None:
        self.factory: Factory | None = None
        #: Why it has made none.
        self.failure: SpecError | None = None
        self.made: list[Watched] = []


_stand = _Stand()


def watched(seat: DispatchSeat) -> Watched:
    """The factory that the routers of a case are told of. Raises SpecError outside one."""
    if _stand.factory is None:
        raise SpecError("no dispatch is under test here; see actors.testing.dispatch")
    name = getattr(_stand.factory, "__qualname__", None) or repr(_stand.factory)[:100]
    try:
        found = Watched(seat, made_by(_stand.factory, name, seat))
    except SpecError as error:
        _stand.failure = error
        raise
    _stand.made.append(found)
    return found


@contextlib.asynccontextmanager
async def dispatch_case(factory: Factory, road: str) -> AsyncIterator[DispatchCase]:
    """Start all that the checks need; one case at a time, and after a check that failed a new one:
    what it has left behind is no fault of the next. Raises SpecError for another road than those of
    ``ROADS``, and for a factory that makes no dispatch.
    """
    if road not in ROADS:
        raise SpecError(f"road {road!r} is unknown; use one of {', '.join(ROADS)}")
    if _stand.factory is not None:
        raise SpecError("another dispatch is under test in this process; one after the other")
    _stand.factory, _stand.made, _stand.failure = factory, [], None
    try:
        async with Cluster(_nodes(road)) as cluster, cluster.client() as client:
            yield DispatchCase(road, cluster, client, _stand.made)
    except SpawnError:
        if _stand.failure is not None:
            raise _stand.failure from None
        raise
    finally:
        _stand.factory, _stand.made = None, []


def _nodes(road: str) -> list[NodeSpec]:
    routers = [RouterSpec(name=name, dispatch=watched, place="here") for name in _ROUTERS]
    engines = [
        EngineSpec(ECHO, Echo, place="here"),
        EngineSpec(TALK, Talk, place="here"),
        EngineSpec(SLOW, Slow, capacity=1, queue=0, place="here"),
        EngineSpec(CRASH, Crash),  # a process of its own: it does not survive its check
    ]
    if road == "own":
        return [NodeSpec(name="near", routers=routers)]
    if road == "local":
        return [NodeSpec(name="near", routers=routers, engines=engines)]
    listen = _free_address()
    door = IngressSpec(listen, place="here")
    return [
        NodeSpec(name="near", routers=routers, peers=[listen]),
        NodeSpec(name="far", routers=[], engines=engines, ingress=door),
    ]


def _free_address() -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
