"""Streams of Dynamo's requesters: a socket for the answers, and one more for a stream of requests.

The engine works for such a stream as for any other: it encodes its items as the requester wants
them, and here they only get a wrapper. How a stream ended is told as Dynamo tells it: an error of
the handler is an item, a clean end a last wrapper and a sentinel, and a stream that lost its engine
is cut off. The one rule: no last wrapper unless every item before it was written.
"""

from __future__ import annotations

import time
from typing import Final

from actors.ingress.arrival import Letter
from actors.ingress.feeding import Feeding
from actors.ingress.stream import Stream
from actors.ingress.streams import DIAL, Streams
from actors.messages import Accept, Credit, End, FeedCredit, Item, Items, Record
from transport.callhome.dialer import dial
from transport.callhome.framed import FramedLink
from transport.callhome.link import DRAINED
from transport.errors import (
    CallHomeError,
    ConnectionLost,
    EncodeError,
    EngineError,
    RemoteProtocolError,
    read_error,
)
from transport.wire.control import SENTINEL, pack_handshake, pack_prologue, read_control
from transport.wire.envelope import Info
from transport.wire.framing import LIMIT, frame, pack_head
from transport.wire.plain import around, error_item, final, plain_of

#: How long a requester may take to close its side after our last word, in seconds.
LINGER: Final = 10.0
#: Bytes that an engine may be ahead of its requester's socket, but for one larger item: what a slow
#: reader leaves lying here is bounded by this.
WINDOW: Final = 2 << 20
#: An adapter's own error item is followed by this type of EngineError: it has been told already.
_TOLD: Final = "error item"


