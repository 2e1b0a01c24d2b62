"""One request as it came over the request plane, read and checked; nothing has been done yet.

The envelope's shape is checked here, by one set of rules for Dynamo's requesters and for nodes of
ours: a single request has a body, a stream of requests has none and names a second half. What
callhome's nodes tell each other beside the user's metadata is taken out of it. A node that is
connected already needs no envelope: its Open comes over the connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final

from actors.config import Settings
from actors.messages import Open
from transport.errors import RemoteProtocolError
from transport.wire.codec import CODECS
from transport.wire.envelope import MUX, TCP, Envelope, Info, maps_text, read_envelope
from transport.wire.framing import read_frame
from transport.wire.request import RequestFrame

#: Beginning of the metadata keys that are ours.
RESERVED: Final = "x-callhome-"
REMAINING: Final = "x-callhome-remaining"
WINDOW: Final = "x-callhome-window"
BODY: Final = "x-callhome-body"
#: When the requester wrote the request, in nanoseconds since the epoch, by its own clock.
SENT: Final = "x-frontend-send-ts-ns"

_ROADS: Final = frozenset({TCP, MUX})
_LONGEST: Final = 1024
_LARGEST: Final = 1 << 53


class Arrival:
    """What a request says: who asks, for what shape of stream, in which codec.

    ``deadline`` is by this process's monotonic clock. ``window_items`` and ``window_bytes`` are
    what the engine may send unasked, ``more_…`` what the requester takes beyond that. ``later``:
    the payload comes as a body over the connection between the nodes.
    """

    __slots__ = (
        "codec",
        "deadline",
        "id",
        "later",
        "many",
        "metadata",
        "more_bytes",
        "more_items",
        "payload",
        "size",
        "window_bytes",
        "window_items",
    )

    def __init__(self, id: str, many: bool, codec: str, payload: bytes, settings: Settings) -> None:
        self.id = id
        self.many = many
        self.codec = codec
        self.payload = payload
        #: Bytes that it takes while it waits.
        self.size = len(payload)
        self.metadata: dict[str, str] = {}
        self.deadline: float | None = None
        self.later = False
        self.window_items = settings.window_items
        self.window_bytes = settings.window_bytes
        self.more_items = self.more_bytes = 0

    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def read_metadata(self, metadata: Mapping[str, str], native: bool) -> None:
        """Keep the user's metadata; from a node of ours (``native``) take what is said beside it.

        Raises RemoteProtocolError.
        """
        for key, text in metadata.items():
            if not key.startswith(RESERVED):
                self.metadata[key] = text
                self.size += len(key) + len(text)
            elif native:  # nobody else means something by it
                self._take(key, text)

    def _grant(self, items: int, size: int) -> None:
        """How much the requester takes unasked; what goes beyond this node's windows waits."""
        if items > self.window_items:
            self.more_items = items - self.window_items
        else:
            self.window_items = items
        if size > self.window_bytes:
            self.more_bytes = size - self.window_bytes
        else:
            self.window_bytes = size

    def _take(self, key: str, text: str) -> None:
        """What a node of ours says beside the user's metadata; later versions may say more."""
        if key == WINDOW:
            self._grant(*_window(text))
        elif key == REMAINING:
            self.deadline = time.monotonic() + _seconds(text)
        elif key == BODY:
            self.later = True


class Letter(Arrival):
    """A request that came in an envelope: it says where its requester is called home.

    ``home`` is for the response, ``feed`` for the items of a bidirectional request.
    """

    __slots__ = ("feed", "home")

    def __init__(self, envelope: Envelope, payload: bytes, settings: Settings) -> None:
        many = envelope.request_type == "many_in"
        super().__init__(envelope.id, many, envelope.codec, payload, settings)
        self.home = envelope.connection
        self.feed = envelope.request_connection if many else None
        self.read_metadata(envelope.metadata, self.native)

    @property
    def native(self) -> bool:
        """Whether a node of ours asks; it shares one connection among its streams."""
        return self.home.transport == MUX


