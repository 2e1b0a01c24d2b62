"""Actors: a class whose methods handle messages, one at a time, in a process of its own.

A message is a NamedTuple of the user's. A method is bound to its type with ``@handles``. What kind
of method it is decides how it runs:

* ``async def`` that returns a value: messages wait in the mailbox and are handled one after the
  other, in order of arrival; ``ask`` gets the value, ``tell`` none;
* ``async def`` that yields: each call is a stream with a task of its own, beside the mailbox.

An exception goes to the asker; after a ``tell`` it is logged and counted, and the actor lives on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from actors.config import Settings
from actors.errors import ActorDead, Overloaded, Unsupported
from actors.kernel.calls import Caller
from actors.kernel.chains import CHAIN, KEY, Handlings
from actors.kernel.mailbox import IN_HANDLER, Mailbox
from actors.kernel.ref import Lookup, Ref, read_message
from actors.kernel.role import Role
from actors.kernel.runtime import Runtime
from actors.kernel.served import Served
from actors.kernel.serving import Serving
from actors.messages import Inspect, Open, Report, Tell
from actors.metrics import Counters
from actors.notices import InspectMemory
from transport.bus.address import Address
from transport.context import Context
from transport.errors import CallHomeError, Cancelled, LocalProtocolError, qualified_name, shown

log = logging.getLogger("callhome")

_F = TypeVar("_F", bound=Callable[..., Any])
_HANDLES = "_callhome_handles"


def handles(message: type) -> Callable[[_F], _F]:
    """Bind a method of an Actor to a message type, a NamedTuple class.

    Raises LocalProtocolError, when the class is defined, for anything that is no async method or no
    NamedTuple, and for one that is called like a message of every actor.
    """
    if not (
        isinstance(message, type) and issubclass(message, tuple) and hasattr(message, "_fields")
    ):
        raise LocalProtocolError(f"@handles takes a NamedTuple class, not {message!r}")
    if message.__name__ == Inspect.__name__ and message is not Inspect:
        raise LocalProtocolError(
            f"{qualified_name(message)} is called like {qualified_name(Inspect)}, which every "
            "actor handles; messages are told apart by their names: give yours another"
        )

    def bind(method: _F) -> _F:
        if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
            name = getattr(method, "__qualname__", repr(method))
            raise LocalProtocolError(f"{name} handles {message.__name__} and must be 'async def'")
        setattr(method, _HANDLES, message)
        return method

    return bind


class Handler:
    """One bound method: the message it takes and whether it streams."""

    __slots__ = ("message", "name", "streams")

    def __init__(self, name: str, message: type, streams: bool) -> None:
        self.name = name
        self.message = message
        self.streams = streams


def _table(cls: type) -> dict[str, Handler]:
    """Message name -> handler; a subclass's method replaces its parent's.

    Raises LocalProtocolError for two message classes of one name: no sender could tell them apart.
    """
    found: dict[str, Handler] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            message = getattr(member, _HANDLES, None)
            if message is None:
                continue
            other = found.get(message.__name__)
            if other is not None and other.message is not message:
                raise LocalProtocolError(
                    f"{cls.__qualname__} handles {qualified_name(other.message)} and "
                    f"{qualified_name(message)}; messages are told apart by their names: "
                    "rename one of them"
                )
            found[message.__name__] = Handler(name, message, inspect.isasyncgenfunction(member))
    return found


class Actor:
    """Base of all actors, the built-in ones too. Subclass it, bind methods with ``@handles``.

    ``args`` of its ``ActorSpec`` are the keyword arguments of ``__init__``, which runs in the
    actor's process before it has inboxes; what needs the loop or other actors belongs into
    ``on_start``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises LocalProtocolError for handlers of two messages of one name."""
        super().__init_subclass__(**options)
        _table(cls)

    #: Set by ``attach`` before on_start; use the methods below rather than this.
    runtime: Runtime
    #: References among its ``args``: bound to its runtime before ``on_start``.
    given: Sequence[Ref] = ()
    #: Call it with a line of text in ``on_start`` to tell what takes time; set before on_start.
    progress: Callable[[str], None] = staticmethod(lambda text: None)

    async def on_start(self) -> None:
        """Runs in the actor's process, on its loop, before the first message; if it raises, the
        actor fails.
        """

    async def on_stop(self) -> None:
        """Runs after the last message, when all handlers have ended (or have used up half the grace
        time), also after a failure of on_start; raising is logged.
        """

    def attach(self, runtime: Runtime, tasks: asyncio.TaskGroup, lookup: Lookup | None) -> None:
        """Give the actor its place in the world; called once by whoever runs it."""
        self.runtime = runtime
        self.tasks = tasks
        self.counters = Counters()
        self._lookup = runtime.lookup = lookup
        for ref in self.given:
            ref.bind(runtime)
        self._handlers = _table(type(self))
        self._mailbox: Mailbox[Served | tuple[Handler, Any]] = Mailbox(
            runtime.settings.mailbox, runtime.hold_data, runtime.settings.mailbox_bytes
        )
        self._handlings = Handlings(runtime.address.name, runtime.address.incarnation)
        self._serving = Serving(runtime, self.role(), self.counters)
        runtime.serving = self._serving
        runtime.on(Tell, self._told)
        self._worker = tasks.create_task(self._work(), name=f"{runtime.address.name} mailbox")
        runtime.when_broken = self._broken
        #: Why nobody reaches this actor any more, as the log has told.
        self.cut_off: CallHomeError | None = None

    def _broken(self, error: CallHomeError) -> None:
        """Nobody reaches this actor any more: it fails, and comes back with inboxes of its own."""

        async def fail() -> None:
            raise error

        if self.cut_off is not None:
            return
        self.cut_off = error
        self._serving.shut(error.message)
        self.tasks.create_task(fail(), name=f"{self.name} cannot be reached")

    def role(self) -> Role:
        """What answers Opens here; engines bring their own."""
        return ActorRole(self)

    @property
    def name(self) -> str:
        """The actor's name on its node."""
        return self.runtime.address.name

    @property
    def address(self) -> Address:
        """This incarnation's address."""
        return self.runtime.address

    @property
    def settings(self) -> Settings:
        """The node's settings."""
        return self.runtime.settings

    def ref(self, name: str) -> Ref:
        """Another actor of this node by name; it need not be alive yet."""
        if self._lookup is None:
            raise ActorDead("this actor runs outside any node and knows no other")
        return Ref(name, self.runtime, self._lookup)

    @property
    def calls(self) -> Caller:
        """Calls to endpoints through a router of this node: ``self.calls.call(...)``, ``stream``,
        ``open``.
        """
        if self._lookup is None:
            raise ActorDead("this actor runs outside any node and knows no router")
        return Caller(self.runtime, self._lookup.router)

    def carries(self) -> dict[str, Any]:
        """What ``callhome ps`` shows of this actor: ``in_flight``, ``queued`` and ``capacity``."""
        return {
            "in_flight": len(self._serving.streams),
            "queued": len(self._mailbox),
            "capacity": None,
        }

    def _counters_of_role(self) -> dict[str, int]:
        """Counters of its role, for ``callhome ps --counters``."""
        return {}

    @handles(Inspect)
    async def inspect(self, message: Inspect) -> AsyncIterator[dict[str, Any]]:
        """Counters and load; a stream, so that a busy mailbox does not hide them."""
        port = self.runtime.port.statistics()._asdict()
        memory = self.runtime.memory.statistics()
        counters = self.counters.to_dict() | {f"bus.{name}": count for name, count in port.items()}
        counters |= {"memory.bytes": memory.in_use, "memory.slots": memory.slots}
        counters["memory.lent"] = memory.lent
        counters["tasks"] = len(asyncio.all_tasks())
        counters |= {
            f"calls.{name}": count for name, count in self.runtime.home.between.statistics().items()
        }
        yield self.carries() | {"counters": counters | self._counters_of_role()}

    @handles(InspectMemory)
    async def inspect_memory(self, message: InspectMemory) -> AsyncIterator[dict[str, Any]]:
        """Its shared memory, for ``callhome ps --memory``."""
        yield self.runtime.keeping.account()

    def _told(self, sender: int, m: Tell) -> None:
        handler = self._handlers.get(m.target)
        if handler is None or handler.streams:
            # The sender's mistake, and nobody waits for an answer: no traceback would help.
            who = self.runtime.peers.find(sender) or f"incarnation {sender:x}"
            text = f"handles no {m.target[:100]!r} by tell; it handles {self.handled()}"
            self.counters.failed(Unsupported(text))
            log.warning("%s: a tell of %s is dropped: %s %s", self.name, who, self.name, text)
            return
        self._mailbox.put((handler, m.payload), len(m.payload))

    def handled(self) -> str:
        """Names of the messages that this actor handles, for errors."""
        return ", ".join(sorted(self._handlers)) or "none"

    def begin_stream(self, stream: Served) -> None:
        """An ask, or a stream, from somebody's Ref."""
        handler = self._handlers.get(stream.open.target)
        if handler is None:
            what = shown(stream.open.target)
            text = f"{self.name} handles no {what}; it handles {self.handled()}"
            self._serving.end(stream, Unsupported(text))
        elif stream.open.many:
            self._serving.end(stream, Unsupported(f"{self.name} takes no stream of requests"))
        elif handler.streams:
            stream.task = self.tasks.create_task(self._run_stream(stream, handler))
        elif circle := self._handlings.circle(stream.open.metadata.get(KEY)):
            self._serving.end(stream, circle)
        elif not self._mailbox.room:
            self.counters.refused += 1
            self._serving.end(
                stream, Overloaded(f"the mailbox of {self.name} is full; ask again later")
            )
        else:
            self._mailbox.put(stream, len(stream.open.payload))

    async def _run_stream(self, stream: Served, handler: Handler) -> None:
        stream.begun = True
        CHAIN.set(str(stream.open.metadata.get(KEY, "")))
        await self._serving.pump.run(stream, self._items(stream, handler))

    async def _items(self, stream: Served, handler: Handler) -> AsyncIterator[Any]:
        message = read_message(self._serving.request(stream), handler.message)
        method = getattr(self, handler.name)
        items = method(message)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def _work(self) -> None:
        """The mailbox, one message at a time, until the actor ends."""
        IN_HANDLER.set(True)
        while True:
            work = await self._mailbox.get()
            if isinstance(work, Served):
                await self._answer(work)
            else:
                self._handlings.begin()
                await self._take(*work)
            self._handlings.end()

    async def _take(self, handler: Handler, payload: bytes) -> None:
        try:
            message = read_message(self.runtime.decode(payload, [], "msgpack"), handler.message)
            await getattr(self, handler.name)(message)
        except (Exception, asyncio.CancelledError) as failure:
            if self._worker.cancelling():
                raise  # the actor stops; else something that the handler awaited was cancelled
            self.counters.failed(failure)
            self.runtime.complain(f"a tell of {handler.message.__name__}", failure)

    async def _answer(self, stream: Served) -> None:
        if stream.key not in self._serving.streams:
            return  # cancelled while it waited
        # A task of its own, so that a kill reaches the handler and not the mailbox.
        stream.task = self.tasks.create_task(self._run_ask(stream))
        await asyncio.wait([stream.task])

    async def _run_ask(self, stream: Served) -> None:
        stream.begun = True
        handler = self._handlers[stream.open.target]
        self._handlings.begin(str(stream.open.metadata.get(KEY, "")))
        error: BaseException | None = None
        try:
            message = read_message(self._serving.request(stream), handler.message)
            result = await getattr(self, handler.name)(message)
            if not stream.context.killed:  # a handler may have swallowed its cancellation
                encoded = self.runtime.encode(result, stream.codec, stream.native, "answer")
                if encoded.handles:
                    encoded = await self.runtime.lend(encoded, stream.home, stream.key[1])
                stream.emit(encoded)
        except asyncio.CancelledError:
            error = Cancelled(f"the ask was cancelled: {stream.context.reason}")
        except Exception as failure:
            error = failure
        self._serving.end(stream, error)
        # Its traceback holds this frame and, with it, what the message held: frames among them.
        error = None

    async def wait_drained(self, limit: float) -> int:
        """It was asked to stop: let what is under way go on, for ``limit`` seconds at most; how
        many streams were cut. Handlers of a plain actor are cancelled instead, by ``shut``.
        """
        return 0

    def hurry(self) -> None:
        """It was asked to stop once more: ``wait_drained`` is to return at once."""

    def shut(self) -> None:
        """Take no more messages: the mailbox ends, streams end with an error that says so."""
        self._serving.shut(f"{self.name} stops")
        self._worker.cancel()

    async def wait_ended(self) -> None:
        """After ``shut``: wait until its handlers have ended, for half the grace time at most."""
        ending = [self._worker, *self._serving.ending]
        await asyncio.wait(ending, timeout=self.settings.stop_grace / 2)


class ActorRole:
    """How a plain actor answers Opens: by its handlers."""

    passes_errors = True

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def make_context(self, message: Open, deadline: float | None) -> Context:
        return Context(message.request_id, message.metadata, deadline)

    def begin(self, stream: Served) -> None:
        self._actor.begin_stream(stream)

    def came(self, stream: Served) -> None:
        """Nothing to count: actors have no permits."""

    def faulted(self, stream: Served) -> None:
        """Nothing to give back: actors have no permits."""

    def killed(self, stream: Served) -> None:
        """Nobody counts what goes on."""

    def gone(self, stream: Served) -> None:
        """Nothing to settle: actors have no permits."""

    def report(self, stream: Served) -> Report | None:
        return None
