"""Generators that are not async run here: in daemon threads, one for each place of an engine's
capacity.

The default executor would not do: it has six threads on two cores, and a call that nobody can
cancel blocks the end of the process. A thread that does not return keeps its place, as it keeps its
engine busy.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from actors.kernel.forks import Fork
from transport.context import Context
from transport.payload import Encoded, EncodedError
from transport.shm.turns import OVER
from transport.wire.codec import pack_plain
from transport.wire.plain import PLAIN
from transport.wire.values import Annotated

#: How far a generator may be ahead of the loop, in items and in bytes (one larger item may). What
#: the stream's credit lets through is on top of that.
_AHEAD = 64
_AHEAD_BYTES = 1 << 20
#: How often a thread that waits for room looks whether it was killed, in seconds.
_LOOK = 0.5


class Threads:
    """The threads of one engine, started when first needed; at most one per running stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[queue.SimpleQueue[SyncItems | None]] = []
        self._started = 0
        self._closed = False
        self.fork = Fork()

    def run(self, items: SyncItems) -> None:
        """Give the generator a thread of its own until it has ended."""
        if self._idle:
            self._idle.pop().put(items)
            return
        lane: queue.SimpleQueue[SyncItems | None] = queue.SimpleQueue()
        lane.put(items)
        self._started += 1
        threading.Thread(
            target=self._serve, args=(lane,), name=f"{self._name} sync {self._started}", daemon=True
        ).start()

    def close(self) -> None:
        """The engine has stopped: its threads end, those that are busy when they have finished."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, lane: queue.SimpleQueue[SyncItems | None]) -> None:
        while (items := lane.get()) is not None:
            items.work(lambda: self._idle.append(lane))
            del items
            if self._closed:
                return


class SyncItems:
    """A generator's items as an async iterator; they are encoded in its thread, before it is
    resumed.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[Any]],
        context: Context,
        threads: Threads,
        encode: Callable[[Any], Any],
        codec: str,
        drop: Callable[[Any], None],
    ) -> None:
        """``drop`` gets what was encoded in vain. Both are called on the loop, but ``encode`` in
        the generator's thread under a plain codec.

        ``codec`` ``""``: every item goes through ``encode``, and what that returns is handed out.
        """
        self._make = make
        self._context = context
        self._threads = threads
        self._encode = encode
        self._plain = codec == "msgpack"
        self._alone = codec in PLAIN
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Condition()
        self._ready: deque[Any] = deque()
        self._ready_bytes = 0
        #: The item handed out last: when the stream is killed, its taker may not have sent it.
        self._last: Any = None
        self._started = self._ended = self._closed = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False

    def __aiter__(self) -> SyncItems:
        return self

    async def __anext__(self) -> Any:
        if not self._started:
            self._started = True
            self._threads.run(self)
        while True:
            with self._lock:
                if self._ready:
                    full = self._is_full()
                    self._last = self._ready.popleft()
                    self._ready_bytes -= _size(self._last)
                    if full:
                        self._lock.notify()
                    return self._last
                if self._ended:
                    error, self._error = self._error, None
                    try:
                        raise error or StopAsyncIteration
                    finally:
                        # Its traceback holds this frame: it would keep the handler's frames alive.
                        error = None
                self._waiter = self._loop.create_future()
                self._woken = False
            await self._waiter

    async def aclose(self) -> None:
        """Close the generator between two items and wait until its thread has left it."""
        self._closed = True
        with self._lock:
            self._lock.notify()
        await self._wait_ended()
        # Dropping what was lent to the reader meanwhile changes nothing.
        for each in (self._last, *self._ready):
            if each is not None:
                self._drop(each)
        self._ready.clear()
        self._last = None

    async def _wait_ended(self) -> None:
        while self._started and not self._ended:
            with self._lock:
                if self._ended:
                    return
                self._waiter = self._loop.create_future()
                self._woken = False
            try:
                await self._waiter
            except asyncio.CancelledError:
                # The place stays taken until the thread returns; a second cancel changes nothing
                # about that.
                continue

    def _wake_in_loop(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake(self) -> None:
        """Called with the lock held, in the thread."""
        if not self._woken and self._waiter is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._wake_in_loop)

    def work(self, done: Callable[[], None]) -> None:
        """Run the generator to its end, in the calling thread; ``done`` is called in the loop's
        order.
        """
        error: BaseException | None = None
        OVER.set(self._over)
        try:
            items = self._make()
            try:
                for item in items:
                    if self._threads.fork.happened:
                        self._threads.fork.end("went on with its generator")
                    if self._closed or self._context.killed:
                        break
                    if not self._hand_over(self._packed(item)):
                        break
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except BaseException as failure:
            error = failure
        if self._threads.fork.happened:
            self._threads.fork.end("left its generator", error)
        OVER.set(None)
        done()
        with self._lock:
            self._error, error = error, None
            self._ended = True
            if not self._loop.is_closed():
                self._wake()

    def _over(self) -> str | None:
        """Why nothing more is wanted; asked by who waits for memory in the thread."""
        if self._closed or self._context.killed:
            return self._context.reason or "its stream was closed"
        return None

    def _packed(self, item: Any) -> Any:
        if self._alone:
            return self._encode(item)
        data = pack_plain(item) if self._plain else None
        if data is not None and len(data) < 32_768:
            return error_or_not(item, Encoded(data, [], len(data)))
        # Arrays and large buffers go through the loop: the arena and its leases belong to it.
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def encode() -> None:
            try:
                answer.put(self._encode(item))
            except BaseException as failure:
                answer.put(failure)

        self._loop.call_soon_threadsafe(encode)
        found = answer.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _is_full(self) -> bool:
        return len(self._ready) >= _AHEAD or self._ready_bytes >= _AHEAD_BYTES

    def _hand_over(self, encoded: Any) -> bool:
        with self._lock:
            while self._is_full() and not self._closed and not self._context.killed:
                self._lock.wait(_LOOK)
            # In any case: whoever closes us drops it.
            self._ready.append(encoded)
            self._ready_bytes += _size(encoded)
            self._wake()
        return not self._closed and not self._context.killed


def error_or_not(item: object, encoded: Encoded) -> Encoded:
    """What an item was encoded to, marked if it is an error item."""
    return EncodedError(*encoded) if type(item) is Annotated and item.is_error else encoded


def _size(item: Any) -> int:
    """Bytes of an encoded item; of what an adapter returned, which is a tuple that begins with
    them, too.
    """
    size: int = item.size if isinstance(item, Encoded) else len(item[0])
    return size
