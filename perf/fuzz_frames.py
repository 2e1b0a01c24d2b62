"""Fuzz targets: frames and what is in their headers, requests, batches, the road between nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from types import ModuleType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import actors.messages
import actors.notices
from perf.fuzz_check import Broken, Target, quiet, random_of, tell
from perf.fuzz_mutate import pieces
from transport.callhome.mux_in import Inflow, Pieces
from transport.errors import EngineError, LocalProtocolError, RemoteProtocolError
from transport.wire import mux, request, stream
from transport.wire.control import (
    KILL,
    SENTINEL,
    STOP,
    pack_handshake,
    pack_prologue,
    read_control,
    read_handshake,
    read_prologue,
)
from transport.wire.envelope import MUX, TCP, Envelope, Info, pack_envelope, read_envelope
from transport.wire.framing import HEADER, FrameReader, Reader, frame, load_checksum, read_frame
from transport.wire.message import BatchReader, BatchWriter, Message, tag_of

_LIMIT: Final = 16_384
#: Frames of the samples, of which a checked one and one that is too long.
_FRAMES: Final = (
    frame(b'"stop"'), frame(b"", b"x" * 40), frame(b'{"a":1}', b"\x81\xa1a\x01"), frame(),
)  # fmt: skip


def _fed(make: Callable[[], Reader[Any]], data: bytes, cut: list[bytes]) -> tuple[object, ...]:
    """All that a reader makes of bytes in these pieces: frames, rest, and how it ends."""
    reader, found = make(), []
    try:
        for each in cut:
            found += reader.feed(each)
        reader.eof()
        end = ""
    except RemoteProtocolError as error:
        end = type(error).__name__
    if reader.fault is None and sum(map(len, cut)) != len(data):
        raise Broken("the pieces are not the whole")
    return found, end, b"" if reader.fault else reader.rest()


def _cut_anyhow(make: Callable[[], Reader[Any]], data: bytes) -> None:
    whole = _fed(make, data, [data])
    parts = _fed(make, data, pieces(data, random_of(data)))
    if whole != parts:
        raise Broken("cut into pieces it reads otherwise than whole")
    tell(not whole[1])


def _frames(data: bytes) -> None:
    _cut_anyhow(lambda: FrameReader(_LIMIT), data)
    quiet(read_frame, data)


def _checked_frames(data: bytes) -> None:
    _cut_anyhow(lambda: FrameReader(_LIMIT, check=True), data)
    quiet(read_frame, data, True)


def _frame_samples(random: Random) -> list[bytes]:
    mixed = [b"".join(random.choices(_FRAMES, k=random.randint(1, 5))) for _ in range(8)]
    return [*_FRAMES, *mixed, frame(b"", bytes(_LIMIT - HEADER))]


def _checked_samples(random: Random) -> list[bytes]:
    checksum = load_checksum()
    made = []
    for header, body in ((b"{}", b""), (b"", b"body"), (b"head", b"body")):
        whole = frame(header, body)
        made.append(whole[:16] + checksum(header, body).to_bytes(8, "big") + whole[HEADER:])
    return [*made, b"".join(made), *_FRAMES]


def _envelopes(_: Random) -> list[bytes]:
    info = Info(TCP, {"address": "127.0.0.1:80", "subject": "s", "context": "c", "stream_type": 1})
    far = Info(MUX, {"address": "[::1]:9", "stream": 2**63, "incarnation": 7})
    return [
        pack_envelope(Envelope("id", "single_in", "many_out", "json", info)),
        pack_envelope(Envelope("é", "many_in", "many_out", "msgpack", info, far, {"a": "b"}, 5)),
        pack_envelope(Envelope("", "single_in", "single_out", "json", far, None, {"k": "\x00"})),
    ]


def _envelope(data: bytes) -> None:
    found = read_envelope(data)
    for info in (found.connection, found.request_connection):
        if info is not None:
            quiet(info.text, "address", more=True)
            quiet(info.number, "stream", more=True)
    if found.codec in ("json", "msgpack"):
        again = read_envelope(pack_envelope(found))
        if again != found:
            raise Broken("an envelope that is written again reads otherwise")


def _controls(_: Random) -> list[bytes]:
    error = EngineError("words", type="ValueError", traceback="lines")
    whole = (
        STOP, KILL, SENTINEL, pack_handshake("subject", "response", incarnation="12"),
        pack_prologue(), pack_prologue("words"), pack_prologue(error),
        pack_prologue("w", {"class": "Cancelled", "caused_by": {"error_type": "Unknown"}}),
        pack_prologue("w", {"error_type": {"Backend": "EngineShutdown"}, "message": "m"}),
    )  # fmt: skip
    return [each[HEADER:] for each in whole]


def _control(data: bytes) -> None:
    quiet(read_control, data)
    quiet(read_handshake, data)
    quiet(read_prologue, data)


def _requests(_: Random) -> list[bytes]:
    one = b"".join(request.pack_request("ns.a.b", {"x": "y"}, [frame(b"{}", b"payload")]))
    two = b"".join(request.pack_request("p" * 1024, {}, [b""]))
    replies = [request.pack_reply(b""), request.pack_reply(b"Server overloaded: no")]
    return [one, two, one + two + one, *replies, b"".join(replies) * 3, b"HTTP/1.1 400 Bad"]


def _request(data: bytes) -> None:
    _cut_anyhow(lambda: request.RequestReader(_LIMIT), data)
    _cut_anyhow(lambda: request.ReplyReader(), data)


def _sample(hint: Any, random: Random) -> Any:
    """Some value of a field of this type, as the writer of a message would put there."""
    if get_origin(hint) in (Union, UnionType):
        return _sample(random.choice(get_args(hint)), random)
    origin = get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, tuple) and hasattr(origin, "_fields"):
        hints = get_type_hints(origin)
        return origin(*[_sample(hints[name], random) for name in origin._fields])
    if origin in (list, tuple):
        inner = next(iter(get_args(hint)), Any)
        return [_sample(inner, random) for _ in range(random.randint(0, 3))]
    if origin is dict:
        return {"key": "text"} if random.random() < 0.5 else {}
    plain: dict[Any, tuple[Any, ...]] = {
        int: (0, 1, 300, 2**63, 2**64 - 1), float: (0.0, 2.5, 3), bool: (True, False),
        str: ("", "word", "é" * 40), bytes: (b"", b"\x81\xa1a\x01", bytes(300)),
        type(None): (None,),
    }  # fmt: skip
    return random.choice(plain.get(origin, (1, "a", b"b", [1, 2, ""], None)))


def _messages(module: ModuleType) -> list[type]:
    return [each for each in vars(module).values() if isinstance(each, type) and tag_of(each)]


def _batches(random: Random) -> list[bytes]:
    kinds = [*_messages(actors.messages), *_messages(actors.notices)]
    writer = BatchWriter(2**63 + 5)
    made: list[bytes] = []
    for kind in kinds * 3:
        made.append(writer.pack([_sample(kind, random)]))
    for _ in range(20):
        made.append(writer.pack([_sample(kind, random) for kind in random.choices(kinds, k=6)]))
    return made


_batch_reader: Final = BatchReader()


def _batch(data: bytes) -> None:
    sender, messages, faults = _batch_reader.read(data)
    told = quiet(_batch_reader.unpack, data)
    if isinstance(told, tuple) is bool(faults):
        raise Broken("unpack and read do not agree on whether a batch is right")
    portions = quiet(_batch_reader.portions, data, more=True)
    found: list[Message] = []
    while not isinstance(portions, Exception) and portions.more:
        part = quiet(portions.take, 200 if faults else 2, more=True)
        if isinstance(part, Exception):
            break
        found += part[0]
    if not faults and (
        sender != told[0] or repr(messages) != repr(told[1]) or repr(found) != repr(messages)
    ):
        raise Broken("a batch in portions reads otherwise than whole")
    if not faults:
        _written_again(sender, messages)


def _written_again(sender: int, messages: list[Message]) -> None:
    try:
        again = BatchWriter(sender).pack(messages)
    except LocalProtocolError:
        return  # text that is no Unicode came as such, or a value of 16 MiB
    if repr(_batch_reader.unpack(again)[1]) != repr(messages):
        raise Broken("a batch that is written again reads otherwise")


class _Link:
    """The link below an ``Inflow``: brings bytes in pieces, straight into place where one waits."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.ends: list[tuple[int, bool]] = []
        self.inflow = Inflow(self, self._frame, lambda call, whole: call(whole))  # type: ignore[arg-type]
        self._place: memoryview | None = None
        self._then: Callable[[], None] | None = None
        self._waiting: deque[bytes] = deque()

    def _frame(self, kind: int, data: bytes) -> None:
        self.taken.append((kind, data))

    def pause(self) -> None:
        """Nobody holds here."""

    resume = pause

    def read_into(self, place: memoryview, then: Callable[[], None]) -> None:
        """As the link's: the next bytes go there, and ``then`` is called when it is full."""
        self._place, self._then = place, then

    def bring(self, data: bytes) -> None:
        """Bytes come in: into the place that waits, and what is over to the inflow."""
        view = memoryview(data)
        while len(view):
            place = self._place
            if place is None:
                return self.inflow.received(view)
            have = min(len(place), len(view))
            place[:have] = view[:have]
            view = view[have:]
            if have < len(place):
                self._place = place[have:]
                return None
            then, self._place, self._then = self._then, None, None
            if then is not None:
                then()
        return None


