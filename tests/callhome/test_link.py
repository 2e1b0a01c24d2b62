"""Links over real sockets: what is written, what is read, what waits."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from tests.callhome.sockets import Heard, a_net, a_pair, read_exactly, two_links
from tests.waiting import wait_until
from transport.callhome.link import DRAINED, Link


async def test_what_is_written_in_a_tick_leaves_in_one_call() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        parts = [str(number).encode() for number in range(1000)]
        for part in parts:
            link.write(part, b"", b" ")
        assert link.backlog == sum(map(len, parts)) + 1000
        await asyncio.sleep(0)
        assert (net.writes, link.backlog) == (1, 0)
        expected = b"".join(part + b" " for part in parts)
        assert await read_exactly(peer, len(expected)) == expected


async def test_flush_does_not_wait_for_the_tick() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        link.write(b"now")
        link.flush()
        assert peer.recv(10) == b"now"
        await asyncio.sleep(0)
        assert net.writes == 1


async def test_large_parts_are_sent_from_where_they_are() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        large = bytearray(100_000)
        link.write(b"head", memoryview(large), b"tail")
        large[:5] = b"later"  # seen by the peer: nothing was copied
        data = await read_exactly(peer, 100_008)
        assert data == b"head" + bytes(large) + b"tail"


@pytest.mark.parametrize("sizes", ["small", "large", "mixed"])
async def test_parts_of_all_sizes_keep_their_order(sizes: str) -> None:
    draw = random.Random(7)
    most = {"small": 200, "large": 400_000, "mixed": 9000}[sizes]
    parts = [draw.randbytes(draw.randint(1, most)) for _ in range(200)]
    with a_net() as net:
        one, two = two_links(net)
        heard = Heard(two)
        for number, part in enumerate(parts):
            one.write(memoryview(part) if number % 2 else part)
        expected = b"".join(parts)
        assert await heard.wait_bytes(len(expected)) == expected
        assert one.backlog == 0
        assert (two.received, net.bytes_in) == (len(expected), len(expected))


async def test_a_view_of_other_items_is_sent_as_its_bytes() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        numbers = memoryview(b"\1\0\0\0\2\0\0\0").cast("i")
        link.write(numbers, memoryview(b"").cast("i"), bytearray(b"end"))
        assert await read_exactly(peer, 11) == b"\1\0\0\0\2\0\0\0end"


async def test_what_the_peer_does_not_read_waits_and_is_told_when_it_has_left() -> None:
    with a_net() as net:
        one, two = two_links(net)
        told: list[int] = []
        for _ in range(32):
            one.write(bytes(1 << 20))
        one.when_drained(lambda: told.append(one.backlog))
        await wait_until(lambda: 0 < one.backlog < 32 << 20)
        for _ in range(20):
            await asyncio.sleep(0)
        assert told == []
        heard = Heard(two)
        await heard.wait_bytes(32 << 20)
        assert len(told) == 1
        assert told[0] < DRAINED


async def test_drained_is_told_later_and_once_even_with_nothing_written() -> None:
    with a_net() as net, a_pair(net) as (link, _):
        told: list[str] = []
        link.when_drained(lambda: told.append("first"))
        assert told == []
        await asyncio.sleep(0)
        assert told == ["first"]

        def again() -> None:
            told.append("again")
            if told.count("again") < 3:
                link.when_drained(again)

        link.when_drained(again)
        await wait_until(lambda: told.count("again") == 3)
        link.write(b"x")
        await asyncio.sleep(0)
        assert told == ["first", "again", "again", "again"]


async def test_a_refill_in_drained_keeps_the_socket_busy() -> None:
    with a_net() as net:
        one, two = two_links(net)
        heard, left = Heard(two), [100]
        chunk = memoryview(bytes(256 * 1024))

        def refill() -> None:
            if left[0]:
                left[0] -= 1
                one.write(chunk)
                one.when_drained(refill)

        refill()
        await heard.wait_bytes(100 * len(chunk))
        assert left == [0]


async def test_bytes_are_read_straight_to_their_place() -> None:
    with a_net() as net:
        one, two = two_links(net)
        places = [bytearray(size) for size in (1, 300_000, 7, 1_000_000, 5000)]
        waiting, rest = list(places), bytearray()

        def received(view: memoryview) -> None:
            rest.extend(view)

        def aim() -> None:
            if waiting:
                two.read_into(memoryview(waiting.pop(0)), aim)

        aim()
        two.start(received, lambda error: None)
        data = random.Random(1).randbytes(sum(map(len, places)) + 9)
        one.write(data)
        await wait_until(lambda: len(rest) == 9)
        assert b"".join([*map(bytes, places), bytes(rest)]) == data


async def test_a_body_begun_in_the_shared_buffer_goes_on_in_its_place() -> None:
    with a_net() as net:
        one, two = two_links(net)
        bodies: list[bytes] = []

        def received(view: memoryview) -> None:
            # A length byte says how many KiB follow.
            while view:
                body = bytearray(view[0] * 1024)
                some = view[1 : 1 + len(body)]
                body[: len(some)] = some
                view = view[1 + len(some) :]
                if len(some) < len(body):
                    two.read_into(memoryview(body)[len(some) :], partial(done, body))
                else:
                    done(body)

        def done(body: bytearray) -> None:
            bodies.append(bytes(body))

        two.start(received, lambda error: None)
        draw = random.Random(3)
        sent = [draw.randbytes(draw.randint(1, 255) * 1024) for _ in range(100)]
        for body in sent:
            one.write(bytes([len(body) // 1024]), body)
        await wait_until(lambda: len(bodies) == 100)
        assert bodies == sent


async def test_nothing_refers_to_a_place_that_is_full() -> None:
    with a_net() as net:
        one, two = two_links(net)
        freed: list[bool] = []

        def place(size: int, then: int) -> None:
            memory = bytearray(size)

            def done() -> None:
                memory.append(1)  # BufferError while a view of it is alive
                freed.append(True)
                if then:
                    place(then, 0)

            two.read_into(memoryview(memory), done)

        place(300_000, 100)
        heard = Heard(two)
        one.write(bytes(300_000 + 100))
        await wait_until(lambda: len(freed) == 2 or heard.ends)
        assert (freed, heard.ends) == ([True, True], [])


async def test_an_empty_place_is_full_at_once() -> None:
    with a_net() as net, a_pair(net) as (link, _):
        done: list[int] = []
        link.read_into(memoryview(bytearray()), lambda: done.append(1))
        assert done == [1]


async def test_a_paused_link_reads_nothing_until_it_is_resumed() -> None:
    with a_net() as net:
        one, two = two_links(net)
        heard = Heard(two, start=False)

        def received(view: memoryview) -> None:
            heard.received(view)
            two.pause()

        two.start(received, heard.ends.append)
        one.write(bytes(1 << 20))
        await wait_until(lambda: heard.calls == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert heard.calls == 1
        two.resume()
        await wait_until(lambda: heard.calls == 2)


async def test_a_flood_leaves_other_connections_their_turn() -> None:
    with a_net() as net:
        flood, sink = two_links(net)
        chunk = memoryview(bytes(1 << 20))
        Heard(sink)

        def pour() -> None:
            flood.write(chunk)
            flood.when_drained(pour)

        pour()
        ask, answer = two_links(net)
        answer.start(lambda view: answer.write(bytes(view)), lambda error: None)
        heard = Heard(ask)
        for number in range(1, 51):
            ask.write(b"ping")
            await heard.wait_bytes(4 * number)
        assert sink.received > 0


async def test_an_answer_leaves_with_the_burst_that_asked_for_it() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        link.start(lambda view: link.write(b"answer"), lambda error: None)
        peer.send(b"question")
        await wait_until(lambda: net.writes == 1)
        assert await read_exactly(peer, 6) == b"answer"


async def test_a_link_can_be_handed_to_another_reader() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        first, second = Heard(link, start=False), Heard(link, start=False)

        def received(view: memoryview) -> None:
            first.received(view)
            link.stop_reading()

        link.start(received, first.ends.append)
        peer.send(b"one")
        await first.wait_bytes(3)
        peer.send(b"two")
        for _ in range(5):
            await asyncio.sleep(0)
        assert bytes(second.data) == b""
        link.start(second.received, second.ends.append)
        assert await second.wait_bytes(3) == b"two"
        assert bytes(first.data) == b"one"


async def test_names_of_both_ends() -> None:
    with a_net() as net:
        one, two = two_links(net)
        assert (one.peer, one.local) == (two.local, two.peer)
        assert one.peer.startswith("127.0.0.1:")
        assert isinstance(one, Link)
