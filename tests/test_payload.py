"""Payloads: one type at the receiver whatever size and road, and nothing left after errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from actors.cluster.entry import load_target
from tests.roads import MIB, ROADS, Link, check_array, opened
from transport.errors import (
    EncodeError,
    FrameReleased,
    LocalProtocolError,
)
from transport.payload import (
    decode_payload,
    encode_payload,
)
from transport.shm.frames import Frame, private_frame
from transport.wire.adapter import load_adapter
from transport.wire.codec import Annotated

SIZES = [0, 1, 1023, 1024, 100_000]
STRUCTURED = np.dtype([("id", ">u2"), ("xy", "<f4", (2,)), ("name", "S3")])
ARRAYS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "small": lambda: np.arange(6, dtype="<i2").reshape(2, 3),
    "large": lambda: np.arange(60_000, dtype="f4").reshape(3, 100, 200),
    "big-endian": lambda: np.arange(1000, dtype=">f8"),
    "fortran": lambda: np.asfortranarray(np.arange(6000).reshape(60, 100)),
    "strided": lambda: np.arange(10_000)[::-3],
    "small-strided": lambda: np.arange(10, dtype="u1")[::2],
    "no-dimension": lambda: np.array(2.5),
    "empty": lambda: np.empty((0, 7), "u2"),
    "structured": lambda: np.ones(500, STRUCTURED),
    "few-structured": lambda: np.ones(2, STRUCTURED),
    "dates": lambda: np.array(["2020-01-01"] * 300, "M8[ns]"),
    "text": lambda: np.array(["a", "bé"]),
    "complex": lambda: np.ones((2, 2), "c16"),
    "bool": lambda: np.ones(2000, bool),
}


@pytest.fixture(params=ROADS)
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """A link by each of the roads."""
    with opened(request.param) as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Link]:
    """A link whose peer reads our memory."""
    with opened("shared-msgpack") as made:
        yield made


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_keep_dtype_and_shape(link: Link, name: str) -> None:
    sent = ARRAYS[name]()
    got = link.carry({"a": [sent, (sent,)], "note": Annotated(data=sent)})
    for one in (got["a"][0], got["a"][1][0], got["note"].data, link.carry(sent)):
        check_array(one, sent)
    del got, one


@pytest.mark.parametrize("size", SIZES)
def test_buffers_keep_their_type(link: Link, size: int) -> None:
    raw = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = {
        "bytes": raw,
        "array": bytearray(raw),
        "view": memoryview(raw),
        "odd": memoryview(raw * 2)[::2],
        "deep": [[{"x": (raw, bytearray(raw))}]],
    }
    got = link.carry(sent)
    assert type(got["bytes"]) is bytes
    assert type(got["deep"][0][0]["x"][0]) is bytes
    assert got["bytes"] == got["deep"][0][0]["x"][0] == raw
    for view in (got["array"], got["view"], got["deep"][0][0]["x"][1]):
        assert type(view) is memoryview
        assert view.readonly
        assert (view.format, view.shape) == ("B", (size,))
        assert view == raw
    assert got["odd"] == (raw * 2)[::2]
    for item in (raw, [raw], (raw, 1), {1: raw}, Annotated(raw), Annotated({"a": raw}, id="x")):
        back = link.carry(item)
        assert back == item
        assert type(back) is type(item)
    del got, view


def test_large_bytes_go_beside_the_data(shared: Link) -> None:
    raw = bytes(5000)
    for value in (raw, [raw], (raw,), {"a": raw}, Annotated(raw), Annotated([raw]), bytearray(raw)):
        encoded = shared.encode(value)
        assert len(encoded.data) < 100
        assert encoded.size == len(encoded.data) + 5000
        assert len(encoded.handles) == 1
        shared.decode(encoded)
    assert shared.encode(bytes(1023)).handles == []


def test_plain_values_take_no_handle(link: Link) -> None:
    value = {"token_ids": [1], "text": "tok", "b": b"x"}
    encoded = link.encode(value)
    assert encoded.handles == []
    assert encoded.size == len(encoded.data)
    assert link.decode(encoded) == value


def test_what_was_encoded_is_independent_of_its_source(link: Link) -> None:
    for size in (10, 10_000):
        array, buffer, items = np.zeros(size), bytearray(size), [1]
        encoded = link.encode([array, buffer, items])
        array[:] = 1
        buffer[:] = b"x" * size
        items[0] = 2
        got = link.decode(encoded)
        assert not got[0].any()
        assert not any(got[1])
        assert got[2] == [1]
        del got


class Tensor:
    """Like an array of another library."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        return np.arange(2000.0)


