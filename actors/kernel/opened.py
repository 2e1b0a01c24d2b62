"""One stream at its home: what has arrived, what may be sent, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from actors.kernel.mailbox import IN_HANDLER
from actors.messages import FeedEnd, FeedItem, Open, Report, Route
from transport.bus.address import Address
from transport.context import Context
from transport.errors import (
    CallHomeError,
    Cancelled,
    DeadlineExceeded,
    LocalProtocolError,
)
from transport.payload import REQUEST, Encoded, inline_kept
from transport.wire import stream as machine
from transport.wire.stream import ReceiveWindow, SendCredit, StreamState

if TYPE_CHECKING:
    from actors.kernel.home import Home
    from actors.kernel.watchful import Trouble

#: A queued item: payload bytes, or payload, handles and counted size.
Queued = bytes | tuple[bytes, list[Any], int]


class Limits:
    """Time limits of one stream in seconds, None meaning no limit; checked by the runtime's coarse
    timer.
    """

    __slots__ = ("first", "gap", "total")

    def __init__(self, total: float | None, first: float | None, gap: float | None) -> None:
        self.total = total
        self.first = first
        self.gap = gap


class Prelude:
    """What a new worker is to hear before the caller's next items, of a stream each way."""

    __slots__ = ("ends", "items", "unable")

    def __init__(
        self, items: Iterator[Any], unable: Callable[[BaseException], CallHomeError]
    ) -> None:
        self.items = items
        #: Makes the stream's error of what went wrong with an item.
        self.unable = unable
        #: The caller has said his last behind them.
        self.ends = False


