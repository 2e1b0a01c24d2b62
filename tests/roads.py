"""A writer and a reader of payloads, and the roads between them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from transport.payload import (
    Encoded,
    decode_payload,
    encode_payload,
    inline_kept,
)
from transport.shm.memory import Memory
from transport.wire.handle import Handle

MIB = 1 << 20
WRITER, READER = 11, 22


ROADS = ["shared-msgpack", "shared-json", "refused-msgpack", "bytes-msgpack", "bytes-json"]


class Link:
    """A writer's and a reader's memory, and one of the roads between them."""

    def __init__(self, road: str, codec: str) -> None:
        self.writer = Memory(WRITER, wake=lambda: None, step=4 * MIB, limit=8 * MIB, threshold=1024)
        self.reader = Memory(READER, wake=lambda: None, step=4 * MIB, limit=8 * MIB, threshold=1024)
        self.road = road
        self.codec = codec

    def encode(self, value: object) -> Encoded:
        return encode_payload(
            value, codec=self.codec, memory=self.writer, native=self.road != "bytes"
        )

    def decode(self, encoded: Encoded) -> Any:
        if self.road == "refused" and encoded.handles:
            encoded = inline_kept(encoded, self.writer)
        handles = [each for each in encoded.handles if type(each) is Handle]
        for announcement in self.writer.needs(READER, handles):
            self.reader.attach(announcement)
        for handle in handles:
            self.writer.lend(handle, READER, 1)
        wire = [list(each) for each in encoded.handles]
        return decode_payload(encoded.data, wire, codec=self.codec, memory=self.reader)

    def carry(self, value: object) -> Any:
        return self.decode(self.encode(value))

    def settle(self) -> None:
        """The reader's ended leases reach the writer."""
        for owner, leases in self.reader.drain_releases().items():
            assert owner == WRITER
            self.writer.release(READER, leases)
        self.writer.drain_releases()

    @property
    def in_use(self) -> int:
        """Bytes of the writer's arena that are held or lent."""
        gc.collect()
        self.settle()
        return self.writer.statistics().in_use

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


def check_array(got: Any, sent: np.ndarray[Any, Any]) -> None:
    assert type(got) is np.ndarray
    assert got.dtype == sent.dtype
    assert got.dtype.byteorder == sent.dtype.byteorder
    assert got.shape == sent.shape
    assert got.flags.c_contiguous
    assert got.flags.aligned or sent.dtype.names
    assert not got.flags.writeable
    assert np.array_equal(got, sent)


@contextmanager
def opened(road: str) -> Iterator[Link]:
    """A link by one of ``ROADS``; afterwards nothing may be lent or held in the writer's arena."""
    made = Link(*road.split("-"))
    yield made
    assert made.in_use == 0
    made.close()