class Capsule:
    """An array that only speaks DLPack."""

    def __init__(self) -> None:
        self._array = np.arange(2000.0)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnDevice:
    """An array whose memory is not here."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        raise TypeError("cannot convert a device tensor; use x.cpu()")


def test_arrays_of_other_libraries(link: Link) -> None:
    for sent in (Tensor(), Capsule()):
        check_array(link.carry([sent])[0], np.arange(2000.0))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([object()]), "references to Python objects"),
        (np.ones(1, [("a", "O")]), "references to Python objects"),
        (np.ma.masked_array([1]), r"derived from ndarray; send numpy\.asarray"),
        (np.rec.array([(1,)], dtype=[("a", int)]), "derived from ndarray"),
        (OnDevice(), r"use x\.cpu"),
        (object(), "no payload value"),
        ({"f": np.zeros(5000), "x": {1, 2}}, r'\["x"\]: set'),
    ],
)
def test_refused_with_the_path_and_nothing_left(link: Link, value: object, reason: str) -> None:
    frame = link.writer.frames.new(5000, "u1")
    held = link.in_use
    with pytest.raises(EncodeError, match=rf'^item\["v"\]\[3\].*{reason}'):
        link.encode({"v": [np.zeros(5000), frame, bytes(5000), value]})
    assert link.in_use == held
    frame.array[:] = 1  # not handed on: still ours
    got = link.carry(frame)
    assert got.array.all()
    del got, frame


def test_frames_arrive_as_frames(link: Link) -> None:
    for shape, dtype in (((100, 200, 3), "u1"), (4, ">f4"), ((0, 3), "i8"), ((), "f8")):
        frame = link.writer.frames.new(shape, dtype)
        frame.array[...] = 7
        sent = frame.array.copy()
        encoded = link.encode({"f": frame, "n": 1})
        with pytest.raises(FrameReleased):
            link.encode(frame)
        with pytest.raises(FrameReleased):
            link.encode([1, {"x": frame}])
        assert not frame.array.flags.writeable
        got = link.decode(encoded)
        assert type(got["f"]) is Frame
        check_array(got["f"].array, sent)
        del got, frame


def test_a_frame_twice_in_one_item(link: Link) -> None:
    frame = link.writer.frames.new(5000, "u1")
    with pytest.raises(FrameReleased, match="twice"):
        link.encode([frame, np.zeros(5000), frame])
    frame.array[:] = 3
    assert link.carry(frame).array[-1] == 3
    del frame


def test_a_hundred_frames_of_one_name(link: Link) -> None:
    values = []
    for number in range(100):
        frame = link.writer.frames.new(2000, "u1")
        frame.array[:] = number
        values.append(int(link.carry(frame).array[-1]))
        link.settle()
    del frame
    assert values == list(range(100))


def test_received_private_and_foreign_frames_are_handed_on_too(link: Link) -> None:
    sent = np.arange(1000)
    own = link.writer.frames.copy(sent)
    received = link.carry(own)
    foreign = link.reader.frames.copy(sent)
    for frame in (received, private_frame(sent.copy()), foreign):
        got = link.carry([frame])
        assert type(got[0]) is Frame
        check_array(got[0].array, sent)
        with pytest.raises(FrameReleased):
            link.encode(frame)
        del got
    del own, received, foreign, frame
    assert link.in_use == 0
    assert link.reader.statistics().in_use == 0


def test_a_frame_without_any_memory() -> None:
    frame = private_frame(np.arange(10_000))
    encoded = encode_payload(frame)
    assert decode_payload(encoded.data).array[-1] == 9999
    with pytest.raises(FrameReleased):
        encode_payload(frame)


def test_a_full_arena_sends_copies_in_line(link: Link) -> None:
    hog = [link.writer.frames.new(MIB, "u1") for _ in range(7)]
    sent = {"a": np.ones(3 * MIB, "u1"), "b": bytes(3 * MIB), "v": bytearray(3 * MIB)}
    got = link.carry(sent)
    check_array(got["a"], sent["a"])  # type: ignore[arg-type]
    assert got["b"] == sent["b"]
    assert type(got["b"]) is bytes
    assert got["v"] == sent["v"]
    assert type(got["v"]) is memoryview
    del got, hog


def test_a_lease_lasts_as_long_as_the_last_view(shared: Link) -> None:
    got = shared.carry([np.arange(5000), bytearray(5000), shared.writer.frames.new(5000, "u1")])
    part = got[0].reshape(50, 100)[3:4, ::2]
    view = got[1][10:20]
    plain = got[2].array[:5]
    del got
    assert shared.in_use >= 3 * 5000
    assert part[0, 1] == 302
    del part
    del view
    assert shared.in_use < 2 * 8192
    del plain
    assert shared.in_use == 0


class Upper:
    """An adapter for a peer that speaks plain text."""

    def decode(self, data: bytes) -> Any:
        return data.decode()

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        return str(item).upper().encode(), False, item == "last"


UPPER = Upper()


def test_adapters_by_name() -> None:
    for target in ("tests.test_payload:Upper", "tests.test_payload:UPPER"):
        adapter = load_adapter(target, load_target)
        assert adapter.decode(b"a") == "a"
        assert adapter.encode("last") == (b"LAST", False, True)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("tests.test_payload", "module:attribute"),
        (":x", "module:attribute"),
        ("tests.nothing:x", "ModuleNotFoundError"),
        ("tests.test_payload:nothing", "has no 'nothing'"),
        ("tests.test_payload:Link", "TypeError"),
        ("tests.test_payload:SIZES", "no method 'decode'"),
    ],
)
def test_adapters_that_are_none(target: str, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        load_adapter(target, load_target)


def test_the_import_brings_no_numpy() -> None:
    code = "import sys, transport.payload; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