class ForeignStream(Stream):
    """One stream between a Dynamo requester and an engine here."""

    __slots__ = (
        "_dialling",
        "_draining",
        "_failure",
        "_feeding",
        "_link",
        "_owed_bytes",
        "_owed_items",
        "_spoken",
        "_stopped",
        "closing",
        "codec",
        "letter",
    )

    def __init__(
        self,
        streams: Streams,
        letter: Letter,
        record: Record,
        failure: CallHomeError | None = None,
    ) -> None:
        """``failure`` is what the requester is told instead of a stream."""
        super().__init__(streams, letter, record, streams.carried)
        self.letter = letter
        letter.window_bytes = min(letter.window_bytes, WINDOW)
        self.codec = plain_of(letter.codec)
        self._failure = failure
        self._link: FramedLink | None = None
        self._feeding: Feeding | None = None
        #: The prologue is written: from now on errors are items.
        self._spoken = False
        self._stopped = False
        self._dialling = False
        self._draining = False
        self._owed_items = self._owed_bytes = 0
        #: When the requester must have closed its side, once we have said our last.
        self.closing = 0.0

    # --- the way to the engine

    def begin(self) -> None:
        if self._dialling:
            return
        self._dialling = True
        name = f"dial {self.letter.home.info.get('address')}"
        self.streams.start(self._dial(), name, self._not_reached)

    def waits(self) -> None:
        """Nothing has come of it yet: its requester is dialled first."""

    async def _dial(self) -> None:
        """The request half first, then the response half; only then the engine hears of it."""
        letter = self.letter
        try:
            if letter.feed is not None:
                feed = await self._dial_half(letter.feed, "request")
                self._feeding = Feeding(self, feed)
                feed.end_write()
            self._link = await self._dial_half(letter.home, "response")
        except CallHomeError as error:
            self._not_reached(error)
            return
        finally:
            if self.over or self._link is None:
                self._close()
        if not self.over:
            self._link.start(self._heard, self._ended)
            self._go()

    def _not_reached(self, error: CallHomeError) -> None:
        """There is no way to the requester, so there is nobody to work for."""
        if not self.over:
            self.streams.count("response_stream")
            self.drop("its requester cannot be called home")
            text = f"cannot call home, no handler starts: {error}"
            self.streams.complain("ingress.dial", text)
        self._close()

    async def _dial_half(self, half: Info, stream_type: str) -> FramedLink:
        settings = self.streams.runtime.settings
        hello = pack_handshake(half.text("subject"), stream_type)
        timeout = settings.connect_timeout or DIAL
        return await dial(
            self.streams.net,
            half.text("address"),
            hello,
            timeout,
            limit=max(LIMIT, settings.max_message),
            check=settings.check_frames,
        )

    def _go(self) -> None:
        if self._failure is not None:
            self._refuse(self._failure)
            return
        try:
            self.open(self.codec, False, self.arrival.payload)
        except CallHomeError as error:
            self.fail(error)
        self.arrival.payload = b""

    def accept(self, m: Accept) -> None:
        self._speak()
        if self._feeding is not None:
            self._feeding.begin(m.feed_items, m.feed_bytes)

    def feed_credit(self, m: FeedCredit) -> None:
        if self._feeding is not None:
            self._feeding.grant(m.items, m.bytes)

    # --- what the engine says

    def _speak(self) -> None:
        if not self._spoken and self._link is not None:
            self._spoken = True
            self._link.link.write(pack_prologue())

    def items(self, m: Items) -> None:
        payloads = m.payloads
        link = self._link
        if m.first != self.seq or link is None:
            self.fail(RemoteProtocolError(f"item {m.first} came where {self.seq} was due"))
            return
        if not self._spoken:
            self._speak()
        self.seq += len(payloads)
        before, after = around(self.codec)
        more = len(before) + len(after)
        parts: list[bytes] = []
        size = 0
        for payload in payloads:
            length = len(payload)
            size += length
            parts += (pack_head(0, length + more) + before, payload, after)
        link.link.write(*parts)
        counters = self.streams.counters
        counters.items += len(payloads)
        counters.bytes += size
        self._owe(len(payloads), size)

    def item(self, m: Item) -> None:
        self.streams.runtime.drop(m.handles)
        self.fail(RemoteProtocolError("an engine sent shared memory towards a Dynamo requester"))

    def _owe(self, items: int, size: int) -> None:
        """Items are written: their credit goes back when the socket has taken them."""
        self._owed_items += items
        self._owed_bytes += size
        arrival, link = self.arrival, self._link
        if (
            self._draining
            or link is None
            or (
                self._owed_items * 2 < arrival.window_items
                and self._owed_bytes * 2 < arrival.window_bytes
            )
        ):
            return
        if link.backlog < DRAINED:
            self._drained()
        else:
            self._draining = True
            link.when_drained(self._drained)

    def _drained(self) -> None:
        self._draining = False
        if not self.over:
            items, size = self._owed_items, self._owed_bytes
            self._owed_items = self._owed_bytes = 0
            self.control(Credit(self.number, items, size))

    def end(self, m: End) -> None:
        if m.last:
            self.items(Items(m.stream, m.total - len(m.last), m.last))
            if self.over:
                return  # they were not the items that were due, which has been told
        self.leave()
        error = None if m.error is None else read_error(m.error)
        if error is None and m.total != self.seq:
            error = ConnectionLost(f"the stream was cut, {self.seq} of {m.total} items arrived")
        if error is None:
            self._finish(b"")
            return
        self.failed(error)
        # Whatever the handler itself does happens behind the prologue.
        if isinstance(error, EngineError | EncodeError):
            self._speak()
        if isinstance(error, ConnectionLost) and self._spoken:
            self._cut()
        else:
            self._refuse(error)

    def _refuse(self, error: CallHomeError) -> None:
        """The requester is told of the error: in the prologue, or as an item."""
        if self._link is None:
            self._failure = error  # told as soon as there is a way
            self.begin()
        elif not self._spoken:
            self._spoken = True
            self._link.link.write(pack_prologue(error))
            self.drop(str(error)[:200])
            self._close()
        elif isinstance(error, EngineError) and error.remote_type == _TOLD:
            self._finish(b"")
        else:
            self._finish_with(error)

    def _finish_with(self, error: CallHomeError) -> None:
        """An error item and the clean end; what cannot be told so is cut off."""
        if "adapter" in error.details:
            self._cut()  # the engine's payloads are its adapter's own, we know no error in them
            return
        item = error_item(error, self.codec)
        before, after = around(self.codec)
        self._finish(frame(b"", before + item + after))

    def _finish(self, last: bytes) -> None:
        """The clean end: all items are written, and nothing follows."""
        self._speak()
        link = self._link
        assert link is not None  # an engine has said something, so it was opened
        link.link.write(last, frame(b"", final(self.codec)), SENTINEL)
        self.drop("it has ended")
        if self._feeding is not None:
            self._feeding.close()
        if self._stopped:
            self._close()
            return
        self.closing = time.monotonic() + LINGER
        self.streams.linger(self)

    def _cut(self) -> None:
        """The stream is not whole, and must not look so: the socket ends without a last word."""
        self.drop("it was cut")
        self._close()

    def fail(self, error: CallHomeError) -> None:
        if self.over:
            return
        self.streams.count_error(error)
        if self._spoken:
            self._cut()
        else:
            self._refuse(error)

    # --- what the requester says

    def _heard(self, header: bytes, body: bytes) -> None:
        """A frame on the response socket; after our last word none means anything."""
        if self.over:
            return
        try:
            word = "data" if body or not header else read_control(header)
        except RemoteProtocolError as error:
            word = str(error)
        if word == "stop":
            self.stop_asked("its requester asked it to stop")
        elif word == "kill":
            self.abandon("killed by its requester")
        else:
            self.complain(f"on its response socket came {word[:200]!r}")
            self.abandon("its requester broke the protocol")

    def stop_asked(self, reason: str) -> None:
        """A stop, on whichever of the two sockets."""
        self._stopped = True
        self.stop(reason)

    def abandon(self, reason: str) -> None:
        """Nobody wants the stream any more, or its request is not whole."""
        self.kill(reason)
        self._close()

    def complain(self, text: str) -> None:
        """The requester is at fault: one line in the log, counted."""
        self.streams.count("requester")
        who = self._link.peer if self._link is not None else "its requester"
        text = f"kills a stream of {self.record.endpoint} from {who}: {text}"
        self.streams.complain("ingress.requester", text)

    def _ended(self, error: CallHomeError | None) -> None:
        """The requester has closed its side, as it does behind our last word, or is gone."""
        if not self.over:
            if error is not None and not self._stopped:
                self.streams.count("publish_response")
            self.abandon("its requester has closed the response socket")
            return
        if error is not None and self.closing:
            self.streams.count("publish_final")
        self.settle()

    def settle(self) -> None:
        """The last word has been heard, or long enough been waited for."""
        self.streams.lingering.pop(self.number, None)
        self._close()

    def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if self._feeding is not None:
            self._feeding.close()
            self._feeding = None
