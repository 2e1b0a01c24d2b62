"""What a user writes an engine with: Engine, BidirectionalEngine and the engine's Context.

An engine may also be a plain function: an async generator, a coroutine function (one answer), or a
generator (it runs in a thread). ``@bidirectional`` marks a function whose request is a stream; the
kind is declared, never guessed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, TypeVar

from actors.kernel.attempts import Replay, Resume
from actors.kernel.calls import DEFAULT, Caller, Timeout
from actors.kernel.ref import Lookup
from actors.kernel.requests import RequestStream
from actors.kernel.responses import DuplexStream, ResponseStream
from actors.kernel.runtime import Runtime
from transport.context import Context
from transport.shm.frames import Frames

Q = TypeVar("Q")
A = TypeVar("A")
_F = TypeVar("_F", bound=Callable[..., Any])

BIDIRECTIONAL = "_callhome_bidirectional"
#: In ``ctx.metadata`` of a request that is the engine's own canary, and in no other of its worker.
CANARY = "x-callhome-canary"


def bidirectional(function: _F) -> _F:
    """Declare that a function engine takes a RequestStream instead of one request."""
    setattr(function, BIDIRECTIONAL, True)
    return function


class EngineContext(Context):
    """The Context of a stream inside an engine: cancellation, deadline, frames, and calls to other
    endpoints.

    ``call``, ``stream`` and ``open`` make child streams: a stop or kill of this one reaches them,
    they get what is left of its deadline, and what still runs when the handler ends is killed.
    """

    __slots__ = ("_caller", "_lookup", "_runtime")

    def __init__(
        self,
        request_id: str,
        metadata: Mapping[str, str] | None,
        deadline: float | None,
        runtime: Runtime,
        lookup: Lookup | None,
    ) -> None:
        super().__init__(request_id, metadata, deadline)
        self._runtime = runtime
        self._lookup = lookup
        self._caller: Caller | None = None

    @property
    def frames(self) -> Frames:
        """``ctx.frames.new(shape, dtype)``: a frame to be written in place and yielded. Raises
        MemoryExhausted; ``await ctx.frames.wait_new(...)``, and in an engine that is no coroutine
        ``new(..., wait=seconds)``, wait for room.
        """
        return self._runtime.memory.frames

    def _calls(self) -> Caller:
        if self._caller is None:
            lookup = self._lookup
            assert lookup is not None, "an engine always runs inside a node"
            self._caller = Caller(self._runtime, lookup.router, parent=self)
        return self._caller

    async def call(
        self,
        endpoint: str,
        request: Any = None,
        *,
        timeout: Timeout = DEFAULT,
        codec: str | None = None,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
    ) -> Any:
        """Exactly one answer of another endpoint; as ``Client.call``."""
        return await self._calls().call(
            endpoint,
            request,
            timeout=timeout,
            codec=codec,
            instance=instance,
            priority=priority,
            migration_limit=migration_limit,
        )

    def stream(
        self,
        endpoint: str,
        request: Any = None,
        *,
        timeout: Timeout = None,
        annotated: bool = False,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
        resume: Resume | None = None,
    ) -> ResponseStream:
        """A stream of another endpoint; as ``Client.stream``."""
        return self._calls().stream(
            endpoint,
            request,
            timeout=timeout,
            annotated=annotated,
            instance=instance,
            priority=priority,
            migration_limit=migration_limit,
            resume=resume,
        )

    def open(
        self,
        endpoint: str,
        *,
        timeout: Timeout = None,
        annotated: bool = False,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
        replay: Replay | None = None,
    ) -> DuplexStream:
        """A bidirectional stream to another endpoint; as ``Client.open``."""
        return self._calls().open(
            endpoint,
            timeout=timeout,
            annotated=annotated,
            instance=instance,
            priority=priority,
            migration_limit=migration_limit,
            replay=replay,
        )


class _Base:
    """Hooks of both engine classes."""

    async def on_start(self) -> None:
        """Runs once in the worker process before the first request; the endpoint is published
        after it.
        """

    async def on_stop(self) -> None:
        """Runs once when the worker stops, after its streams have ended; a handler that has not
        ended within half the grace time is not waited for.
        """


class Engine(_Base, ABC, Generic[Q, A]):
    """One request in, many items out. ``args`` of its EngineSpec are the keyword arguments of
    ``__init__``.
    """

    @abstractmethod
    def generate(self, request: Q, ctx: EngineContext) -> AsyncIterator[A]:
        """Yield the items of one stream; runs once a request, up to ``capacity`` at the same
        time.
        """


class BidirectionalEngine(_Base, ABC, Generic[Q, A]):
    """A stream of items in, a stream of items out."""

    @abstractmethod
    def generate(self, requests: RequestStream[Q], ctx: EngineContext) -> AsyncIterator[A]:
        """Yield the items of one stream while reading ``requests``; their end is no cancel."""