def _flown(cut: list[bytes]) -> tuple[object, ...]:
    link, places = _Link(), [bytearray(size) for size in (5, 300, 70_000)]
    for number, place in enumerate(places, 1):
        link.inflow.expect(
            number,
            Pieces([memoryview(place)[:3], memoryview(place)[3:]]),
            lambda whole, number=number: link.ends.append((number, whole)),  # type: ignore[misc]
        )
    end = ""
    try:
        for each in cut:
            link.bring(each)
    except RemoteProtocolError as error:
        end = str(error)
    link.inflow.close()
    return link.taken, link.ends, [bytes(each) for each in places] if not end else [], end


def _mux(data: bytes) -> None:
    if len(data) >= mux.HEAD:
        quiet(mux.read_mux, data, more=True)
    whole = _flown([data])
    if whole != _flown(pieces(data, random_of(data))):
        raise Broken("cut into pieces it flows otherwise than whole")
    tell(not whole[-1])
    for kind, frame_bytes in whole[0]:  # type: ignore[attr-defined]
        if kind == mux.BATCH:
            _batch_reader.read(frame_bytes)


def _mux_samples(random: Random) -> list[bytes]:
    def one(kind: int, data: bytes = b"", number: int = 0) -> bytes:
        return mux.pack_mux(kind, len(data), number) + data

    whole = [
        one(mux.BODY, b"12345", 1), one(mux.BODY, b"x" * 100, 2) * 3, one(mux.ABORT, b"", 3),
        one(mux.PING, b"12345678"), one(mux.PONG, b"87654321"), one(mux.BODY, bytes(300), 9),
        *[one(mux.BATCH, batch) for batch in random.sample(_batches(random), 6)],
    ]  # fmt: skip
    return [*whole, *[b"".join(random.choices(whole, k=6)) for _ in range(12)]]


