"""What a large value leaves behind in packers and unpackers: nothing."""

from __future__ import annotations

import gc

import pytest

from actors.messages import Items
from transport.wire import packed
from transport.wire.codec import pack_plain
from transport.wire.message import _KEPT, BatchReader, BatchWriter


def packers() -> int:
    """Packers that live, in the pool or not."""
    return sum(type(each) is packed._Quick for each in gc.get_objects())


@pytest.mark.parametrize("good", [True, False])
def test_a_packer_that_has_grown_goes_without_the_collector(good: bool) -> None:
    value = ["x" * (2 << 20)] if good else ["x" * (2 << 20), object()]
    pack_plain(1)
    gc.collect()
    gc.disable()
    try:
        before = packers()
        for _ in range(5):
            assert (pack_plain(value) is not None) == good
        assert packers() <= before
    finally:
        gc.enable()


def test_a_large_batch_does_not_keep_its_buffers() -> None:
    writer, reader = BatchWriter(7), BatchReader()
    for size in (10, _KEPT + 1, 10):
        kept = writer._packer, reader._unpacker
        batch = writer.pack([Items(1, 0, [bytes(size)])])
        sender, (found,) = reader.unpack(batch)
        assert (sender, found) == (7, Items(1, 0, [bytes(size)]))
        now = writer._packer, reader._unpacker
        assert [old is new for old, new in zip(kept, now, strict=True)] == [size == 10] * 2
