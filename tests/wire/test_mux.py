"""Heads of the frames between two nodes of ours: bounds by kind, numbers, garbage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import RemoteProtocolError
from transport.wire.mux import (
    ABORT,
    BATCH,
    BODY,
    CHUNK,
    HEAD,
    MAX_BATCH,
    MAX_NUMBER,
    PING,
    PONG,
    PROBE,
    pack_mux,
    read_mux,
)


@pytest.mark.parametrize(
    ("kind", "length", "number", "text"),
    [
        (BATCH, 1, 0, "0000000101000000"),
        (BATCH, MAX_BATCH, 0, "0080000001000000"),
        (BODY, CHUNK, MAX_NUMBER, "0004000002ffffff"),
        (BODY, 1, 1, "0000000102000001"),
        (ABORT, 0, 0x010203, "0000000003010203"),
        (PING, PROBE, 0, "0000000804000000"),
        (PONG, PROBE, 0, "0000000805000000"),
    ],
)
def test_heads_come_back(kind: int, length: int, number: int, text: str) -> None:
    head = pack_mux(kind, length, number)
    assert head.hex() == text
    assert len(head) == HEAD
    assert read_mux(head) == (length, kind, number)
    assert read_mux(memoryview(b"xx" + head + b"x"), 2) == (length, kind, number)


@pytest.mark.parametrize(
    ("kind", "length", "number", "fault"),
    [
        (0, 1, 0, "kind 0"),
        (6, 8, 0, "kind 6"),
        (255, 8, 0, "kind 255"),
        (BATCH, 0, 0, "has 0 bytes"),
        (BATCH, MAX_BATCH + 1, 0, "are allowed"),
        (BATCH, 2**32 - 1, 0, "are allowed"),
        (BATCH, 1, 1, "body number 1"),
        (BODY, 0, 1, "has 0 bytes"),
        (BODY, CHUNK + 1, 1, "are allowed"),
        (BODY, 1, 0, "body number 0"),
        (ABORT, 1, 1, "has 1 bytes"),
        (ABORT, 0, 0, "body number 0"),
        (PING, 7, 0, "has 7 bytes"),
        (PONG, 9, 0, "has 9 bytes"),
        (PING, 8, 3, "body number 3"),
    ],
)
def test_what_breaks_the_rules_is_the_peers_fault(
    kind: int, length: int, number: int, fault: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=fault):
        read_mux(pack_mux(kind, length, number))


@given(st.binary(min_size=HEAD, max_size=HEAD))
def test_any_head_is_read_exactly_or_refused(data: bytes) -> None:
    try:
        length, kind, number = read_mux(data)
    except RemoteProtocolError:
        return
    assert pack_mux(kind, length, number) == data