class Opened:
    """One stream at its home; used by ``Home`` and by the stream classes of
    ``actors.kernel.calls``.
    """

    __slots__ = (
        "after",
        "codec",
        "context",
        "error",
        "faulty",
        "fed",
        "feed_batch",
        "feed_credit",
        "feed_seq",
        "feed_waiter",
        "home",
        "in_handler",
        "keep",
        "limits",
        "many",
        "number",
        "peer",
        "progress",
        "queue",
        "replay",
        "seq",
        "settled",
        "state",
        "target",
        "trouble",
        "via",
        "waiter",
        "window",
    )

    def __init__(
        self,
        home: Home,
        number: int,
        target: str,
        via: Address,
        many: bool,
        codec: str,
        context: Context,
        limits: Limits,
    ) -> None:
        self.home = home
        self.number = number
        self.in_handler = IN_HANDLER.get()
        self.target = target
        self.via = via
        self.many = many
        #: Of the items that come, and of request items that go; an Accept may change it.
        self.codec = codec
        self.peer: Address | None = None
        self.context = context
        self.state = StreamState(many)
        self.queue: deque[Queued] = deque()
        self.seq = 0
        self.error: CallHomeError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.window = ReceiveWindow(home.window_items, home.window_bytes)
        self.limits = limits
        self.progress = time.monotonic()
        self.feed_credit = SendCredit(0, 0)
        self.feed_seq = 0
        self.feed_batch: list[bytes] = []
        self.feed_waiter: asyncio.Future[None] | None = None
        #: The next attempt of the same request; ``settled``: there will be none.
        self.after: Opened | None = None
        self.settled = False
        #: How long the request's frames stay ours, too: to the first item (1), or the end (2).
        self.keep = 0
        #: Request items have been sent; ``replay``: those that come before the caller's next.
        self.fed = False
        self.replay: Prelude | None = None
        #: Arrived items that stand for the stream's error.
        self.faulty = 0
        #: What is wrong at the other end now; see ``actors.kernel.watchful``.
        self.trouble: Trouble | None = None

    def message(
        self, encoded: Encoded, native: bool, reports: list[Report], route: Route | None
    ) -> Open:
        """The Open that begins this stream; ``reports`` are for the router that it goes to."""
        home, context = self.home, self.context
        return Open(
            self.number,
            home.runtime.address,
            self.target,
            self.many,
            self.codec,
            native,
            encoded.data,
            encoded.handles,
            home.runtime.links.segments(encoded.handles),
            home.window_items,
            home.window_bytes,
            context.remaining(),
            context.metadata,
            context.id,
            None,
            reports,
            route,
        )

    def worker(self, peer: Address | None) -> dict[str, str]:
        """The details of an error that tell which worker failed; a router is none."""
        if peer is None or peer.incarnation == self.via.incarnation:
            return {}
        return {"instance": str(peer.incarnation)}

    def expired(self, now: float) -> DeadlineExceeded | None:
        """Which of its time limits has run out, if one has."""
        deadline, limits = self.context.deadline, self.limits
        if deadline is not None and now >= deadline:
            text = (
                f"{self.target}: no end within {round(limits.total or 0.0, 3):g} s{self._why(now)}"
            )
            return DeadlineExceeded(text, limit="total")
        limit = limits.gap if self.seq else limits.first
        if limit is None or now - self.progress < limit:
            return None
        if self.window.items <= 0 or self.window.bytes <= 0:
            return None  # it is the consumer who takes his time
        what, name = ("further", "gap") if self.seq else ("first", "first")
        text = f"{self.target}: no {what} item within {limit} s{self._why(now)}"
        return DeadlineExceeded(text, limit=name, **self.worker(self.peer))

    def _why(self, now: float) -> str:
        return "" if self.trouble is None else f"; {self.trouble.words(now)}"

    def settle(self) -> None:
        """There will be no further attempt: what was kept for one goes back."""
        self.settled = True
        self.home.between.settled(self)
        self.home.runtime.links.settled(self.number)

    def taken(self, size: int) -> None:
        """The consumer took an item of ``size`` bytes; grants credit when that is due."""
        if self.window.take(size) and self.state.response_open:
            self.home.runtime.check_loop()
            self.home.grant(self)

    async def wait(self) -> None:
        """Wait until an item or the end is there. Raises LocalProtocolError if somebody waits
        already.
        """
        self.home.runtime.check_loop()
        if self.waiter is not None:
            raise LocalProtocolError("another task is reading this stream; one reader at a time")
        if self.window.taken_items:
            self.home.grant(self)
        self.waiter = self.home.runtime.loop.create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None

    async def wait_ended(self) -> None:
        """Wait for the end; items gather meanwhile, as far as the window allows."""
        while self.state.response_open:
            await self.wait()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def wake_feed(self) -> None:
        if self.replay is not None:
            self._feed_replay(self.replay)
        if self.feed_waiter is not None and not self.feed_waiter.done():
            self.feed_waiter.set_result(None)

    async def wait_feed_credit(self) -> None:
        """Wait for room for one more request item. Raises what ended the stream, if something
        did.
        """
        while not self.feed_credit.open or self.replay is not None:
            self.check_feed()
            if self.feed_waiter is not None:
                raise LocalProtocolError(
                    "another task is sending on this stream; one sender at a time"
                )
            self.feed_waiter = self.home.runtime.loop.create_future()
            try:
                await self.feed_waiter
            finally:
                self.feed_waiter = None
        self.check_feed()

    def check_feed(self) -> None:
        """Raise unless a request item may be sent."""
        if self.state.request_open:
            return
        if self.error is not None:
            raise self.failure()
        if self.state.response_open:
            raise LocalProtocolError("send after end: this side has said its last already")
        raise Cancelled("the engine has ended the stream and takes no more input")

    def failure(self) -> CallHomeError:
        """What ended the stream, as an exception to be raised; a new one at each call.

        The one that is kept must not be raised: its traceback would tie the stream to its reader's
        variables, and keep the memory of the items in them.
        """
        kept = self.error
        assert kept is not None
        fresh = type(kept)(kept.message, **kept.details)
        fresh.__cause__ = kept.__cause__
        return fresh

    def feed(self, encoded: Encoded) -> None:
        """Send one request item; ``wait_feed_credit`` came before."""
        assert self.peer is not None
        self.fed = True
        self.state.feed(machine.FEED, LocalProtocolError)
        self.feed_credit.spend(1, encoded.size)
        if encoded.handles:
            self.home.collect_feed(self)
            message = FeedItem(
                self.number, self.feed_seq, encoded.data, encoded.handles, encoded.size
            )
            self.home.runtime.port.send(self.peer, message, size=encoded.carried)
            self.feed_seq += 1
            return
        if not self.feed_batch:
            self.home.mark_feed(self)
        self.feed_batch.append(encoded.data)

    def _feed_replay(self, prelude: Prelude) -> None:
        """Send what a new worker is to hear again, as far as it has room."""
        runtime = self.home.runtime
        try:
            while self.feed_credit.open and self.state.request_open:
                try:
                    item = next(prelude.items)
                except StopIteration:
                    self.replay = None
                    break
                encoded = runtime.encode(item, self.codec, True, REQUEST)
                self.feed(inline_kept(encoded, runtime.memory))
        except (Exception, SystemExit) as error:  # it is the user's: it ends no program either
            self.replay = None
            self.home.fail(self, prelude.unable(error))
            return
        if not self.state.request_open:
            self.replay = None
        elif self.replay is None and prelude.ends:
            self.feed_end()

    def feed_end(self) -> None:
        """Our last word; the response goes on."""
        self.state.feed(machine.FEED_END, LocalProtocolError)
        self.tell_feed_end()

    def tell_feed_end(self) -> None:
        """Tell the peer that the request has ended; before Accept there is no peer to tell."""
        if self.peer is not None:
            self.home.collect_feed(self)
            self.home.runtime.port.send(self.peer, FeedEnd(self.number, self.feed_seq))
