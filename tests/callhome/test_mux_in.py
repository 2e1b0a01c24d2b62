"""Memory for bodies in pieces, and the bounds of what may be on its way."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.callhome.mux_ends import raw_end
from tests.waiting import wait_until
from transport.callhome import mux_in
from transport.callhome.mux_in import Pieces
from transport.errors import RemoteProtocolError
from transport.wire.mux import BODY, pack_mux


@given(
    st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(1, 12), min_size=30, max_size=30)
)
def test_pieces_are_taken_in_order_however_they_are_cut(sizes: list[int], takes: list[int]) -> None:
    whole = bytes(range(sum(sizes)))
    places, at = [], 0
    for size in sizes:
        places.append(memoryview(whole)[at : at + size])
        at += size
    pieces, taken = Pieces(places), b""
    assert pieces.left == len(whole)
    for size in takes:
        size = min(size, pieces.left)
        views = pieces.take(size)
        assert sum(map(len, views)) == size
        taken += b"".join(views)
    while pieces.left:
        taken += b"".join(pieces.take(1))
    assert taken == whole


def test_pieces_may_be_of_any_type() -> None:
    words = memoryview(bytearray(32)).cast("I", (2, 4))
    pieces = Pieces([words, memoryview(b"x")])
    assert pieces.left == 33
    assert [len(view) for view in pieces.take(33)] == [32, 1]


async def test_only_so_many_bodies_may_be_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux_in, "MOST_EXPECTED", 3)
    with raw_end() as (side, sock):
        whole: list[bool] = []
        place = bytearray(5)
        for number in (1, 2, 3):
            side.connection.expect(number, [memoryview(place)], whole.append)
        with pytest.raises(RemoteProtocolError, match="3 bodies"):
            side.connection.expect(4, [memoryview(place)], whole.append)
        with pytest.raises(RemoteProtocolError, match="announced"):
            side.connection.expect(3, [memoryview(place)], whole.append)
        sock.sendall(pack_mux(BODY, 5, 2) + b"12345")
        await wait_until(lambda: whole == [True])
        assert place == b"12345"
        side.connection.expect(4, [memoryview(place)], whole.append)
    await asyncio.sleep(0)
    assert whole == [True, False, False, False]


async def test_the_end_of_a_body_may_begin_the_next() -> None:
    """``done`` is free to expect another, under the same number even."""
    with raw_end() as (side, sock):
        first, second = bytearray(4), bytearray(4)
        seen: list[str] = []

        def one(whole: bool) -> None:
            seen.append(f"one {whole}")
            side.connection.expect(1, [memoryview(second)], two)

        def two(whole: bool) -> None:
            seen.append(f"two {whole}")

        side.connection.expect(1, [memoryview(first)], one)
        chunk = pack_mux(BODY, 2, 1)
        sock.sendall(b"".join(chunk + part for part in (b"ab", b"cd", b"ef", b"gh")))
        await wait_until(lambda: len(seen) == 2)
        assert seen == ["one True", "two True"]
        assert bytes(first + second) == b"abcdefgh"
