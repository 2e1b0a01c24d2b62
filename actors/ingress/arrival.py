"""One request as it came over the request plane, read and checked; nothing has been done yet.

The envelope's shape is checked here, by one set of rules for Dynamo's requesters and for nodes of
ours: a single request has a body, a stream of requests has none and names a second half. What
callhome's nodes tell each other beside the user's metadata is taken out of it.
"""

from __future__ import annotations

import math
import time
from typing import Final

from actors.config import Settings
from transport.errors import RemoteProtocolError
from transport.wire.envelope import MUX, TCP, Envelope, Info, read_envelope
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
    """What a request says: who asks, for what shape of stream, where its home is.

    ``deadline`` is by this process's monotonic clock. ``later``: the payload comes as a body over
    the connection between the nodes.
    """

    __slots__ = (
        "codec",
        "deadline",
        "feed",
        "home",
        "id",
        "later",
        "many",
        "metadata",
        "payload",
        "window_bytes",
        "window_items",
    )

    def __init__(self, envelope: Envelope, payload: bytes, settings: Settings) -> None:
        self.id = envelope.id
        self.many = envelope.request_type == "many_in"
        self.codec = envelope.codec
        self.home = envelope.connection
        self.feed = envelope.request_connection if self.many else None
        self.payload = payload
        self.metadata: dict[str, str] = {}
        self.deadline: float | None = None
        self.later = False
        self.window_items = settings.window_items
        self.window_bytes = settings.window_bytes
        for key, text in envelope.metadata.items():
            if not key.startswith(RESERVED):
                self.metadata[key] = text
            elif self.native:  # nobody else means something by it
                self._take(key, text)

    @property
    def native(self) -> bool:
        """Whether a node of ours asks; it shares one connection among its streams."""
        return self.home.transport == MUX

    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _take(self, key: str, text: str) -> None:
        """What a node of ours says beside the user's metadata; later versions may say more."""
        if key == WINDOW:
            self.window_items, self.window_bytes = _window(text)
        elif key == REMAINING:
            self.deadline = time.monotonic() + _seconds(text)
        elif key == BODY:
            self.later = True


def read_arrival(frame: RequestFrame, settings: Settings) -> Arrival:
    """The request in a frame.

    Raises DecodeError for a control message that is none, RemoteProtocolError for one of the wrong
    shape: the one counts as ``deserialization``, the other as ``invalid_message``.
    """
    header, body = read_frame(frame.payload, settings.check_frames)
    if not header:
        raise RemoteProtocolError("a request without a control message")
    envelope = read_envelope(header)
    arrival = Arrival(envelope, body, settings)
    _check_half(arrival.home, "response", envelope.id)
    if not arrival.many:
        if not body:
            raise RemoteProtocolError("a single_in request without a body")
        return arrival
    if body:
        raise RemoteProtocolError("a many_in request with a body; its items come on their own")
    assert arrival.feed is not None  # read_envelope refuses many_in without it
    _check_half(arrival.feed, "request", envelope.id)
    if arrival.feed.transport != arrival.home.transport:
        raise RemoteProtocolError("the two halves of a many_in request come over different roads")
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
