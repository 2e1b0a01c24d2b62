"""One direction of a relayed stream: in order, whatever is large, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.errors import CallHomeError, ConnectionLost, RemoteProtocolError
from actors.kernel.lanes import Lane
from actors.messages import End, Item, ItemBody, Items
from tests.kernel.relays import STREAM, Feed, Reader, actors, at_rest, item, settle
from tests.waiting import wait_until

MIB = 1 << 20
ARRAY = np.arange(MIB, dtype="u1")


def _large(relay: Reader, seq: int, body: int) -> tuple[ItemBody, list[bytes]]:
    """An array as another node would send it."""
    encoded = relay.runtime.encode(ARRAY, "msgpack", True, "item")
    (handle,) = encoded.handles
    relay.runtime.memory.unexport(handle)
    table = [["|u1", [MIB], MIB]]
    message = ItemBody(STREAM, seq, encoded.data, table, len(encoded.data) + MIB, body)
    return message, [ARRAY.tobytes()]


class Failures(list[CallHomeError]):
    """Collects what a lane reports."""

    def __call__(self, error: CallHomeError) -> None:
        self.append(error)


async def test_small_ones_wait_behind_a_large_one_and_arrive_in_order(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        lane.send(Items(STREAM, 0, [b"before"]), 6)
        for seq, body in ((1, 1), (3, 2)):
            lane.body(feed, _large(relay, seq, body)[0], item(seq), failed)
            lane.send(Items(STREAM, seq + 1, [b"behind"]), 6)
        assert await home.take() == Items(STREAM, 0, [b"before"])
        parts = [ARRAY.tobytes()]
        feed.bring(2, parts)  # the second is there first
        await settle()
        feed.bring(1, parts)
        for seq in (1, 3):
            found = await home.item()
            assert found.seq == seq
            value = home.runtime.decode(found.payload, found.handles, "msgpack")
            assert (value == ARRAY).all()
            assert await home.take() == Items(STREAM, seq + 1, [b"behind"])
        lane.send(Items(STREAM, 5, [b"last"]), 4)
        assert await home.take() == Items(STREAM, 5, [b"last"])
        del value, found
        lane.close()
        assert failed == []
        await at_rest(relay, home)


async def test_the_second_large_one_is_lent_without_waiting_for_an_answer(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        sent: list[int] = []
        for seq in range(2):
            message, parts = _large(relay, seq, seq + 1)

            def make(encoded: Any, seq: int = seq) -> Item:
                sent.append(seq)
                return Item(STREAM, seq, encoded.data, encoded.handles, encoded.size)

            lane.body(feed, message, make, failed)
            feed.bring(seq + 1, parts)
            if seq == 0:
                assert sent == []  # the segment has been announced, and must be attached first
                assert (await home.value() == ARRAY).all()
            else:
                assert sent == [0, 1]
                assert (await home.value() == ARRAY).all()
        await at_rest(relay)


async def test_a_peer_that_reads_no_shared_memory_gets_bytes(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        relay.runtime.memory.needs(home.runtime.address.incarnation, [])
        relay.runtime.memory.mark(home.runtime.address.incarnation, 1, ok=False)
        message, parts = _large(relay, 0, 1)
        lane.body(feed, message, item(0), failed)
        feed.bring(1, parts)
        found = await home.item()
        assert found.handles[0][2] == parts[0]
        assert (home.runtime.decode(found.payload, found.handles, "msgpack") == ARRAY).all()
        await at_rest(relay)


async def test_a_peer_that_does_not_answer_gets_bytes_after_a_second(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        home.runtime._table = {
            kind: handle
            for kind, handle in home.runtime._table.items()
            if kind.__name__ != "Announce"
        }
        home.runtime.port._intake._deliver = lambda sender, m: (
            home.runtime._table[type(m)](sender, m) if type(m) in home.runtime._table else None
        )
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(2):
            message, parts = _large(relay, seq, seq + 1)
            lane.body(feed, message, item(seq), failed)
            feed.bring(seq + 1, parts)
        await wait_until(lambda: len(home.messages) == 2)
        for seq in range(2):
            found = await home.item()
            assert (found.seq, found.handles[0][2]) == (seq, parts[0])
        await at_rest(relay)


async def test_a_value_without_a_body_of_its_own_goes_at_once(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        message = ItemBody(STREAM, 0, b"abc", [["|u1", [2], b"xy"]], 5, 0)
        lane.body(feed, message, item(0), failed)
        assert await home.take() == Item(STREAM, 0, b"abc", [["|u1", [2], b"xy"]], 5)
        assert feed.wanted == {}


async def test_closed_in_mid_body_it_leaves_nothing(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(3):
            lane.body(feed, _large(relay, seq, seq + 1)[0], item(seq), failed)
        lane.send(Items(STREAM, 3, [b"behind"]), 6)
        feed.begin(1, b"half")
        feed.bring(2, [ARRAY.tobytes()])
        await wait_until(lambda: relay.runtime.memory.statistics().lent == 1)
        lane.close()
        assert feed.dropped == [1, 3]
        lane.send(Items(STREAM, 4, [b"late"]), 4)
        lane.body(feed, _large(relay, 5, 9)[0], item(5), failed)
        lane.close()
        assert feed.wanted == {}
        await at_rest(relay)
        assert failed == []
        assert home.messages == []


async def test_closed_while_the_peer_is_asked_it_lends_nothing(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        message, parts = _large(relay, 0, 1)
        lane.body(feed, message, item(0), failed)
        feed.bring(1, parts)
        lane.close()
        assert relay.runtime.memory.statistics().slots == 1
        await at_rest(relay)
        assert home.messages == []


async def test_a_body_that_breaks_off_ends_the_lane_and_nothing_passes_the_hole(
    tmp_path: Path,
) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(2):
            lane.body(feed, _large(relay, seq, seq + 1)[0], item(seq), failed)
        lane.send(Items(STREAM, 2, [b"behind"]), 6)
        feed.begin(1, b"half")
        feed.abort(1)
        assert [type(error) for error in failed] == [ConnectionLost]
        assert feed.dropped == [2]
        lane.send(Items(STREAM, 3, [b"late"]), 4)
        await at_rest(relay)
        assert home.messages == []


async def test_a_message_that_lies_ends_the_lane(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        lane.body(feed, ItemBody(STREAM, 0, 10, [], 11, 1), item(0), failed)
        assert [type(error) for error in failed] == [RemoteProtocolError]
        assert feed.wanted == {}
        lane.send(Items(STREAM, 1, [b"late"]), 4)
        await settle()
        assert home.messages == []


async def test_what_waits_behind_a_body_is_bounded_by_the_stream_s_own_window(
    tmp_path: Path,
) -> None:
    async with actors(str(tmp_path), "relay", "home", outbox_messages=4) as (relay, home):
        lane = Lane(relay.runtime, home.runtime.address, STREAM, 1000, 4 * MIB)
        feed, failed = Feed(), Failures()
        lane.body(feed, _large(relay, 0, 1)[0], item(0), failed)
        for seq in range(1, 1016):  # far more than the outbox of anybody takes
            lane.send(Items(STREAM, seq, [b"x"]), 1)
        with pytest.raises(RemoteProtocolError, match=r"1016 messages and .* no credit"):
            lane.send(Items(STREAM, 1016, [b"x"]), 1)
        lane.close()
        await at_rest(relay)


async def test_bytes_behind_a_body_count_and_so_does_what_it_announces(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home", window_bytes=3 * MIB) as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(4):
            lane.body(feed, _large(relay, seq, seq + 1)[0], item(seq), failed)
        with pytest.raises(RemoteProtocolError, match="no credit"):
            lane.send(Items(STREAM, 4, [b"x"]), 1)
        lane.body(feed, _large(relay, 5, 9)[0], item(5), failed)
        assert [type(error) for error in failed] == [RemoteProtocolError]
        assert sorted(feed.dropped) == [1, 2, 3, 4]
        assert feed.wanted == {}
        await at_rest(relay)


async def test_one_value_larger_than_the_window_passes_alone(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home", window_bytes=MIB // 2) as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(2):
            lane.body(feed, _large(relay, seq, seq + 1)[0], item(seq), failed)
            feed.bring(seq + 1, [ARRAY.tobytes()])
            assert (await home.value() == ARRAY).all()
        assert failed == []
        await at_rest(relay)


async def test_an_end_may_wait_behind_one_value_larger_than_the_window(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home", window_bytes=MIB // 2) as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        lane.body(feed, _large(relay, 0, 1)[0], item(0), failed)
        lane.send(End(STREAM, 1, None))  # it needs no credit
        feed.bring(1, [ARRAY.tobytes()])
        assert (await home.value() == ARRAY).all()
        assert failed == []
        await at_rest(relay)


async def test_a_body_number_in_use_costs_who_announces_it_and_not_whose_it_is(
    tmp_path: Path,
) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        feed, failed, other = OneEach(), Failures(), Failures()
        lane = Lane(relay.runtime, home.runtime.address, STREAM)
        lane.body(feed, _large(relay, 0, 7)[0], item(0), failed)
        second = Lane(relay.runtime, home.runtime.address, STREAM + 1)
        second.body(feed, _large(relay, 0, 7)[0], item(0), other)
        assert [type(error) for error in other] == [RemoteProtocolError]
        second.close()
        assert feed.dropped == []
        feed.bring(7, [ARRAY.tobytes()])
        assert (await home.value() == ARRAY).all()
        assert failed == []
        await at_rest(relay)


class OneEach(Feed):
    """As the connection, it takes a number only once."""

    def expect(
        self, number: int, targets: Sequence[memoryview], done: Callable[[bool], None]
    ) -> None:
        if number in self.wanted:
            raise RemoteProtocolError(f"body {number} was announced while it is on its way")
        super().expect(number, targets, done)


async def test_a_reader_that_dies_gives_back_what_it_was_lent(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", "home") as (relay, home):
        lane, feed, failed = Lane(relay.runtime, home.runtime.address, STREAM), Feed(), Failures()
        for seq in range(2):
            message, parts = _large(relay, seq, seq + 1)
            lane.body(feed, message, item(seq), failed)
            feed.bring(seq + 1, parts)
        await wait_until(lambda: len(home.messages) == 2)
        assert relay.runtime.memory.statistics().lent == 2
        home.runtime.close()
        await at_rest(relay)
        lane.close()
