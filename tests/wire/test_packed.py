"""MessagePack: packers that are never left dirty, and foreign bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.wire.samples import (
    OddZone,
    both,
    in_list,
    nested,
)
from transport.errors import DecodeError
from transport.wire import packed
from transport.wire.codec import (
    MAX_DEPTH,
    decode,
    encode,
    pack_plain,
)


def test_a_failed_pack_leaves_the_next_clean() -> None:
    for _ in range(3):
        for bad in ([1, "\ud800"], [2**70, {3: object()}], [2**9000], nested(3000, in_list)):
            assert pack_plain(bad) is None
            assert pack_plain({"a": 1}) == b"\x81\xa1a\x01"
    large = b"x" * (3 << 20)
    assert decode(encode(large)) == large
    assert len(packed._pool) <= 2


class Reentrant(OddZone):
    """A time zone that encodes while it is being encoded."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        assert decode(encode([datetime(2020, 1, 1, tzinfo=UTC)])) == [
            datetime(2020, 1, 1, tzinfo=UTC)
        ]
        return timedelta(hours=1)


@both
def test_encoding_within_an_encoding(codec: str) -> None:
    value = ["before", datetime(2020, 1, 1, tzinfo=Reentrant()), "after"]
    back: Any = decode(encode(value, codec=codec), codec=codec)
    assert back[::2] == ["before", "after"]
    assert back[1].utcoffset() == timedelta(hours=1)


def test_threads_do_not_meet_in_a_packer() -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        value = {"n": seed, "t": (seed, 2**80 + seed), "l": list(range(seed))}
        for _ in range(200):
            if decode(encode(value)) != value:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong


OPEN_CLOSE = {
    ("msgpack", "list"): (b"\x91", b""),
    ("msgpack", "dict"): (b"\x81\xa1a", b""),
    ("json", "list"): (b"[", b"]"),
    ("json", "dict"): (b'{"a":', b"}"),
}


@both
def test_depth_at_the_receiver(codec: str) -> None:
    for depth, good in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (900, False), (100_000, False)):
        for plain in ("list", "dict"):
            if codec == "json":
                data = {
                    "list": b"[" * depth + b"]" * depth,
                    "dict": b'{"a":' * depth + b"1" + b"}" * depth,
                }
            else:
                data = {
                    "list": b"\x91" * (depth - 1) + b"\x90",
                    "dict": b"\x81\xa1a" * depth + b"\x01",
                }
            if good:
                decode(data[plain], codec=codec)
            else:
                with pytest.raises(DecodeError, match="nested deeper than 128"):
                    decode(data[plain], codec=codec)


FOREIGN_MSGPACK = [
    b"\xc7\x00\x01",  # the head of a tuple at the top
    b"\x92\x01\xc7\x00\x01",  # and not in the first place
    b"\x81\xa1a\xc7\x00\x02",
    b"\x92\xc7\x00\x02\x01",  # an envelope of one field
    b"\x96\xc7\x00\x02\x01\x05\xc0\xc0\xc0",  # an envelope with a wrong id
    b"\xc8\x00\x00\x01",  # the head in a longer spelling
    b"\xd4\x01x",
    b"\xd4\x0ax",  # an extension without meaning
    b"\xd4\x50x",  # opaque, but nothing restores
    b"\xc7\x02\x04ab",  # no datetime
    b"\xd4\x03\xff",  # no text
    b"\xc8\x0f\xa0\x03" + b"f" * 4000,  # an integer beyond the limit
    b"\x81\x90\x01",  # a list as a key
    b"\x81\x92\xc7\x00\x01\x90\x01",  # a tuple with a list as a key
    b"\xa1\xff",
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a timestamp beyond the calendar
]


@pytest.mark.parametrize("data", FOREIGN_MSGPACK, ids=lambda data: data[:8].hex())
def test_foreign_msgpack(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_foreign_but_good() -> None:
    assert decode(b"\xd6\xff\x00\x00\x00\x01") == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert decode(b' {"a": "\\ud83d\\ude00"} ', codec="json") == {"a": "\U0001f600"}


def test_headers_take_no_memory_that_the_data_does_not_fill(peak_rss: Callable[[], int]) -> None:
    claims = (b"\xdd" + (1_000_000).to_bytes(4, "big")) * 1000
    data = claims + bytes(1_000_000 - len(claims))
    before = peak_rss()
    with pytest.raises(DecodeError):
        decode(data)
    assert peak_rss() - before < 20 << 20
