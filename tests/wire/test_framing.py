"""Two-part frames: vectors, every cut, limits before memory, checksums."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import RemoteProtocolError, SpecError
from transport.wire.control import SENTINEL, pack_handshake
from transport.wire.framing import HEADER, FrameReader, frame, kind, pack_head, read_frame
from transport.wire.request import pack_reply

KINDS = {
    "header_only": (b'{"a":1}', b""),
    "data_only": (b"", b"\x81\xa1x\x01"),
    "header_and_data": (b"{}", b"body"),
    "empty": (b"", b""),
}
VECTORS = [
    ("000000000000000a000000000000000000000000000000002273656e74696e656c22", b'"sentinel"', b""),
    (
        "000000000000000e000000000000000000000000000000007b226572726f72223a6e756c6c7d",
        b'{"error":null}',
        b"",
    ),
    (
        "00000000000000000000000000000011000000000000000081ae636f6d706c6574655f66696e616cc3",
        b"",
        b"\x81\xaecomplete_final\xc3",
    ),
    (
        "000000000000000000000000000000170000000000000000" + b'{"complete_final":true}'.hex(),
        b"",
        b'{"complete_final":true}',
    ),
]
SUMMED = bytes.fromhex("000000000000000a00000000000000003993296f71e748892273656e74696e656c22")


def test_a_head_is_three_big_endian_numbers() -> None:
    assert pack_head(1, 2, 3).hex() == "000000000000000100000000000000020000000000000003"
    assert len(pack_head(0, 0)) == HEADER


@pytest.mark.parametrize(("text", "header", "body"), VECTORS)
def test_vectors(text: str, header: bytes, body: bytes) -> None:
    data = bytes.fromhex(text)
    assert frame(header, body) == data
    assert FrameReader(check=True).feed(data) == [(header, body)]
    assert read_frame(data, check=True) == (header, body)


def test_conformance_01_all_four_kinds_split_at_every_byte() -> None:
    data = b"".join(frame(*parts) for parts in KINDS.values())
    for cut in range(len(data) + 1):
        reader = FrameReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == [*KINDS.values()]
        assert reader.rest() == b""
        reader.eof()
    reader = FrameReader()
    single = [found for at in range(len(data)) for found in reader.feed(data[at : at + 1])]
    assert single == [*KINDS.values()]
    assert [kind(*parts) for parts in single] == [*KINDS]


def test_conformance_02_a_wrong_checksum_is_an_error_where_it_is_checked() -> None:
    assert read_frame(SUMMED, check=True) == (b'"sentinel"', b"")
    assert FrameReader(check=True).feed(SUMMED + SENTINEL) == [(b'"sentinel"', b"")] * 2
    both = xxhash.xxh3_64_intdigest(b"{}body")
    good = pack_head(2, 4, both) + b"{}body"
    assert FrameReader(check=True).feed(good) == [(b"{}", b"body")]
    wrong = pack_head(2, 4, both ^ 1) + b"{}body"
    with pytest.raises(RemoteProtocolError, match="checksum"):
        FrameReader(check=True).feed(wrong)
    with pytest.raises(RemoteProtocolError, match="checksum"):
        read_frame(wrong, check=True)
    assert FrameReader().feed(wrong) == [(b"{}", b"body")]
    assert read_frame(wrong) == (b"{}", b"body")


@pytest.mark.parametrize(
    ("h", "b"),
    [
        (2**64 - 1, 0),
        (0, 2**64 - 1),
        (2**64 - 1, 2**64 - 1),
        (2**63, 2**63),
        (1 << 20, 0),
        (0, 1001 - HEADER),
        (500, 501 - HEADER),
    ],
)
def test_conformance_03_an_oversized_length_is_an_error_before_memory_is_taken(
    h: int, b: int
) -> None:
    reader = FrameReader(limit=1000)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="limit of 1000 bytes"):
            reader.feed(pack_head(h, b))
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_a_frame_at_the_limit_passes() -> None:
    assert FrameReader(limit=1000).feed(frame(b"", bytes(1000 - HEADER))) == [(b"", bytes(976))]


def test_a_claim_within_the_limit_takes_memory_only_as_bytes_come() -> None:
    reader = FrameReader(limit=1 << 40)
    tracemalloc.start()
    try:
        assert reader.feed(pack_head(0, 1 << 39)) == []
        assert reader.feed(bytes(1000)) == []
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_large_frames_in_chunks_of_a_shared_buffer() -> None:
    bodies = [bytes([n]) * 300_000 for n in range(3)]
    data = b"".join(frame(b"h", body) for body in bodies)
    for chunk in (1000, 70_000, 262_144, len(data)):
        reader, found = FrameReader(), []
        shared = bytearray(chunk)
        for at in range(0, len(data), chunk):
            piece = data[at : at + chunk]
            shared[: len(piece)] = piece
            found += reader.feed(memoryview(shared)[: len(piece)])
            shared[:] = bytes(chunk)  # what was fed is not kept
        assert found == [(b"h", body) for body in bodies]


def test_frames_before_a_fault_are_not_lost() -> None:
    reader = FrameReader(limit=100)
    assert reader.feed(frame(b"a") + frame(b"b") + pack_head(0, 101)) == [(b"a", b""), (b"b", b"")]
    assert reader.fault is not None
    for call in (lambda: reader.feed(b""), reader.eof):
        with pytest.raises(RemoteProtocolError, match="limit of 100 bytes"):
            call()


def test_the_end_in_the_middle_of_a_frame_is_an_error() -> None:
    data = frame(b"{}", b"body")
    for cut in range(1, len(data)):
        reader = FrameReader()
        reader.feed(data[:cut])
        with pytest.raises(RemoteProtocolError, match="in the middle of a frame"):
            reader.eof()
        assert reader.rest() == data[:cut]


def test_what_follows_the_first_frame_may_be_no_frame() -> None:
    hello = pack_handshake("s", "mux")
    reader = FrameReader(limit=1000)
    reader.most = 1
    assert reader.feed(hello + b"\xff" * 100) == [(hello[HEADER:], b"")]
    assert reader.fault is None
    assert reader.rest() == b"\xff" * 100
    reader = FrameReader()
    reader.most = 1
    assert reader.feed(hello * 2) == [(hello[HEADER:], b"")]
    assert reader.feed(b"") == [(hello[HEADER:], b"")]
    assert reader.feed(b"") == []


@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(23), frame(b"{}", b"b")[:-1], frame(b"{}", b"b") + b"x", pack_reply(b"")],
)
def test_bytes_that_are_not_exactly_one_frame(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="frame"):
        read_frame(data)


def test_without_the_package_a_check_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    FrameReader()
    with pytest.raises(SpecError, match=r"callhome\[checksum\]"):
        FrameReader(check=True)
    with pytest.raises(SpecError, match=r"callhome\[checksum\]"):
        read_frame(SUMMED, check=True)


@given(st.binary(max_size=200), st.lists(st.integers(1, 40), max_size=20))
def test_garbage_gives_frames_or_a_typed_error_however_it_is_cut(
    data: bytes, cuts: list[int]
) -> None:
    def run(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bool]:
        reader, found = FrameReader(limit=150), []
        try:
            for piece in pieces:
                found += reader.feed(piece)
        except RemoteProtocolError:
            pass
        return found, reader.fault is not None

    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    assert run([*pieces, data[at:]]) == run([data])


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=60)), max_size=8), st.data())
def test_frames_come_back_however_they_are_cut(
    frames: list[tuple[bytes, bytes]], draw: st.DataObject
) -> None:
    data = b"".join(frame(*parts) for parts in frames)
    reader, found, at = FrameReader(), [], 0
    while at < len(data):
        size = draw.draw(st.integers(1, 80))
        found += reader.feed(memoryview(data)[at : at + size])
        at += size
    assert found == frames
    reader.eof()
