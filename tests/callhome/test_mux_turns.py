"""Long batches between nodes: handled in turns, in order with all that comes behind them."""

from __future__ import annotations

import asyncio

from actors.messages import ItemBody, Items
from tests.callhome.mux_ends import B, announced, batch, items, raw_end
from tests.waiting import TICK, wait_until
from transport.errors import RemoteProtocolError
from transport.wire.message import BatchWriter
from transport.wire.mux import BATCH, BODY, pack_mux


async def test_a_long_batch_leaves_turns_to_others_and_keeps_the_order() -> None:
    with raw_end() as (side, sock):
        many = [items(1, number) for number in range(50_000)]
        first = batch(*many) + announced(3, 300_000) + pack_mux(BODY, 200_000, 3)
        data = first + bytes(200_000) + pack_mux(BODY, 100_000, 3) + b"x" * 100_000
        writing = asyncio.create_task(asyncio.to_thread(sock.sendall, data + batch(items(2))))
        loop, longest = asyncio.get_running_loop(), 0
        while len(side.messages) < 50_002 or not side.done:
            before = len(side.messages)
            await asyncio.sleep(0)
            longest = max(longest, len(side.messages) - before)
            assert side.errors == []
        await writing
        assert longest < 5_000
        assert side.messages[:50_000] == many
        assert [type(each) for each in side.messages[50_000:]] == [ItemBody, Items]
        assert bytes(side.bodies[3]) == bytes(200_000) + b"x" * 100_000
        assert side.connection.batches_in == 3
        side.connection.check(loop.time())
        sock.sendall(batch(items(4)))
        await wait_until(lambda: side.messages[-1] == items(4))
        await loop.shutdown_default_executor()


async def test_a_long_batch_that_is_read_while_a_body_is_under_way() -> None:
    with raw_end() as (side, sock):
        many = [items(1, number) for number in range(20_000)]
        sock.sendall(announced(3, 10) + pack_mux(BODY, 4, 3) + b"1234")
        await wait_until(lambda: len(side.messages) == 1)
        rest = batch(*many) + pack_mux(BODY, 6, 3) + b"567890" + batch(items(2))
        await asyncio.to_thread(sock.sendall, rest)
        await wait_until(lambda: len(side.messages) == 20_002)
        assert side.messages[1:-1] == many
        assert bytes(side.bodies[3]) == b"1234567890"
        assert side.done == [(3, True)]
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_long_batch_may_be_bad_in_its_middle_or_at_its_end() -> None:
    with raw_end() as (side, sock):
        unknown, nil = b"\x92\xcc\xfa\x01", b"\xc0"
        one = BatchWriter(B).pack([items(1)])
        packed = one + one[1:] * 5_000 + unknown + nil + BatchWriter(B).pack([items(2)])[1:]
        sock.sendall(pack_mux(BATCH, len(packed)) + packed)
        await wait_until(lambda: len(side.messages) == 5_002)
        assert side.connection.unreadable == 2
        cut = one + one[1:] * 5_000 + one[1:-1]
        sock.sendall(pack_mux(BATCH, len(cut)) + cut + batch(items(7)))
        await wait_until(lambda: side.errors != [])
        assert isinstance(side.errors[0], RemoteProtocolError)
        assert items(7) not in side.messages


async def test_closed_in_the_middle_of_a_long_batch_nothing_more_comes() -> None:
    with raw_end() as (side, sock):
        sock.sendall(batch(*[items(1, number) for number in range(10_000)]))
        await wait_until(lambda: side.messages != [])
        side.connection.close()
        came = len(side.messages)
        await asyncio.sleep(TICK)
        assert len(side.messages) == came < 10_000
        assert side.errors == []
