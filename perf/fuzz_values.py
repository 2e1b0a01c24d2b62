"""Fuzz targets: values of users, in every codec; what travels beside them; errors and records."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any, Final
from uuid import UUID

import msgpack

from actors.discovery.etcd_records import Pair, read_pair, record_key
from actors.discovery.record import BadRecord, pack_record, read_record
from actors.messages import Record
from perf.fuzz_check import TYPED, Broken, Target, quiet
from transport.bus.address import Address
from transport.errors import (
    AttachFailed,
    CallHomeError,
    EncodeError,
    LocalProtocolError,
    StaleHandle,
    read_error,
    to_wire,
)
from transport.payload import decode_payload, encode_payload, transcode_request
from transport.shm.memory import Memory
from transport.wire import codec as codecs
from transport.wire import plain
from transport.wire.adapter import load_adapter
from transport.wire.codec import Annotated, decode
from transport.wire.failures import error_fields, error_from, start_error
from transport.wire.handle import Handle, announcement_from_wire, handle_from_wire
from transport.wire.ints import read_ints, without_ints

_OWNER, _READER = 11, 22
_VALUES: Final[tuple[object, ...]] = (
    None, True, 0, -1, 2**64 - 1, 2**80, -(2**63), 1.5, math.nan, -math.inf, "", "aé€\U0001f600",
    b"", bytes(range(256)), [], {}, (), (1, (2,), [(3,)]), {"a": {"b": [1, 2.0, None, True]}},
    {1: "a", b"1": "c", None: "e", (1, (2, "x")): "f"}, {"$callhome": "bytes", "v": "AA=="},
    datetime(2024, 10, 27, 2, 30, fold=1), datetime(1, 1, 1, tzinfo=UTC), date(1, 1, 1),
    time(12, 30, 1, 5, fold=1), timedelta.min, UUID(int=2**128 - 1), Decimal("-0E+7"),
    Annotated(), Annotated({"x": (1, b"2")}, "id", "event", ["one"], {"code": 1}),
    [Annotated(Annotated(1))], Annotated(error="text"), [[1] * 5, "x" * 300, {"k": "v" * 40}],
    list(range(1100)), {"token_ids": [7] * 1030},
)  # fmt: skip
_BARE: Final[tuple[object, ...]] = (
    None, True, 0, 2**64 - 1, -(2**63), 1.5, "", "é", [], {}, {"a": {"b": [1, 2.0, None]}},
    [[1] * 5, "x" * 300], Annotated({"x": 1}, "id", "event", ["c"]), Annotated(error="text"),
    Annotated(1, error={"message": "m", "class": "Internal"}), {"error": None},
)  # fmt: skip


class _Rig:
    """An owner's memory, a reader that has mapped it, and handles that are right."""

    def __init__(self) -> None:
        import numpy as np

        self.owner = Memory(_OWNER, wake=lambda: None, step=1 << 20, limit=1 << 20, threshold=64)
        self.reader = Memory(_READER, wake=lambda: None, step=1 << 20, limit=1 << 20)
        self.pairs: list[bytes] = []
        values = (
            np.arange(30.0), [np.zeros((2, 8), "<i4"), b"x" * 100], bytearray(80),
            {"a": np.zeros(4, "i1,f8"), "b": np.ones((3, 5), bool)},
        )  # fmt: skip
        for value in values:
            encoded = encode_payload(value, memory=self.owner, native=True)
            for announced in self.owner.needs(_READER, encoded.handles):
                self.reader.attach(announced)
            beside = [list(each) for each in encoded.handles]
            self.pairs.append(msgpack.packb([encoded.data, beside]))
            told = [[each.dtype, list(each.shape), bytes(each.size)] for each in encoded.handles]
            self.pairs.append(msgpack.packb([encoded.data, told]))
            near = encode_payload(value)
            self.pairs.append(msgpack.packb([near.data, []]))

    def settle(self) -> None:
        """Leases that the reader has ended go nowhere: the owner keeps what it holds."""
        self.reader.drain_releases()

    def close(self) -> None:
        """Unmap everything."""
        self.reader.close()
        self.owner.close()


_rig: Final = cache(_Rig)


def close() -> None:
    """Give back the shared memory that the targets have taken."""
    if _rig.cache_info().currsize:
        _rig().close()
        _rig.cache_clear()


def _same(value: object) -> str:
    return repr(value)


def _codec(codec: str) -> Any:
    def encode(value: object, codec: str) -> bytes:
        return codecs.encode(value, codec=codec)

    def run(data: bytes) -> None:
        value = decode(data, codec=codec)
        again = quiet(encode, value, codec, typed=(EncodeError,), more=True)
        if isinstance(again, EncodeError):
            # A list of integers in one piece is no container to a reader, and one to a writer.
            if "nested deeper" in str(again) and without_ints(data, codec) != data:
                return
            raise Broken(f"what was read cannot be written: {again}")
        if _same(decode(again, codec=codec)) != _same(value):
            raise Broken("a value that is written again reads otherwise")
        for to in ("msgpack", "json", *sorted(plain.PLAIN)):
            quiet(plain.transcode, data, codec, to, typed=(*TYPED, EncodeError), more=True)

    return run


def _codec_samples(codec: str) -> Any:
    def samples(_: Random) -> list[bytes]:
        made = [encode_payload(value, codec=codec, root="request").data for value in _VALUES]
        return [*made, *[plain.encode_value(each, codec) for each in _BARE[:12]]]

    return samples


