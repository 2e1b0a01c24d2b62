"""The one connection between two nodes: order, bodies between messages, and every way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from actors.messages import Credit, End, ItemBody, Items, Kill
from tests.callhome.mux_ends import A, B, Side, announced, batch, ends, items, raw_end, sockets
from tests.waiting import LONG, TICK, wait_until
from transport.callhome.mux_out import MOST_BODIES
from transport.callhome.net import Net
from transport.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError
from transport.wire.message import BatchWriter
from transport.wire.mux import ABORT, BATCH, BODY, CHUNK, PING, PONG, pack_mux

MIB = 1 << 20


async def test_what_its_owner_does_not_come_to_flush_leaves_with_the_next_check() -> None:
    with ends() as (a, b):
        asked: list[object] = []
        a.connection._plan = asked.append
        a.connection.send(items(1))
        a.connection.send(items(2))
        assert asked == [a.connection]
        assert a.connection.check(time.monotonic())
        await wait_until(lambda: len(b.messages) == 2)
        a.connection.send(items(3))
        assert len(asked) == 2


async def test_messages_of_many_streams_leave_in_one_write() -> None:
    with ends() as (a, b):
        net = a.connection.link.net
        await wait_until(lambda: a.connection.link.backlog == 0)
        writes = net.writes
        sent = [items(stream) for stream in range(500)]
        for message in sent:
            a.connection.send(message)
        await wait_until(lambda: len(b.messages) == 500)
        assert b.messages == sent
        assert net.writes == writes + 1
        assert b.connection.batches_in == 1
        assert b.connection.peer_incarnation == A


async def test_messages_keep_their_order_over_ticks_and_both_ways() -> None:
    with ends() as (a, b):
        for number in range(50):
            a.connection.send(items(1, number))
            b.connection.send(items(2, number))
            if number % 7 == 0:
                a.connection.flush()
            await asyncio.sleep(0)
        await wait_until(lambda: len(a.messages) == len(b.messages) == 50)
        assert b.messages == [items(1, number) for number in range(50)]
        assert a.messages == [items(2, number) for number in range(50)]


async def test_bodies_come_whole_with_messages_around_them() -> None:
    with ends() as (a, b):
        data = [bytes([number]) * size for number, size in enumerate((1, 200_000, 3 * MIB, 9))]
        for number, each in enumerate(data):
            a.body(number, each, pieces=3)
            a.connection.send(items(number, 1))
        b.body(7, b"back" * 100_000)
        await wait_until(lambda: len(b.done) == 4 and len(a.done) == 1)
        assert all(whole for _, whole in b.done)
        assert [bytes(b.bodies[number]) for number in sorted(b.bodies)] == data
        assert bytes(*a.bodies.values()) == b"back" * 100_000
        # The announcement comes before what was said after it.
        assert [type(message) for message in b.messages] == [ItemBody, Items] * 4
        await wait_until(lambda: len(a.left) == 4 and len(b.left) == 1)


async def test_an_empty_body_needs_no_chunk() -> None:
    with ends() as (a, b):
        number = a.body(1, b"")
        assert a.left == []
        await wait_until(lambda: b.done == [(number, True)] and a.left == [number])


async def test_control_passes_a_large_body() -> None:
    with ends() as (a, b):
        a.body(1, bytes(64 * MIB))
        await wait_until(lambda: b.connection.link.received > 2 * MIB)
        a.connection.send(Kill(A, 9, "no more"))
        a.connection.send(items(2))
        await wait_until(lambda: len(b.messages) == 3)
        assert b.connection.link.received < 32 * MIB
        assert b.messages[1:] == [Kill(A, 9, "no more"), items(2)]
        assert b.done == []
        await wait_until(lambda: b.done != [], 20)
        assert b.done[0][1]


async def test_a_small_body_passes_a_large_one() -> None:
    with ends() as (a, b):
        large = a.body(1, bytes(32 * MIB))
        small = a.body(2, bytes(300_000))
        await wait_until(lambda: len(b.done) == 2, 20)
        assert b.done == [(small, True), (large, True)]


async def test_a_body_that_is_given_up_ends_alone() -> None:
    with ends() as (a, b):
        first, second = a.body(1, bytes(32 * MIB)), a.body(2, b"2" * (4 * MIB))
        third = a.body(3, bytes(MIB))
        a.connection.abort_body(third)  # before anything of it has left
        await wait_until(lambda: b.connection.link.received > 2 * MIB)
        a.connection.abort_body(first)
        a.connection.abort_body(first)
        a.connection.abort_body(12_345)
        await wait_until(lambda: len(b.done) == 3)
        assert sorted(b.done) == [(first, False), (second, True), (third, False)]
        assert bytes(b.bodies[second]) == b"2" * (4 * MIB)
        await wait_until(lambda: a.left == [second])
        assert a.connection.backlog == 0
        assert a.connection.statistics()["bodies_out"] == 0
        assert b.connection.statistics()["bodies_in"] == 0


async def test_a_body_that_nobody_wants_any_more_is_thrown_away() -> None:
    with ends() as (a, b):
        a.body(1, b"1" * (64 * MIB))
        await wait_until(lambda: b.connection.link.received > 2 * MIB)
        b.connection.drop_body(next(iter(b.bodies)))
        b.connection.drop_body(99)
        kept = a.body(2, b"2" * MIB)
        await wait_until(lambda: len(a.left) == 2)
        assert b.done == [(kept, True)]
        assert bytes(b.bodies[kept]) == b"2" * MIB
        assert b.connection.statistics()["dropped_bytes"] > MIB


async def test_a_body_that_nobody_expects_is_thrown_away() -> None:
    with ends() as (a, b):
        b.wanted = False
        a.body(1, bytes(2 * MIB))
        await wait_until(lambda: b.connection.statistics()["dropped_bytes"] == 2 * MIB)
        b.wanted = True
        number = a.body(2, b"2" * 1000)
        await wait_until(lambda: b.done == [(number, True)])
        assert b.errors == []


async def test_thousands_of_bodies_are_bounded_and_control_passes() -> None:
    with ends() as (a, b):
        data = bytes(5000)
        for stream in range(3 * MOST_BODIES):
            a.body(stream, data, pieces=1)
        a.connection.send(items(1, 1))
        a.connection.send(Credit(1, 2, 3))
        assert a.connection.backlog > 3 * MOST_BODIES * 4900  # the first has left
        await wait_until(lambda: len(b.done) == 3 * MOST_BODIES, 20)
        assert b.most_open <= MOST_BODIES
        assert b.messages.index(Credit(1, 2, 3)) < 100
        assert b.messages[-1] == items(1, 1)
        await wait_until(lambda: len(a.left) == 3 * MOST_BODIES)


async def test_streams_take_turns_and_bodies_of_one_stream_leave_in_order() -> None:
    """Its reader can use the first while the second comes, and its credit with it."""
    with ends() as (a, b):
        first, second = a.body(1, bytes(16 * MIB)), a.body(1, bytes(16 * MIB))
        other = a.body(2, bytes(8 * MIB))
        await wait_until(lambda: len(b.done) == 3)
        assert b.done == [(other, True), (first, True), (second, True)]


async def test_body_numbers_in_use_are_refused() -> None:
    with ends() as (a, _):
        number = a.body(1, bytes(8 * MIB))
        for wrong in (number, 0, 1 << 24):
            with pytest.raises(LocalProtocolError, match="body"):
                a.connection.send_body(items(1), wrong, [memoryview(b"x")], lambda: None)
        assert a.connection.new_body() not in (0, number)


async def test_close_sends_what_was_said_before_and_breaks_bodies_off() -> None:
    with ends() as (a, b):
        a.body(1, bytes(64 * MIB))
        await wait_until(lambda: b.connection.link.received > MIB)
        a.connection.send(End(5, 0, None))
        a.connection.close("enough")
        a.connection.close("enough")
        assert a.left
        assert a.connection.gone
        assert not a.connection.check(1.0)
        await wait_until(lambda: b.errors != [])
        assert b.messages[-1] == End(5, 0, None)
        assert [whole for _, whole in b.done] == [False]
        assert a.errors == []
        assert type(b.errors[0]) is ConnectionLost


async def test_what_is_sent_after_the_end_goes_nowhere() -> None:
    with ends() as (a, b):
        b.connection.close()
        await wait_until(lambda: a.errors != [])
        number = a.body(1, b"x" * 100)
        a.connection.send(items(1))
        a.connection.expect(5, [memoryview(bytearray(5))], lambda whole: a.done.append((5, whole)))
        await wait_until(lambda: a.left == [number] and a.done == [(5, False)])
        assert len(a.errors) == 1


async def test_a_killed_peer_is_told_once_with_its_bodies() -> None:
    net = Net()
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-m", "tests.callhome.mux_peer", str(server.getsockname()[1])]
        child = await asyncio.to_thread(subprocess.Popen, command)
        try:
            sock, _ = await asyncio.to_thread(server.accept)
            side = Side(net, sock, A)
            await wait_until(lambda: side.connection.link.received > MIB, LONG)
            child.send_signal(signal.SIGKILL)
            await wait_until(lambda: side.errors != [])
        finally:
            child.kill()
            await asyncio.to_thread(child.wait)
    assert isinstance(side.errors[0], ConnectionLost)
    assert [whole for _, whole in side.done] == [False]
    await asyncio.sleep(TICK)
    assert len(side.errors) == 1
    net.close()


async def test_a_silent_peer_is_dead_after_four_seconds() -> None:
    with raw_end() as (side, _):
        now = start = asyncio.get_running_loop().time()
        side.bodies[7] = bytearray(10)
        side.connection.expect(
            7, [memoryview(side.bodies[7])], lambda whole: side.done.append((7, whole))
        )
        while now < start + 3.9:
            assert side.connection.check(now)
            now += 0.05
        assert not side.connection.check(start + 4.01)
        assert side.done == [(7, False)]
        assert "not a byte" in str(side.errors[0])
        assert not side.connection.check(start + 5)
        assert len(side.errors) == 1


async def test_own_sleep_is_no_silence_of_the_peer() -> None:
    with raw_end() as (side, _):
        start = asyncio.get_running_loop().time()
        assert side.connection.check(start)
        assert side.connection.check(start + 100)
        assert side.connection.check(start + 102.5)
        for second in range(103, 106):
            side.connection.check(start + second)
        assert side.errors != []


async def test_pings_keep_both_ends_alive() -> None:
    with ends() as (a, b):
        start = asyncio.get_running_loop().time()
        for second in range(1, 12):
            came = a.connection.link.received
            assert a.connection.check(start + second)  # only one of them asks
            await wait_until(lambda came=came: a.connection.link.received > came)
        assert a.errors == b.errors == []


async def test_a_ping_is_answered_with_its_own_bytes() -> None:
    with raw_end() as (_, sock):
        sock.sendall(pack_mux(PING, 8) + b"12345678")
        answer = await asyncio.to_thread(sock.recv, 100)
        assert answer == pack_mux(PONG, 8) + b"12345678"


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown kind": b"\0\0\0\1\x09\0\0\0x",
    "endless batch": pack_mux(BATCH, 0x7FFF_FFFF),
    "long chunk": pack_mux(BODY, CHUNK + 1, 1),
    "empty chunk": pack_mux(BODY, 0, 1),
    "abort with bytes": pack_mux(ABORT, 1, 1) + b"x",
    "body without number": pack_mux(BODY, 1, 0) + b"x",
    "no batch": pack_mux(BATCH, 9) + b"not a pac",
    "cut batch": pack_mux(BATCH, len(batch(items(1))) - 9) + batch(items(1))[8:-1],
    "other sender": batch(items(9), sender=0xC),
    "chunk over its body": announced(3, 10) + pack_mux(BODY, 11, 3) + b"x" * 11,
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("piecemeal", [False, True])
async def test_garbage_ends_the_connection_after_what_was_good(
    name: str, piecemeal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with raw_end() as (side, sock):
        data = batch(items(1)) + GARBAGE[name] + bytes(100)
        if piecemeal:
            with contextlib.suppress(ConnectionError):  # it is cut before the last byte
                for at in range(len(data)):
                    sock.send(data[at : at + 1])
                    await asyncio.sleep(0)
        else:
            sock.sendall(data)
        await wait_until(lambda: side.errors != [])
        assert isinstance(side.errors[0], RemoteProtocolError)
        assert side.messages[0] == items(1)
        assert side.connection.link.net.counters["link.garbage"] == 1
        assert caplog.text.count("is cut") == 1
        assert len(side.errors) == 1


async def test_a_bad_message_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    with raw_end() as (side, sock):
        unknown = b"\x92\xcc\xfa\x01"  # [250, 1]
        packed = BatchWriter(B).pack([items(1)]) + unknown + BatchWriter(B).pack([items(2)])[1:]
        sock.sendall(pack_mux(BATCH, len(packed)) + packed)
        sock.sendall(announced(3, 10) + announced(3, 10) + pack_mux(BODY, 10, 3) + b"x" * 10)
        await wait_until(lambda: side.done == [(3, True)])
        assert side.messages[:2] == [items(1), items(2)]
        assert side.connection.unreadable == 2
        assert side.errors == []
        assert "unknown message tag" in caplog.text


async def test_faults_of_the_owner_are_not_the_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ends() as (a, b):
        b.failing = True
        a.connection.send(items(1))
        a.body(2, b"x" * 1000)
        a.connection.send(items(3))
        await wait_until(lambda: len(b.messages) == 3 and len(b.done) == 1)
        assert b.errors == a.errors == []
        assert b.connection.link.net.counters["mux.failed"] == 4
        assert "the owner's own" in caplog.text


async def recorded() -> bytes:
    """What an end has sent: messages, two bodies with messages between, one given up, a ping."""
    one, two = sockets()
    net = Net()
    side = Side(net, one, B)
    side.connection.send(items(1))
    side.body(1, b"1" * 90)
    gone = side.body(2, b"2" * 50)
    side.connection.abort_body(gone)
    side.connection.flush()
    side.connection.check(asyncio.get_running_loop().time() + 2)
    side.connection.send(Credit(1, 2, 3))
    side.body(3, b"3" * 40)
    side.connection.send(items(1, 1))
    await wait_until(lambda: side.connection.backlog == side.connection.link.backlog == 0)
    side.connection.close()
    data = b""
    two.settimeout(LONG)
    while piece := await asyncio.to_thread(two.recv, 65536):
        data += piece
    two.close()
    await net.wait_closed()
    return data


async def test_an_exchange_cut_at_every_byte_ends_with_a_typed_error() -> None:
    data = await recorded()
    net = Net()
    for cut in range(len(data) + 1):
        one, two = sockets()
        side = Side(net, one, A, data[: cut % 20] if cut % 3 == 0 else b"")
        two.sendall(data[cut % 20 : cut] if cut % 3 == 0 else data[:cut])
        two.close()
        await wait_until(lambda side=side: side.errors != [])
        assert type(side.errors[0]) is ConnectionLost
        announcements = [each for each in side.messages if isinstance(each, ItemBody)]
        assert len(side.done) == len(announcements)
        if cut == len(data):
            assert sorted(whole for _, whole in side.done) == [False, True, True]
            assert side.messages[-1] == items(1, 1)
            assert bytes(side.bodies[announcements[0].body]) == b"1" * 90
    net.close()


async def test_an_exchange_byte_by_byte_is_the_same() -> None:
    data = await recorded()
    with raw_end() as (side, sock):
        for at in range(len(data)):
            sock.send(data[at : at + 1])
            await asyncio.sleep(0)
        await wait_until(lambda: len(side.done) == 3 and items(1, 1) in side.messages)
        assert sorted(whole for _, whole in side.done) == [False, True, True]
        assert side.errors == []
