"""Two-part frames on a link: envelopes, and all that travels on a call-home socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from transport.callhome.link import Ended, Link
from transport.callhome.net import gone
from transport.callhome.outgoing import Buffer
from transport.errors import CallHomeError, LocalProtocolError, RemoteProtocolError
from transport.wire.framing import LIMIT, FrameReader, frame, pack_head

Frame = Callable[[bytes, bytes], None]

#: A frame that lacks more bytes than this is read straight to its place.
_LARGE: Final = 256 * 1024


class FramedLink:
    """A link that is read in frames; made by a dialer or by whoever takes what a listener accepted.

    ``check``: refuse wrong checksums. ``first``: bytes that came before this reader. ``single``:
    only one frame is wanted, and ``detach`` gives what comes behind it.
    """

    def __init__(
        self,
        link: Link,
        limit: int = LIMIT,
        check: bool = False,
        *,
        first: bytes = b"",
        single: bool = False,
    ) -> None:
        self.link: Final = link
        self.peer: Final = link.peer
        self.when_drained = link.when_drained
        self.end_write = link.end_write
        self.flush = link.flush
        self._reader = FrameReader(limit, check)
        if single:
            self._reader.most = 1
        self._first = first
        self._held: deque[tuple[bytes, bytes]] = deque()
        self._frame: Frame | None = None
        self._ended: Ended | None = None
        self._paused = self._filling = False

    @property
    def local(self) -> str:
        """``host:port`` of this end."""
        return self.link.local

    @property
    def backlog(self) -> int:
        """Bytes that were written and the system has not taken yet."""
        return self.link.backlog

    def start(self, frame: Frame, ended: Ended) -> None:
        """Begin to read: ``frame(header, body)`` for each frame, never from within this call.

        ``ended`` as with ``Link.start``; a peer that ends in the middle of a frame is lost, and one
        that breaks the rules of frames ends this link with RemoteProtocolError.
        """
        self._frame, self._ended = frame, ended
        if self._first:
            self.link.pause()
            self.link.start(self._received, self._link_ended)
            self.link.call_soon(self._go_on)
        else:
            self.link.start(self._received, self._link_ended)

    def send(self, header: bytes = b"", *body: Buffer) -> None:
        """Queue one frame; the parts of the body are kept, not copied: do not change them."""
        size = 0
        for part in body:
            size += len(part) if type(part) is bytes else memoryview(part).nbytes
        self.link.write(pack_head(len(header), size), header, *body)

    def write(self, *frames: Buffer) -> None:
        """Queue bytes that are whole frames already."""
        self.link.write(*frames)

    def pause(self) -> None:
        """Hand on nothing more, not even frames that have been read already."""
        self._paused = True
        self.link.pause()

    def resume(self) -> None:
        """Hand on what was held, in a later callback, and read again."""
        if self._paused:
            self._paused = False
            self.link.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._paused:
            if self._first:
                first, self._first = self._first, b""
                self._received(first)
            else:
                self._hand_on()
            if not self._paused and self._frame is not None:
                self.link.resume()

    def _received(self, data: Buffer) -> None:
        self._held.extend(self._reader.feed(data))
        large = self._reader.take(_LARGE)
        if large is not None:
            self._gather(*large)
        self._hand_on()

    def _gather(self, begun: bytearray, size: int) -> None:
        """Read what a large frame lacks straight behind what came of it, then take it whole."""
        net, self._filling = self.link.net, True
        room = net.borrow_room(size)
        view = memoryview(room)[:size]
        view[: len(begun)] = begun

        def filled() -> None:
            self._filling = False
            self._held.extend(self._reader.feed(view))
            net.return_room(room)
            self._hand_on()

        self.link.read_into(view[len(begun) :], filled)

    def _hand_on(self) -> None:
        held = self._held
        while held and not self._paused and self._frame is not None:
            self._frame(*held.popleft())
        if not held and self._reader.fault is not None and self._frame is not None:
            raise self._reader.fault

    def _link_ended(self, error: CallHomeError | None) -> None:
        if self._ended is None:
            return
        if error is None:
            try:
                self._reader.eof()
            except RemoteProtocolError as cut:
                raise gone(self.peer, cut.message) from cut
        else:
            self._frame = None
        self._ended(error)

    def detach(self) -> tuple[Link, bytes]:
        """Give up the link for another reader: it, and the bytes that came and were not handed on.

        Nothing is read until that reader starts. Raises LocalProtocolError when a fault of the peer
        has been read already, or half of a large frame.
        """
        if self._reader.fault is not None or self._filling:
            raise LocalProtocolError("a link cannot be handed on in a frame or behind a fault")
        rest = self._first + b"".join(frame(*each) for each in self._held) + self._reader.rest()
        self._held.clear()
        self._first, self._frame, self._ended = b"", None, None
        self.link.stop_reading()
        return self.link, rest

    def close(self, abort: bool = False) -> None:
        """As ``Link.close``."""
        self._held.clear()
        self._first, self._frame, self._ended = b"", None, None
        self.link.close(abort)