def _plain(codec: str) -> Any:
    def run(data: bytes) -> None:
        quiet(plain.decode_value, data, codec)
        item = quiet(plain.decode_item, data, codec)
        plain.is_error_item(data, codec)
        body = quiet(plain.unwrap, data, codec)
        if type(body) is bytes:
            quiet(plain.decode_item, body, codec, more=True)
        if type(item) is Annotated:
            plain.error_of(item)
        written = quiet(plain.encode_item, item, codec, typed=(EncodeError,), more=True)
        if not isinstance(item, CallHomeError) and type(written) is bytes:
            inner = plain.unwrap(plain.wrap(written, codec), codec)
            if inner is None or _same(plain.decode_item(inner, codec)) != _same(
                plain.decode_item(written, codec)
            ):
                raise Broken("an item that is wrapped reads otherwise")

    return run


def _plain_samples(codec: str) -> Any:
    def samples(_: Random) -> list[bytes]:
        items = [plain.encode_item(value, codec) for value in _BARE]
        wrapped = [plain.wrap(each, codec) for each in items]
        told = plain.error_item(LocalProtocolError("words"), codec)
        return [*items, *wrapped, plain.final(codec), told, plain.wrap(told, codec)]

    return samples


def _unpacked(data: bytes) -> Any:
    """What msgpack makes of an input, as the bus would hand it on; None for what is none."""
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except Exception:
        return None


def _handle_samples(_: Random) -> list[bytes]:
    handle = Handle(11, 1, 4096, 240, 1, "<f8", (30,))
    announced = [11, 1, 4242, 777, 5, 1, 99, 1 << 20, bytes(16)]
    empty = handle._replace(segment=0, size=0, shape=(0,))
    return [msgpack.packb(list(each)) for each in (handle, announced, empty)]


def _handle(data: bytes) -> None:
    value = _unpacked(data)
    found = quiet(handle_from_wire, value)
    if type(found) is Handle and handle_from_wire(list(found)) != found:
        raise Broken("a handle that is written again reads otherwise")
    quiet(announcement_from_wire, value)


def _beside_samples(_: Random) -> list[bytes]:
    return _rig().pairs


def _beside(data: bytes) -> None:
    """A payload with handles into memory that is there."""
    value, rig = _unpacked(data), _rig()
    if type(value) is not list or len(value) != 2 or type(value[0]) is not bytes:
        value = [data, []]
    payload, handles = value
    if type(handles) is not list:
        handles = []
    typed = (*TYPED, StaleHandle, AttachFailed, EncodeError)
    quiet(decode_payload, payload, handles, typed=typed)
    quiet(transcode_request, payload, handles, "msgpack", "plain.msgpack", rig.reader, typed=typed)
    rig.settle()
    try:
        decode_payload(payload, handles, memory=rig.reader)
    finally:
        rig.settle()


def _ints(data: bytes) -> None:
    quiet(read_ints, data)
    spelt = without_ints(data, "msgpack")
    if spelt == data:
        return
    value, other = quiet(decode, data), quiet(decode, spelt)
    # Spelt out, a list is a container that counts: a value may then be one too deep.
    if not isinstance(other, CallHomeError) and _same(value) != _same(other):
        raise Broken("integers that are spelt out read otherwise")


def _ints_samples(_: Random) -> list[bytes]:
    made = [list(range(1100)), {"a": [-(2**31)] * 1024, "b": 1}, [0] * 1024]
    return [encode_payload(value, root="request").data for value in made]


def _failure(data: bytes) -> None:
    value = _unpacked(data)
    for error in (error_from(value, "otherwise"), start_error("words", value), read_error(value)):
        if not isinstance(error, CallHomeError):
            raise Broken("an error that is read is none of ours")
        to_wire(error)
        error_fields(error)


def _failure_samples(_: Random) -> list[bytes]:
    typed = error_fields(LocalProtocolError("words"))
    chain = {"message": "m", "caused_by": {"class": "Cancelled", "reason": "backend.cancelled"}}
    told = to_wire(StaleHandle("words", a="b"))
    legacy = {"error_type": {"Backend": "EngineShutdown"}, "message": "ValueError: x"}
    return [msgpack.packb(each) for each in (typed, chain, told, legacy, "text")]


def _record(data: bytes) -> None:
    quiet(lambda: read_record(plain.decode_value(data, "json")), typed=(*TYPED, BadRecord))


def _record_samples(_: Random) -> list[bytes]:
    home = Address("e", 5, 1, 2)
    records = [
        Record(5, home, "engine", "n.c.e", True, 8, device="cuda"),
        Record(2**63, home, "engine", "n.c.é", codec="json"),
    ]
    return [json.dumps(pack_record(each, "127.0.0.1:80", 7)).encode() for each in records]


def _etcd(data: bytes) -> None:
    key = record_key("n.c.e", 5)
    quiet(lambda: read_pair(Pair(key, data, 1)), typed=(BadRecord,))


def _adapter(data: bytes) -> None:
    class Odd:
        decode = encode = data

    quiet(load_adapter, data.decode("latin-1"), lambda _: Odd, typed=(LocalProtocolError,))


def _adapter_samples(_: Random) -> list[bytes]:
    return [b"module:attribute", b"a.b:c.d", b":", b"no"]


TARGETS: Final = (
    Target("msgpack", _codec_samples("msgpack"), _codec("msgpack")),
    Target("json", _codec_samples("json"), _codec("json")),
    Target("plain.msgpack", _plain_samples("plain.msgpack"), _plain("plain.msgpack")),
    Target("plain.json", _plain_samples("plain.json"), _plain("plain.json")),
    Target("ints", _ints_samples, _ints),
    Target("handle", _handle_samples, _handle),
    Target("beside", _beside_samples, _beside, (*TYPED, StaleHandle, AttachFailed)),
    Target("failures", _failure_samples, _failure),
    Target("record", _record_samples, _record),
    Target("etcd", _record_samples, _etcd),
    Target("adapter", _adapter_samples, _adapter),
)
"""Decoders of values."""
