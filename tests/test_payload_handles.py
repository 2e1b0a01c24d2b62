"""Handles beside a payload that are wrong, unread or stale: a typed error, and the lease is
back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.roads import READER, Link, opened
from transport.errors import (
    DecodeError,
    RemoteProtocolError,
    StaleHandle,
)
from transport.payload import (
    decode_payload,
    inline,
)
from transport.wire.codec import Opaque as Spelt
from transport.wire.codec import encode


@pytest.fixture
def shared() -> Iterator[Link]:
    """A link whose peer reads our memory."""
    with opened("shared-msgpack") as made:
        yield made


def test_handles_that_are_not_read_are_given_back(shared: Link) -> None:
    def lent(value: object) -> tuple[bytes, list[Any]]:
        encoded = shared.encode(value)
        for announcement in shared.writer.needs(READER, encoded.handles):
            shared.reader.attach(announcement)
        for handle in encoded.handles:
            shared.writer.lend(handle, READER, 1)
        return encoded.data, [list(handle) for handle in encoded.handles]

    def refused(error: type[Exception], data: bytes, handles: list[Any]) -> None:
        with pytest.raises(error):
            decode_payload(data, handles, memory=shared.reader)
        assert shared.in_use == 0

    data, handles = lent([np.zeros(5000), np.zeros(6000)])
    refused(DecodeError, data[:-1], handles)
    data, handles = lent([np.zeros(5000), np.zeros(6000)])
    refused(DecodeError, encode([1]), handles)
    data, handles = lent([np.zeros(5000), np.zeros(6000)])
    refused(RemoteProtocolError, data, [*handles, [1, 2]])
    one = Spelt(6, b"\0\0\0\0")
    twice = encode([object(), object()], export=lambda _: one)
    data, handles = lent(np.zeros(5000))
    refused(DecodeError, twice, handles)
    data, handles = lent(np.zeros(5000))
    handles[0][5] = "<f4"
    refused(RemoteProtocolError, data, handles)
    data, handles = lent(np.zeros(5000))
    with pytest.raises(RemoteProtocolError):
        decode_payload(data, handles)
    shared.writer.take_back(READER)


def test_a_handle_that_was_freed(shared: Link) -> None:
    encoded = shared.encode(np.zeros(5000))
    for announcement in shared.writer.needs(READER, encoded.handles):
        shared.reader.attach(announcement)
    shared.writer.unexport(encoded.handles[0])
    with pytest.raises(StaleHandle):
        decode_payload(encoded.data, [list(encoded.handles[0])], memory=shared.reader)
    with pytest.raises(StaleHandle):
        inline(encoded, shared.writer)


@pytest.mark.parametrize("kind", [4, 5, 6, 7, 8, 95])
@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\0\0\0\1", b"\xff\xff\xff\xff", b"12345"])
def test_foreign_references(data: bytes, kind: int) -> None:
    payload = encode(object(), export=lambda _: Spelt(kind, data))
    with pytest.raises(DecodeError):
        decode_payload(payload)
    for entry in ([1, [2], b"x"], ["<f4", [2], b"x"], ["<f4", [-1, -2], bytes(8)], ["", [], ""]):
        if (data, kind) == (b"\0\0\0\0", 4) and type(entry[2]) is bytes and type(entry[0]) is str:
            continue  # bytes need no dtype
        if (data, kind) == (b"\0\0\0\0", 5) and type(entry[2]) is bytes and type(entry[0]) is str:
            continue
        with pytest.raises((DecodeError, RemoteProtocolError)):
            decode_payload(payload, [entry])
