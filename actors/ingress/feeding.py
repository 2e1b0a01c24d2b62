"""The request socket of a bidirectional stream of Dynamo's: items in, as the engine has room.

Nothing is read before the engine has accepted the stream, and nothing while it has no room: TCP
holds the requester back. The end of the input is told by a frame; an input that just breaks off is
not whole, and kills the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages import Feed, FeedEnd, Stop
from transport.callhome.framed import FramedLink
from transport.errors import CallHomeError, RemoteProtocolError
from transport.wire.control import read_control
from transport.wire.stream import SendCredit

if TYPE_CHECKING:
    from actors.ingress.foreign import ForeignStream


class Feeding:
    """The input of one stream; ``closed`` once it has ended in whatever way."""

    __slots__ = ("_batch", "_credit", "_link", "_paused", "_seq", "_stream", "closed")

    def __init__(self, stream: ForeignStream, link: FramedLink) -> None:
        self._stream = stream
        self._link = link
        self._credit = SendCredit(0, 0)
        self._batch: list[bytes] = []
        self._seq = 0
        self._paused = False
        self.closed = False

    def begin(self, items: int, size: int) -> None:
        """The engine has accepted the stream and has room for so much."""
        if not self.closed:
            self._credit.grant(items, size)
            self._link.start(self._heard, self._ended)

    def grant(self, items: int, size: int) -> None:
        """The engine has room for more."""
        self._credit.grant(items, size)
        if self._paused and self._credit.open and not self.closed:
            self._paused = False
            self._link.resume()

    def _heard(self, header: bytes, body: bytes) -> None:
        if self.closed:
            return
        if header or not body:
            self._control(header, body)
            return
        self._credit.spend(1, len(body))
        if not self._batch:
            self._stream.streams.mark(self._collect)
        self._batch.append(body)
        if not self._credit.open:
            self._paused = True
            self._link.pause()

    def _control(self, header: bytes, body: bytes) -> None:
        stream = self._stream
        try:
            word = read_control(header) if header and not body else "a frame of the wrong shape"
        except RemoteProtocolError as error:
            word = str(error)
        if word == "sentinel":
            self._end()
        elif word == "stop":
            reason = "its requester stopped its input"
            stream.stop_asked(reason)
            # Once more ahead of the end of the input, which travels on the data lane: a handler
            # that sees the one knows of the other.
            home = stream.streams.runtime.address.incarnation
            stream.tell(Stop(home, stream.number, reason))
            self._end()
        elif word == "kill":
            stream.abandon("its requester killed its input")
        else:
            self._break(f"on its request socket came {word[:200]!r}")

    def _end(self) -> None:
        """No more input; the answers go on."""
        self._collect()
        self._stream.tell(FeedEnd(self._stream.number, self._seq))
        self.closed = True
        self._link.close()

    def _break(self, text: str) -> None:
        self._stream.complain(text)
        self._stream.abandon("its request was cut")

    def _ended(self, error: CallHomeError | None) -> None:
        if not self.closed:
            self._break(f"its request socket ended before a closing frame: {error or 'EOF'}")

    def _collect(self) -> None:
        """Send on what came in this tick."""
        batch = self._batch
        if batch and not self.closed:
            self._batch = []
            message = Feed(self._stream.number, self._seq, batch)
            self._seq += len(batch)
            self._stream.tell(message, sum(map(len, batch)))

    def close(self) -> None:
        """Nobody wants more input. A requester that still sends shall notice at once; of ours
        nothing is on its way there.
        """
        if not self.closed:
            self.closed = True
            self._batch = []
            self._link.close(abort=True)
