"""A router's dispatch: its own, or what its spec names, which sits here and is given what it needs.

``Ways`` is all of it as the router holds it. ``Hosted`` are the streams that the router answers
itself because a dispatch wants so; they live in the same table as those of its handlers.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from actors.errors import CallHomeError, SpecError
from actors.kernel.actor import Actor, ActorRole
from actors.kernel.requests import RequestStream
from actors.kernel.served import Served
from actors.messages import Open, Record
from actors.router.dispatch import HOSTED, DispatchSeat, Handler, StreamingDispatch
from actors.router.lifecycle import Hearing, Lifecycle
from actors.router.occupancy import Key
from actors.router.options import Options
from actors.router.relay import Plane
from actors.router.standard import Again, StandardDispatch
from transport.bus.address import Address
from transport.errors import ConnectionLost, EngineError, RemoteProtocolError, from_wire, text_of

_METHODS: Final = (
    "generate",
    "generate_bidirectional",
    "on_instance_added",
    "on_instance_removed",
)
#: Takes the key of each stream that has ended, and its error if it has one.
Settled = Callable[[Key, CallHomeError | None], object]


def _nobody(key: Key, error: CallHomeError | None) -> None:
    """The router has not started."""


class Hosted(ActorRole):
    """How a router answers Opens: by its handlers, or by that of the dispatch which wants so."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor)
        self.settled: Settled = _nobody
        self._bound: dict[Key, tuple[Record, Handler]] = {}

    def serve(self, open: Open, worker: Record, handler: Handler) -> None:
        """See ``DispatchSeat``. Raises RemoteProtocolError for a stream that is here already."""
        key = (open.home.incarnation, open.stream)
        if key in self._bound:
            raise RemoteProtocolError(f"stream {open.stream} of {open.home} was opened twice")
        self._bound[key] = (worker, handler)
        try:
            self._actor._serving.open(open.home.incarnation, open)
        except BaseException:
            self._bound.pop(key, None)
            raise

    def under_way(self) -> list[Served]:
        """Its streams that have not ended, but for those that their callers have killed."""
        streams = self._actor._serving.streams
        found = [streams[key] for key in self._bound if key in streams]
        return [each for each in found if not each.context.killed]

    def cut(self, reason: str) -> None:
        """End these."""
        for stream in self.under_way():
            text = f"{stream.open.target}: {reason}"
            self._actor._serving.end(stream, ConnectionLost(text))
            stream.context.kill(reason)

    def came(self, stream: Served) -> None:
        """The router has counted the request when it came to be routed."""
        if stream.key in self._bound:
            self._actor.counters.requests -= 1

    def begin(self, stream: Served) -> None:
        """Start the handler of the dispatch, if it is one of its streams."""
        bound = self._bound.get(stream.key)
        if bound is None:
            super().begin(stream)
        else:
            stream.task = self._actor.tasks.create_task(self._run(stream, *bound))

    async def _run(self, stream: Served, worker: Record, handler: Handler) -> None:
        stream.begun = True
        await self._actor._serving.pump.run(stream, self._items(stream, worker, handler))

    async def _items(self, stream: Served, worker: Record, handler: Handler) -> AsyncIterator[Any]:
        if stream.open.many:
            request: Any = RequestStream(self._actor.runtime, stream)
        else:
            request = self._actor._serving.request(stream)
        items = handler(request, stream.context)
        try:
            async for item in items:
                yield item
        except CallHomeError as error:
            error.details.setdefault("instance", str(worker.instance))
            raise
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def faulted(self, stream: Served) -> None:
        """An error item is about to leave: the permit comes back now, and ``gone`` finds none."""
        if stream.key in self._bound:
            self.settled(stream.key, EngineError("", type="error item"))

    def gone(self, stream: Served) -> None:
        """The permit comes back and a fault is noted, before the home hears of the end."""
        if self._bound.pop(stream.key, None) is not None:
            error = from_wire(stream.outcome, "", {}) if stream.outcome else None
            self.settled(stream.key, error)


