"""What comes in over the connection that two nodes share: frames out of a link, bodies into place.

While bytes come in faster than they are asked for, frames are cut out of the link's own buffer.
While a body is on its way, each head is read by itself and each chunk straight into the memory that
waits for it, so that large bytes are copied once, by the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from transport.callhome.link import Link
from transport.errors import RemoteProtocolError
from transport.wire.mux import ABORT, BODY, CHUNK, HEAD, read_mux

#: Bodies of a peer that may be announced here and not complete; one more is its fault. A sender of
#: ours keeps to a quarter (``mux_out.MOST_BODIES``).
MOST_EXPECTED = 4096


class Pieces:
    """Memory in several places, taken piece by piece from its beginning."""

    __slots__ = ("_views", "left")

    def __init__(self, views: Sequence[memoryview]) -> None:
        plain = [
            view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views
        ]
        self._views = deque([view for view in plain if len(view)])
        self.left = sum(map(len, self._views))

    def take(self, size: int) -> list[memoryview]:
        """Views of the next ``size`` bytes, of which there are enough."""
        self.left -= size
        views, taken = self._views, []
        while size:
            first = views[0]
            if len(first) > size:
                taken.append(first[:size])
                views[0] = first[size:]
                break
            taken.append(views.popleft())
            size -= len(first)
        return taken

    def drop(self) -> None:
        """Let go of what has not been taken."""
        self._views.clear()
        self.left = 0


class _Expected:
    """A body on its way here; its bytes are thrown away once nobody wants them."""

    __slots__ = ("done", "left", "pieces")

    def __init__(self, pieces: Pieces, done: Callable[[bool], None] | None) -> None:
        self.pieces = pieces
        self.left = pieces.left
        self.done = done


class Inflow:
    """Reads a link, used by its connection only; everything happens in the link's callbacks.

    ``frame`` gets each frame that is no part of a body, as ``(kind, bytes)``. A fault of the peer
    is raised as RemoteProtocolError, which ends the link. ``tell`` calls a function of somebody
    else, whose faults are not the connection's.
    """

    def __init__(
        self,
        link: Link,
        frame: Callable[[int, bytes], None],
        tell: Callable[[Callable[[bool], None], bool], None],
    ) -> None:
        self._link = link
        self._frame = frame
        self._tell = tell
        self._closed = False
        self._expected: dict[int, _Expected] = {}
        self._head = bytearray(HEAD)
        self._nowhere: memoryview | None = None
        #: Places that the rest of the present frame goes to, and what happens when it is there.
        self._rest: deque[memoryview] = deque()
        self._then: Callable[[], None] | None = None
        #: What has come while nothing is taken, up to one read of the link; None else.
        self._held: bytearray | None = None
        #: Bytes of bodies that nobody wanted.
        self.dropped = 0

    @property
    def open(self) -> int:
        """Bodies on their way here."""
        return len(self._expected)

    def expect(self, number: int, pieces: Pieces, done: Callable[[bool], None]) -> None:
        """Raises RemoteProtocolError when the number is in use or too many are on their way."""
        if number in self._expected:
            raise RemoteProtocolError(f"body {number} was announced while it is on its way")
        if len(self._expected) >= MOST_EXPECTED:
            raise RemoteProtocolError(f"{MOST_EXPECTED} bodies are on their way, none completed")
        self._expected[number] = _Expected(pieces, done)

    def drop(self, number: int) -> None:
        """Nobody wants this body any more; what is being read of it goes where it was to go."""
        body = self._expected.get(number)
        if body is not None:
            body.done = None
            body.pieces.drop()

    @property
    def held(self) -> bool:
        """Nothing is taken for the moment."""
        return self._held is not None

    def hold(self) -> None:
        """Take nothing more until ``go_on``; to be called from ``frame``."""
        if self._held is None:
            self._held = bytearray()
            self._link.pause()

    def go_on(self) -> None:
        """Take what has come meanwhile, and read on."""
        held, self._held = self._held, None
        if held is not None and not self._closed:
            self._link.resume()
            self.received(memoryview(held))

    def close(self) -> None:
        """Nothing more is read; who waits for a body is told that it will not come."""
        self._closed = True
        self._rest.clear()
        expected, self._expected = self._expected, {}
        for body in expected.values():
            body.pieces.drop()
            if body.done is not None:
                self._tell(body.done, False)

    def received(self, data: memoryview) -> None:
        """The link's callback: ``data`` begins with a head, and is not kept.

        Raises RemoteProtocolError, as everything here that reads.
        """
        at, size = 0, len(data)
        while size - at >= HEAD and self._held is None and not self._closed:
            length, kind, number = read_mux(data, at)
            at += HEAD
            have = min(length, size - at)
            if kind == BODY:
                self._chunk(number, length, data[at : at + have])
            elif have == length:
                self._take(kind, number, bytes(data[at : at + have]))
            else:
                self._whole(kind, number, length, data[at:])
            at += have
            if have < length:
                return
        if self._held is not None:
            self._held += data[at:]
        elif at < size:
            self._read_head(data[at:])
        elif self._expected:
            self._next()

    def _next(self) -> None:
        """At the end of a frame: the next head comes by itself if it may be that of a chunk."""
        if self._expected and self._held is None:
            self._read_head(None)

    def _read_head(self, begin: memoryview | None) -> None:
        if self._closed:
            return
        have = 0
        if begin is not None:
            have = len(begin)
            self._head[:have] = begin
        self._fill([memoryview(self._head)[have:]], self._head_came)

    def _head_came(self) -> None:
        length, kind, number = read_mux(self._head)
        if kind == BODY:
            self._chunk(number, length, None)
        elif length:
            self._whole(kind, number, length, None)
        else:
            self._take(kind, number, b"")
            self._next()

    def _whole(self, kind: int, number: int, length: int, begin: memoryview | None) -> None:
        """A frame of which only ``begin`` is there; its length has passed the bound of its kind."""
        frame = bytearray(length)
        have = 0
        if begin is not None:
            have = len(begin)
            frame[:have] = begin

        def came() -> None:
            self._take(kind, number, bytes(frame))
            self._next()

        self._fill([memoryview(frame)[have:]], came)

    def _take(self, kind: int, number: int, frame: bytes) -> None:
        if kind == ABORT:
            self._settle(number, False)
        else:
            self._frame(kind, frame)

    def _chunk(self, number: int, length: int, begin: memoryview | None) -> None:
        """The next ``length`` bytes of a body, of which ``begin`` is there."""
        places = self._places(number, length)
        if begin is not None:
            places = _copy(begin, places)
        if places:

            def came() -> None:
                self._chunk_came(number, length)
                self._next()

            self._fill(places, came)
        else:
            self._chunk_came(number, length)

    def _places(self, number: int, length: int) -> list[memoryview]:
        body = self._expected.get(number)
        if body is not None:
            if length > body.left:
                raise RemoteProtocolError(
                    f"a chunk of {length} bytes for body {number}, of which {body.left} are missing"
                )
            if body.done is not None:
                return body.pieces.take(length)
        self.dropped += length
        if self._nowhere is None:
            self._nowhere = memoryview(bytearray(CHUNK))
        return [self._nowhere[:length]]

    def _chunk_came(self, number: int, length: int) -> None:
        body = self._expected.get(number)
        if body is not None:
            body.left -= length
            if not body.left:
                self._settle(number, True)

    def _settle(self, number: int, whole: bool) -> None:
        body = self._expected.pop(number, None)
        if body is not None:
            body.pieces.drop()
            if body.done is not None:
                self._tell(body.done, whole)

    def _fill(self, places: list[memoryview], then: Callable[[], None]) -> None:
        self._rest.extend(places)
        self._then = then
        self._link.read_into(self._rest.popleft(), self._filled)

    def _filled(self) -> None:
        """The link's callback when a place is full."""
        if self._closed:
            return
        if self._rest:
            self._link.read_into(self._rest.popleft(), self._filled)
            return
        then, self._then = self._then, None
        if then is not None:
            then()


def _copy(begin: memoryview, places: list[memoryview]) -> list[memoryview]:
    """Copy what is there; the places that are still empty."""
    at = 0
    for index, place in enumerate(places):
        part = begin[at : at + len(place)]
        at += len(part)
        place[: len(part)] = part
        if len(part) < len(place):
            return [place[len(part) :], *places[index + 1 :]]
    return []