def _stream(data: bytes) -> None:
    """Each byte is an input, or a movement of credit; nothing but the tables decides."""
    machine = stream.StreamState(many=bool(data[:1] and data[0] & 1))
    window, credit = stream.ReceiveWindow(8, 1000), stream.SendCredit(8, 1000)
    queue: list[int] = []
    for byte in data[1:300]:
        signal, before = byte % 12, machine.state
        if signal < len(stream.INPUT_NAMES):
            after = stream.step(before, signal)
            try:
                machine.feed(signal, RemoteProtocolError)
            except RemoteProtocolError:
                if after is not None:
                    raise Broken("a legal input was refused") from None
                after = before
            if machine.state != after or any(
                new < old for new, old in zip(machine.state, before, strict=True)
            ):
                raise Broken("a stream went back, or where no table says so")
        elif signal == 10 and credit.open:
            credit.spend(1, byte)
            queue.append(byte)
            if not window.arrive(1, byte):
                raise Broken("what credit allowed was refused as beyond the window")
        elif queue and window.take(queue.pop(0)):
            credit.grant(*window.owed())
        if not queue and not credit.open and not window.taken_items:
            raise Broken("no item is under way, none is owed, and the sender may not send")


def _stream_samples(random: Random) -> list[bytes]:
    return [
        bytes(range(12)),
        bytes([1, 3, 4, 4, 10, 11, 5]),
        *[random.randbytes(60) for _ in "1234"],
    ]


TARGETS: Final = (
    Target("frames", _frame_samples, _frames),
    Target("frames-checked", _checked_samples, _checked_frames),
    Target("envelope", _envelopes, _envelope),
    Target("control", _controls, _control),
    Target("request", _requests, _request),
    Target("batch", _batches, _batch),
    # It takes the memory that a head claims, up to the bound of a batch, here twice.
    Target("mux", _mux_samples, _mux, most=3 * mux.MAX_BATCH),
    Target("stream", _stream_samples, _stream),
)
"""Decoders of frames and messages."""
