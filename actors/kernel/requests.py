"""The request items of a bidirectional stream, as whoever serves it reads them."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from actors.errors import Unsupported
from actors.kernel.runtime import Runtime
from actors.kernel.served import Served
from transport.errors import CallHomeError, Cancelled
from transport.wire.adapter import PayloadAdapter
from transport.wire.ints import without_ints

Q = TypeVar("Q")


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
            adapted: Q = self._adapter.decode(without_ints(payload, stream.codec))
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