def read_letter(frame: RequestFrame, settings: Settings) -> Letter:
    """The request in a frame.

    Raises DecodeError for a control message that is none, RemoteProtocolError for one of the wrong
    shape: the one counts as ``deserialization``, the other as ``invalid_message``. An error has
    ``details["native"]`` when a node of ours asks, which can be told of it.
    """
    header, body = read_frame(frame.payload, settings.check_frames)
    if not header:
        raise RemoteProtocolError("a request without a control message")
    envelope = read_envelope(header)
    try:
        return _checked(Letter(envelope, body, settings), body)
    except RemoteProtocolError as error:
        if envelope.connection.transport == MUX:
            error.details["native"] = "yes"
        raise


def _checked(letter: Letter, body: bytes) -> Letter:
    _check_half(letter.home, "response", letter.id)
    if not letter.many:
        if not body:
            raise RemoteProtocolError("a single_in request without a body")
        return letter
    if body:
        raise RemoteProtocolError("a many_in request with a body; its items come on their own")
    assert letter.feed is not None  # read_envelope refuses many_in without it
    _check_half(letter.feed, "request", letter.id)
    if letter.feed.transport != letter.home.transport:
        raise RemoteProtocolError("the two halves of a many_in request come over different roads")
    return letter


def read_open(m: Open, settings: Settings) -> Arrival:
    """The request in an Open that came over the connection with its node.

    A single request without a payload has it in a body that follows. Raises RemoteProtocolError.
    """
    if m.codec not in CODECS:
        raise RemoteProtocolError(f"codec {m.codec[:40]!r} is not spoken here")
    if m.handles or m.segments:
        raise RemoteProtocolError("an Open that refers to memory of another node")
    arrival = Arrival(m.request_id, m.many, m.codec, m.payload, settings)
    arrival.later = not m.many and not m.payload
    if not (0 < m.window_items < _LARGEST and 0 < m.window_bytes < _LARGEST):
        raise RemoteProtocolError("an Open without credit")
    arrival._grant(m.window_items, m.window_bytes)
    if m.remaining is not None:
        if not 0 <= m.remaining < _LARGEST:
            raise RemoteProtocolError("an Open whose remaining time is no number of seconds")
        arrival.deadline = time.monotonic() + m.remaining
    if m.metadata:
        if not maps_text(m.metadata):
            raise RemoteProtocolError("an Open whose metadata does not map text to text")
        arrival.read_metadata(m.metadata, native=False)
    return arrival


def _check_half(half: Info, stream_type: str, context: str) -> None:
    """Nothing is dialled for a half that belongs to another stream or is of another kind."""
    if half.transport not in _ROADS:
        raise RemoteProtocolError(f"transport {half.transport[:80]!r} is not spoken here")
    info = half.info
    if info.get("stream_type") != stream_type:
        raise RemoteProtocolError(f"connection info that is not for the {stream_type} half")
    if info.get("context") != context:
        raise RemoteProtocolError("connection info that belongs to another request")
    for field in ("subject", "address"):
        text = info.get(field)
        if type(text) is not str or not 0 < len(text) <= _LONGEST:
            raise RemoteProtocolError(f"connection info whose {field} is none")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < _LARGEST:
        raise RemoteProtocolError(f"{REMAINING} is {text[:40]!r} and no number of seconds")
    return value


def _window(text: str) -> tuple[int, int]:
    items, _, size = text.partition(",")
    try:
        found = int(items), int(size)
    except ValueError:
        found = 0, 0
    if not all(0 < each < _LARGEST for each in found):
        raise RemoteProtocolError(f"{WINDOW} is {text[:40]!r} and not 'items,bytes'")
    return found


def transit(frame: RequestFrame, now_ns: int) -> int | None:
    """Nanoseconds between the requester's write and now; None when it did not say.

    Two clocks are compared, so a negative difference counts as 0.
    """
    text = frame.headers.get(SENT, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    return max(0, now_ns - int(text))
