"""Frames of the request plane: vectors, every cut, bad paths and headers, limits."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.wire.framing import frame, read_frame
from transport.wire.request import (
    MAX_HEADERS,
    MAX_PATH,
    ReplyReader,
    RequestFrame,
    RequestReader,
    pack_reply,
    pack_request,
    request_size,
)

VECTOR = bytes.fromhex(
    "000d316132622f67656e65726174650002"
    "7b7d0000001b000000000000000200000000000000010000000000000000"
    "7b7d78"
)
HEADERS = {"x-endpoint-path": "1a/ns/c/e", "request-id": 'é\u2028"\\', "empty": ""}


def whole(path: str, headers: dict[str, str], payload: bytes) -> bytes:
    return b"".join(pack_request(path, headers, [payload]))


def raw(path: bytes, headers: bytes, payload: bytes = b"p") -> bytes:
    return b"".join(
        (
            len(path).to_bytes(2, "big"),
            path,
            len(headers).to_bytes(2, "big"),
            headers,
            len(payload).to_bytes(4, "big"),
            payload,
        )
    )


def test_the_vector() -> None:
    assert whole("1a2b/generate", {}, frame(b"{}", b"x")) == VECTOR
    (found,) = RequestReader().feed(VECTOR)
    assert found == RequestFrame("1a2b/generate", {}, frame(b"{}", b"x"))
    assert read_frame(found.payload) == (b"{}", b"x")


def test_parts_are_the_callers_and_not_copied() -> None:
    view = memoryview(bytes(1000)).cast("I")
    parts = pack_request("p", HEADERS, [b"head", view])
    assert parts[1] == b"head"
    assert parts[2] is view
    assert request_size(parts) == len(b"".join(bytes(part) for part in parts))
    (found,) = RequestReader().feed(b"".join(bytes(part) for part in parts))
    assert found == RequestFrame("p", HEADERS, b"head" + bytes(1000))


def test_requests_split_at_every_byte() -> None:
    requests = [
        RequestFrame("a", {}, b""),
        RequestFrame("1a2b/ns/é", HEADERS, b"payload"),
        RequestFrame("x" * MAX_PATH, {}, b"y"),
    ]
    data = b"".join(whole(*request) for request in requests)
    for cut in range(len(data) + 1):
        reader = RequestReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == requests
        reader.eof()
    reader = RequestReader()
    assert [one for at in range(len(data)) for one in reader.feed(data[at : at + 1])] == requests
    for cut in range(1, len(whole(*requests[1]))):
        reader = RequestReader()
        assert reader.feed(whole(*requests[1])[:cut]) == []
        with pytest.raises(RemoteProtocolError, match="in the middle"):
            reader.eof()


@pytest.mark.parametrize("size", [0, MAX_PATH + 1, 65_535])
def test_conformance_04_a_path_of_a_wrong_length_ends_the_connection(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"1 to {MAX_PATH} bytes"):
        RequestReader().feed(raw(b"p" * size, b"{}"))
    with pytest.raises(RemoteProtocolError):  # on its first two bytes
        RequestReader().feed(size.to_bytes(2, "big"))


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"a":1}',
        b'{"a":null}',
        b'{"a":"b","c":{}}',
        b"\xff\xfe\x00",
        b"not json",
        b"[" * 60_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_conformance_04_headers_that_are_no_map_of_texts_count_as_none(headers: bytes) -> None:
    (found,) = RequestReader().feed(raw(b"path", headers))
    assert found == RequestFrame("path", {}, b"p")


def test_a_path_that_is_no_text_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        RequestReader().feed(raw(b"\xff\xff", b"{}"))


def test_a_request_over_the_limit_is_refused_before_memory_is_taken() -> None:
    data = raw(b"path", b"{}", bytes(100))
    size = len(data)
    assert len(RequestReader(size).feed(data)) == 1
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"limit of {size - 1} bytes"):
            RequestReader(size - 1).feed(data[:-100])
        with pytest.raises(RemoteProtocolError, match="limit of"):
            RequestReader().feed(raw(b"path", b"{}", b"")[:-4] + b"\xff\xff\xff\xff")
        # Other threads of this process may take some, too; the second claims 4 GiB.
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_requests_before_a_fault_are_not_lost() -> None:
    reader = RequestReader()
    assert len(reader.feed(VECTOR * 2 + b"\x00\x00")) == 2
    with pytest.raises(RemoteProtocolError, match="path"):
        reader.feed(b"")


@pytest.mark.parametrize(
    ("path", "headers"),
    [("", {}), ("p" * (MAX_PATH + 1), {}), ("é" * 600, {}), ("p", {"k": "v" * MAX_HEADERS})],
)
def test_what_does_not_fit_is_not_sent(path: str, headers: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        pack_request(path, headers, [])


def test_a_payload_beyond_32_bits_is_not_sent() -> None:
    part = memoryview(bytes(1 << 20))
    with pytest.raises(LocalProtocolError, match="payload"):
        pack_request("p", {}, [part] * 4096)


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_headers_are_json(headers: dict[str, str]) -> None:
    data = whole("p", headers, b"")
    text = data[5:-4]
    assert json.loads(text) == headers
    assert RequestReader().feed(data)[0].headers == headers


def test_replies_split_at_every_byte() -> None:
    replies = [b"", b"Server unavailable: none", b""]
    assert pack_reply(b"") == bytes(4)
    data = b"".join(map(pack_reply, replies))
    for cut in range(len(data) + 1):
        reader = ReplyReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == replies
        reader.eof()
    reader = ReplyReader()
    reader.feed(data[:-1])
    with pytest.raises(RemoteProtocolError, match="in the middle"):
        reader.eof()


def test_a_reply_over_the_limit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"answers with b'\\xff"):
        ReplyReader().feed(b"\xff\xff\xff\xff")


@given(st.binary(max_size=120), st.integers(1, 20))
def test_garbage_gives_frames_or_a_typed_error_however_it_is_cut(data: bytes, size: int) -> None:
    for make in (lambda: RequestReader(100), lambda: ReplyReader(100)):
        results = []
        for step in (size, len(data) + 1):
            reader = make()
            found: list[object] = []
            try:
                for at in range(0, len(data), step):
                    found += reader.feed(data[at : at + step])
            except RemoteProtocolError:
                pass
            results.append((found, reader.fault is not None))
        assert results[0] == results[1]
