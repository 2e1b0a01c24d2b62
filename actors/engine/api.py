"""What a user writes an engine with: Engine, BidirectionalEngine, RequestStream and the engine's
Context.

An engine may also be a plain function: an async generator, a coroutine function (one answer), or a
generator (it runs in a thread). ``@bidirectional`` marks a function whose request is a stream; the
kind is declared, never guessed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from actors.errors import Unsupported
from actors.kernel.calls import DEFAULT, Caller, Timeout
from actors.kernel.ref import Lookup
from actors.kernel.responses import DuplexStream, ResponseStream
from actors.kernel.runtime import Runtime
from actors.kernel.served import Served
from transport.context import Context
from transport.errors import CallHomeError, Cancelled
from transport.shm.frames import Frames
from transport.wire.adapter import PayloadAdapter

Q = TypeVar("Q")
A = TypeVar("A")
_F = TypeVar("_F", bound=Callable[..., Any])

BIDIRECTIONAL = "_callhome_bidirectional"


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
        MemoryExhausted.
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
    ) -> Any:
        """Exactly one answer of another endpoint; as ``Client.call``."""
        return await self._calls().call(endpoint, request, timeout=timeout, codec=codec)

    def stream(
        self,
        endpoint: str,
        request: Any = None,
        *,
        timeout: Timeout = None,
        annotated: bool = False,
    ) -> ResponseStream:
        """A stream of another endpoint; as ``Client.stream``."""
        return self._calls().stream(endpoint, request, timeout=timeout, annotated=annotated)

    def open(
        self, endpoint: str, *, timeout: Timeout = None, annotated: bool = False
    ) -> DuplexStream:
        """A bidirectional stream to another endpoint; as ``Client.open``."""
        return self._calls().open(endpoint, timeout=timeout, annotated=annotated)


def bytes_only(endpoint: str) -> Unsupported:
    """What a sender of shared memory is told at an endpoint with a payload adapter."""
    return Unsupported(
        f"{endpoint} has a payload adapter, which reads bytes: send it plain values, but no frames "
        "and no arrays, buffers or bytes from inline_below (32 KiB) up"
    )


class RequestStream(Generic[Q]):
    """The request items of a bidirectional stream, in order; ends when the client has said its
    last.

    Reading is what grants the client room for more. A request that was cut never ends cleanly: the
    handler is killed instead, and a task of its own that still reads gets Cancelled. One task reads
    at a time.
    """

    def __init__(
        self, runtime: Runtime, stream: Served, adapter: PayloadAdapter | None = None
    ) -> None:
        self._runtime = runtime
        self._stream = stream
        self._adapter = adapter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Q:
        stream = self._stream
        while not stream.feed_queue:
            if stream.feed_ended:
                raise StopAsyncIteration
            if not stream.state.request_open:
                # Told also to a task that the handler has left behind: it was not the end.
                reason = stream.context.reason or "its stream has ended"
                raise Cancelled(f"{stream.open.target}: the request was cut: {reason}")
            await stream.wait_feed()
        queued = stream.feed_queue.popleft()
        payload, handles, size = (queued, [], len(queued)) if isinstance(queued, bytes) else queued
        stream.feed_taken(size)
        if self._adapter is not None and not handles:
            adapted: Q = self._adapter.decode(payload)
            return adapted
        try:
            if self._adapter is not None:
                self._runtime.drop(handles)
                raise bytes_only(stream.open.target)
            item: Q = self._runtime.decode(payload, handles, stream.codec)
        except CallHomeError as error:
            # The handler may go on reading, but it shall not take the rest for the whole.
            stream.serving.break_feed(stream, error)
            raise
        return item


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
