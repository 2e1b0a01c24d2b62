"""The streams that users hold: answers of one request, or a stream each way."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from actors.kernel.opened import Opened
from actors.kernel.runtime import Runtime
from transport.context import Context
from transport.errors import CallHomeError, Cancelled, EngineError, LocalProtocolError
from transport.payload import REQUEST, inline_kept
from transport.wire.codec import Annotated
from transport.wire.plain import PLAIN, error_of

if TYPE_CHECKING:
    from actors.kernel.calls import Caller
    from actors.kernel.kept import Kept
    from actors.kernel.sent import Request
    from actors.kernel.watchful import StreamWarning


class ResponseStream:
    """The answers of one stream, in order; made by ``stream``, used in ``async with`` and ``async
    for``.

    Iterating raises the stream's typed error after the items that came before it; a kill from this
    side raises Cancelled. One task reads at a time.
    """

    def __init__(self, caller: Caller, sent: Request, request: Any, annotated: bool) -> None:
        self._caller = caller
        self._runtime = caller.runtime
        self._sent = sent
        self._request = request
        self._annotated = annotated
        #: The attempt whose items are being read; a later one may have begun already.
        self._stream: Opened | None = None
        #: Items of the attempts before it.
        self._before = 0
        self._kept = None if sent.attempts is None else sent.attempts.delivered
        #: Done when the next attempt is decided upon, while that takes time.
        self._turning: asyncio.Future[None] | None = None
        self._loop = caller.runtime.loop

    @property
    def context(self) -> Context:
        """Id, metadata and cancel state of this stream."""
        return self._sent.context

    @property
    def received(self) -> int:
        """Items that have arrived so far, taken or not."""
        count, stream = self._before, self._stream
        while stream is not None:
            count += stream.seq
            stream = stream.after
        return count

    @property
    def attempts(self) -> int:
        """How often the request has been sent; more than once after a failure."""
        if self._stream is None:
            return 0
        return 1 if self._sent.attempts is None else self._sent.attempts.count

    @property
    def warnings(self) -> tuple[StreamWarning, ...]:
        """What was told of trouble at the other end so far, the newest last; at most 16. The stream
        goes on, see ``on_warning`` of ``stream``.
        """
        return self._sent.context.warnings

    def _begin(self) -> Opened:
        if self._stream is None:
            if not self._sent.many:
                self._sent.encoded = self._caller.encode(self._request, self._sent)
                self._request = None
            elif self._caller.parent is not None:
                self._caller.parent.link(self._sent.context)
            self._stream = self._sent.send()
        return self._stream

    async def _started(self) -> Opened:
        """As ``_begin``; in an actor's on_start behind that of the one that is called."""
        starting = self._runtime.starting
        if starting is not None and self._caller.actor:
            await starting.wait(self._caller.actor, self._sent.context.remaining())
        return self._begin()

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave("its caller left the stream")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        stream = self._stream or await self._started()
        queue = stream.queue
        while not queue:
            if not stream.state.response_open:
                stream = await self._next(stream)
                queue = stream.queue
                continue
            await stream.wait()
        queued = queue.popleft()
        if self._kept is not None:
            self._kept.note(stream.codec, queued)
        try:
            if isinstance(queued, bytes):
                stream.taken(len(queued))
                item = self._runtime.decode(queued, [], stream.codec, True)
            else:
                payload, handles, size = queued
                stream.taken(size)
                item = self._runtime.decode(payload, handles, stream.codec, True)
        except CallHomeError as error:
            self._break(stream, error)
            raise
        if self._annotated:
            return item if type(item) is Annotated else Annotated(data=item)
        if type(item) is not Annotated:
            return item
        try:
            return plain(item, stream.codec)
        except CallHomeError as error:
            if type(error) is EngineError:
                self._break(stream, error)
                raise
            failure = error
        # A foreign worker tells of its own state: the stream has ended, and not yet the request.
        if self._kept is not None:
            self._kept.forget_last()
        stream.faulty = 1 + len(stream.queue)
        self._runtime.home.fail(stream, failure)
        await self._next(stream)
        return await self.__anext__()

    async def _next(self, stream: Opened) -> Opened:
        """The attempt after ``stream``, which has ended and has no items left. Raises what the
        request has ended with, StopAsyncIteration when that was well.
        """
        if stream.error is None and stream.after is None:
            raise StopAsyncIteration
        again = await self._turn(stream)
        if again is None:
            if stream.error is None:
                raise StopAsyncIteration
            raise stream.failure()
        self._before += stream.seq - stream.faulty
        self._stream = again
        return again

    async def _turn(self, stream: Opened) -> Opened | None:
        """The attempt after ``stream``, for its reader and its sender alike; None: there is
        none.
        """
        while stream.after is None and not stream.settled:
            if self._turning is not None:
                await asyncio.wait({self._turning})
                continue
            self._turning = self._loop.create_future()
            try:
                await self._sent.again(stream, self._behind())
            finally:
                self._turning.set_result(None)
                self._turning = None
        return stream.after

    def _behind(self) -> list[Opened]:
        """The attempt that is read and those after it."""
        found, stream = [], self._stream
        while stream is not None:
            found.append(stream)
            stream = stream.after
        return found

    def _newest(self) -> Opened:
        """The attempt under way, or the last one."""
        stream = self._stream or self._begin()
        while stream.after is not None:
            stream = stream.after
        return stream

    def _break(self, stream: Opened, error: CallHomeError) -> None:
        """An item of this stream is no good: nothing after it is delivered."""
        self.context.kill(str(error)[:200])
        for each in self._behind():
            self._sent.give_up(each)
            each.after = None
        stream.error = error

    def stop(self, reason: str = "stopped by its caller") -> None:
        """Ask the engine to finish; what it still yields arrives, then the stream ends cleanly.

        One that has not begun with this stream never does, and the stream ends without an item.
        """
        self._runtime.check_loop()
        self.context.stop(reason)

    def kill(self, reason: str = "killed by its caller") -> None:
        """Drop the stream: nothing more arrives, whoever reads it gets Cancelled."""
        self._leave(reason)

    async def aclose(self) -> None:
        """Kill the stream unless it has ended."""
        self._leave("closed by its caller")

    def _leave(self, reason: str) -> None:
        self._runtime.check_loop()
        stream = self._stream
        if stream is None:
            self.context.kill(reason)
            return
        if stream.state.response_open:
            self.context.kill(reason)
            return
        if self._turning is not None or stream.after is not None:
            self.context.kill(reason)  # a later attempt is under way, or about to be
        if stream.queue:
            stream.error = stream.error or Cancelled(f"{stream.target}: {reason}")
        for each in self._behind():
            self._sent.give_up(each)

    def __del__(self) -> None:
        # The last reference is gone: a kill. The collector may run in any thread.
        stream = getattr(self, "_stream", None)
        if stream is None or self._loop.is_closed():
            return
        if (
            stream.state.response_open
            or stream.queue
            or stream.error is not None
            or stream.after is not None
        ):
            self._loop.call_soon_threadsafe(_abandon, self._sent, stream)


