"""One stream at the actor that serves it: credit, items on their way out, request items on their
way in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.messages import FeedCredit, Inspect, Item, Open
from transport.bus.address import Address
from transport.context import Context
from transport.errors import CallHomeError, LocalProtocolError
from transport.payload import Encoded
from transport.wire import stream as machine
from transport.wire.stream import ReceiveWindow, SendCredit, StreamState

if TYPE_CHECKING:
    from actors.kernel.adopting import Adoption
    from actors.kernel.serving import Serving

Key = tuple[int, int]


#: What streams with a single request have instead; nothing is ever put in.
_NO_WINDOW = ReceiveWindow(0, 0)
_NO_FEED: deque[bytes | tuple[bytes, list[Any], int]] = deque()


class Served:
    """One stream as ``Serving`` and the role above it (engine, actor) hold it."""

    __slots__ = (
        "accepted",
        "adoption",
        "batch",
        "begun",
        "codec",
        "context",
        "counted",
        "credit",
        "credit_waiter",
        "feed_ended",
        "feed_queue",
        "feed_seq",
        "feed_waiter",
        "feed_window",
        "home",
        "key",
        "native",
        "open",
        "outcome",
        "router",
        "seq",
        "serving",
        "state",
        "taken",
        "task",
        "verdict",
    )

    def __init__(self, serving: Serving, message: Open, context: Context) -> None:
        self.serving = serving
        self.open = message
        self.home: Address = message.home
        self.router: Address | None = message.router
        self.key: Key = (message.home.incarnation, message.stream)
        self.codec = message.codec
        self.native = message.native
        self.context = context
        #: Looking at the counters does not move them.
        self.counted = message.target != Inspect.__name__
        self.state = StreamState(message.many)
        self.credit = SendCredit(message.window_items, message.window_bytes)
        self.credit_waiter: asyncio.Future[None] | None = None
        self.seq = 0
        self.batch: list[bytes] = []
        self.accepted = False
        #: Frames of others in the request, once a lease on them is asked for.
        self.adoption: Adoption | None = None
        self.taken = False
        self.task: asyncio.Task[None] | None = None
        #: The handler's task has run its first line. One that is cancelled before it never does.
        self.begun = False
        self.feed_window, self.feed_queue = _NO_WINDOW, _NO_FEED
        if message.many:
            self.feed_window = ReceiveWindow(serving.window_items, serving.window_bytes)
            self.feed_queue = deque()
        self.feed_waiter: asyncio.Future[None] | None = None
        self.feed_seq = 0
        self.feed_ended = False
        #: Code of the error that the stream ended with; "" while it runs and after a clean end.
        self.outcome = ""
        #: What the home is told in spite of a kill, because the kill was ours.
        self.verdict: CallHomeError | None = None

    def emit(self, encoded: Encoded) -> None:
        """Send one item; it leaves with this tick's batch. The caller minds the credit."""
        self.credit.spend(1, encoded.size)
        if encoded.handles:
            self._emit_alone(encoded)
            return
        if not self.batch:
            self.serving.mark(self)
        self.batch.append(encoded.data)

    def _emit_alone(self, encoded: Encoded) -> None:
        """One item that has handles, lent already, behind those gathered before it."""
        self.serving.collect(self)
        self.serving.accept(self)
        self.state.feed(machine.DATA, LocalProtocolError)
        message = Item(self.key[1], self.seq, encoded.data, encoded.handles, encoded.size)
        self.seq += 1
        self.serving.counters.items += 1
        self.serving.counters.bytes += encoded.size
        self.serving.runtime.port.send(self.home, message, size=encoded.carried)

    async def wait_credit(self) -> None:
        """Wait until the home has room for one more item, or the stream is killed."""
        while not self.credit.open and not self.context.killed:
            self.credit_waiter = self.serving.runtime.loop.create_future()
            try:
                await self.credit_waiter
            finally:
                self.credit_waiter = None

    def wake_credit(self) -> None:
        if self.credit_waiter is not None and not self.credit_waiter.done():
            self.credit_waiter.set_result(None)

    def feed_taken(self, size: int) -> None:
        """The handler took a request item of ``size`` bytes; grants credit when that is due."""
        if self.feed_window.take(size) and self.state.request_open:
            self._grant_feed()

    def _grant_feed(self) -> None:
        items, size = self.feed_window.owed()
        message = FeedCredit(self.key[1], items, size)
        self.serving.runtime.port.send(self.home, message, control=True)

    async def wait_feed(self) -> None:
        """Wait for the next request item or the end of the request."""
        if self.feed_waiter is not None:
            raise LocalProtocolError(
                "another task is reading this request stream; one reader at a time"
            )
        if self.feed_window.taken_items and self.state.request_open:
            self._grant_feed()
        self.feed_waiter = self.serving.runtime.loop.create_future()
        try:
            await self.feed_waiter
        finally:
            self.feed_waiter = None

    def wake_feed(self) -> None:
        if self.feed_waiter is not None and not self.feed_waiter.done():
            self.feed_waiter.set_result(None)