class Seat:
    """The ``DispatchSeat`` of one router."""

    def __init__(
        self,
        router: Address,
        standard: StandardDispatch,
        lifecycle: Lifecycle,
        hosted: Hosted,
        add: Callable[[Record], None],
        remove: Callable[[Record, str], None],
    ) -> None:
        self.router = router
        self.standard: StreamingDispatch = standard
        self.closers: list[Callable[[], None]] = []
        self.serve = hosted.serve
        self._lifecycle = lifecycle
        self._add = add
        self._remove = remove

    def record(
        self, endpoint: str, *, many: bool = False, capacity: int = 0, device: str = ""
    ) -> Record:
        """See ``DispatchSeat``."""
        if endpoint.count(".") != 2 or not all(endpoint.split(".")):
            raise SpecError(f"{endpoint!r} is no endpoint; use 'namespace.component.endpoint'")
        instance = secrets.randbits(62) + 1
        return Record(
            instance,
            Address(f"{endpoint}@{self.router.name}", instance, 0, 0),
            "engine",
            endpoint,
            many,
            capacity,
            via=self.router.name,
            speaks=HOSTED,
            device=device,
        )

    def publish(self, record: Record) -> None:
        """See ``DispatchSeat``. Raises SpecError for a record that ``record`` has not made."""
        if record.speaks != HOSTED:
            raise SpecError(
                f"{record.endpoint}: only instances that the dispatch serves itself can be "
                "published by it; make the record with seat.record()"
            )
        self._add(record)

    def withdraw(self, record: Record, reason: str) -> None:
        """See ``DispatchSeat``."""
        self._remove(record, reason)

    def subscribe(self, dispatch: StreamingDispatch) -> Hearing:
        """See ``DispatchSeat``."""
        return self._lifecycle.subscribe(dispatch)

    def when_stopped(self, close: Callable[[], None]) -> None:
        """See ``DispatchSeat``."""
        self.closers.append(close)


class Ways:
    """How the streams of one router reach their workers.

    Made by the router when it starts; ``again``, ``settled``, ``add`` and ``remove`` are its own.
    """

    def __init__(
        self,
        options: Options,
        plane: Plane,
        hosted: Hosted,
        *,
        again: Again,
        settled: Settled,
        add: Callable[[Record], None],
        remove: Callable[[Record, str], None],
    ) -> None:
        runtime = plane.runtime
        hosted.settled = settled
        self._complain = runtime.complain
        self.lifecycle = Lifecycle(runtime.complain)
        self.standard = StandardDispatch(plane, again)
        self.lifecycle.subscribe(self.standard)
        self._seat = Seat(runtime.address, self.standard, self.lifecycle, hosted, add, remove)
        self._options = options
        #: What streams go by.
        self.dispatch: StreamingDispatch = self.standard

    def start(self) -> None:
        """Make the dispatch that the spec names, which may publish instances at once: the router
        can take them by now. Raises SpecError.
        """
        target = self._options.dispatch
        if target is not None:
            self.dispatch = _made(self._options, target, self._seat)
            self.lifecycle.subscribe(self.dispatch)

    def close(self) -> None:
        """The router stops: nobody hears any more, what a dispatch holds open is closed."""
        self.lifecycle.close()
        closers, self._seat.closers = self._seat.closers, []
        for close in reversed(closers):
            try:
                close()
            except Exception as error:
                self._complain("closing the dispatch", error)


def _made(options: Options, target: str, seat: Seat) -> StreamingDispatch:
    """What the factory ``target`` makes. Raises SpecError that names it."""
    where = f"RouterSpec.dispatch: {target}"
    try:
        factory = options.load(target)
    except SpecError:
        raise
    except Exception as error:
        text = f"{where} cannot be imported: {type(error).__name__}: {text_of(error)}"
        raise SpecError(text) from error
    return made_by(factory, where, seat)


def made_by(factory: Any, where: str, seat: DispatchSeat) -> StreamingDispatch:
    """What a factory makes, which errors call ``where``. Raises SpecError."""
    if not callable(factory):
        raise SpecError(f"{where} is no function; name one that takes a DispatchSeat")
    try:
        made: Any = factory(seat)
    except Exception as error:
        raise SpecError(f"{where} raised {type(error).__name__}: {text_of(error)}") from error
    if inspect.iscoroutine(made):
        made.close()
    for name in _METHODS:
        method = getattr(made, name, None)
        if not callable(method) or inspect.isclass(made):
            raise SpecError(
                f"{where} returned {type(made).__name__}, which has no method {name}; a "
                f"StreamingDispatch has {', '.join(_METHODS)}"
            )
        if inspect.iscoroutinefunction(method):
            raise SpecError(f"{where}: {name} is 'async def'; a dispatch is called, not awaited")
    dispatch: StreamingDispatch = made
    return dispatch