class DuplexStream(ResponseStream):
    """A stream each way; made by ``open``. Ending our side is no cancel: the answers go on."""

    async def send(self, item: Any) -> None:
        """Send one request item; waits while the engine has no room.

        The item is encoded before this returns, so the object may be used again (a Frame is handed
        on). Raises EncodeError (nothing was sent, the stream goes on), LocalProtocolError after
        ``end``, Cancelled when the engine has ended the stream, and the stream's own error.
        """
        self._runtime.check_loop()
        attempts = self._sent.attempts
        if attempts is not None and attempts.spoken is not None:
            await self._send_kept(item, attempts.spoken)
            return
        stream = self._newest()
        if not stream.feed_credit.open or not stream.state.request_open:
            stream = await self._ready()
        encoded = self._runtime.encode(item, stream.codec, True, REQUEST)
        if encoded.handles:
            assert stream.peer is not None
            peer = stream.peer
            encoded = await self._runtime.lend(encoded, peer, stream.number)
            try:
                stream.check_feed()
            except CallHomeError:  # it ended meanwhile: nobody will see the item
                self._runtime.links.take_back(encoded, peer)
                stream.settle()  # and no later attempt may do without it
                raise
        stream.feed(encoded)

    async def _send_kept(self, item: Any, spoken: Kept) -> None:
        """As ``send``, where the item may have to be sent to another worker once more."""
        stream = await self._ready()
        encoded = self._runtime.encode(item, stream.codec, True, REQUEST)
        encoded = inline_kept(encoded, self._runtime.memory)
        stream.feed(encoded)
        spoken.note(stream.codec, encoded)

    async def _ready(self) -> Opened:
        """The attempt that takes a request item now."""
        while True:
            stream = self._newest()
            if self._sent.said_last and stream.error is None and stream.state.response_open:
                raise LocalProtocolError("send after end: this side has said its last already")
            try:
                await stream.wait_feed_credit()
                return stream
            except CallHomeError:
                if stream.error is None or stream.settled:
                    raise
            if await self._turn(stream) is None:
                stream.check_feed()

    async def recv(self) -> Any:
        """The next answer. Raises EOFError when the engine has ended cleanly, or the stream's
        error.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise EOFError(f"{self._sent.target} has ended the stream") from None

    async def end(self) -> None:
        """Our last word; answers go on arriving. A second call does nothing."""
        self._runtime.check_loop()
        stream = self._newest()
        self._sent.said_last = True
        if stream.replay is not None:
            stream.replay.ends = True  # behind what the new worker is to hear first
        elif stream.state.request_open:
            stream.feed_end()


def drop_queue(runtime: Runtime, stream: Opened) -> None:
    """Return the leases of items that nobody will take."""
    runtime.drop_items(stream.queue)


def _abandon(sent: Request, stream: Opened) -> None:
    stream.context.kill("its caller dropped the stream")
    attempt: Opened | None = stream
    while attempt is not None:
        sent.give_up(attempt)
        attempt = attempt.after


def plain(item: Any, codec: str) -> Any:
    """The data of an item; an error item raises EngineError, that of a foreign worker what it
    stands for.
    """
    if type(item) is not Annotated:
        return item
    if codec in PLAIN and (error := error_of(item)) is not None:
        raise error
    if item.is_error:
        text = "; ".join(item.comment or ()) or str(item.error or "the engine sent an error item")
        raise EngineError(text, type="error item")
    return item.data
