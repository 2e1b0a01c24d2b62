"""The client of requests: pool, order of replies, deadlines, and what may have been sent."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise

import pytest

from tests.callhome.bench import Answer, bench, read_requests, stranger
from tests.callhome.sockets import reset
from tests.waiting import TICK, wait_until
from transport.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    OutboxFull,
    RemoteProtocolError,
    TooLarge,
)
from transport.wire.request import pack_reply


async def test_a_request_arrives_as_it_was_sent_and_the_answer_comes_back() -> None:
    async with bench() as b:
        before = time.time_ns()
        b.ask("one", payload=b"the payload")
        assert b.answers["one"] == []
        await wait_until(lambda: b.replies)
        frame = b.frames[0]
        assert frame.path == frame.headers["x-endpoint-path"] == "1a/n/c/e"
        assert frame.headers["request-id"] == "one"
        assert before <= int(frame.headers["x-frontend-send-ts-ns"]) <= time.time_ns()
        assert frame.payload == b"the payload"
        b.replies[0](b"words of any kind")
        assert await b.answer("one") == b"words of any kind"
        assert not b.client.check(b.net.loop.time())


async def test_many_requests_share_a_connection_and_each_gets_its_own_answer() -> None:
    async with bench() as b:
        names = [f"r{number}" for number in range(500)]
        for name in names:
            b.ask(name)
        await wait_until(lambda: len(b.replies) == 500)
        assert b.seen() == names
        assert b.count("connections") == 1
        for name, reply in reversed(list(zip(names, b.replies, strict=True))):
            reply(name.encode())
        for name in names:
            assert await b.answer(name) == name.encode()


async def test_connections_grow_one_by_one_and_only_when_all_are_full() -> None:
    async with bench(depth=2, pool=3) as b:
        for number in range(10):
            b.ask(f"r{number}")
        await wait_until(lambda: len(b.replies) == 6)
        assert (b.count("connections"), b.count("waiting")) == (3, 4)
        assert b.net.counters["dialled"] == 3
        b.replies[0](b"")
        await wait_until(lambda: len(b.replies) == 7)
        b.echo = True
        for reply in b.replies[1:]:
            reply(b"")
        await wait_until(lambda: len(b.replies) == 10)
        for number in range(10):
            assert isinstance(await b.answer(f"r{number}"), bytes)
        assert b.count("connections") == 3


async def test_requests_go_round_the_connections() -> None:
    async with bench(depth=1, pool=2) as b:
        b.ask("a")
        b.ask("b")
        await wait_until(lambda: len(b.replies) == 2)
        for reply in b.replies:
            reply(b"")
        b.echo = True
        for number in range(6):
            b.ask(f"r{number}")
            await b.answer(f"r{number}")
        callers = [reply._caller for reply in b.replies]
        assert len(set(callers)) == 2
        assert all(one is not two for one, two in pairwise(callers[2:]))


async def test_only_so_many_connections_are_made_at_once() -> None:
    async with bench(connects=1) as b, stranger() as (address, take):
        b.ask("a")
        b.ask("b", address)
        await wait_until(lambda: b.replies)
        sock = await take()
        sock.send(pack_reply(b"b"))
        assert await b.answer("b") == b"b"
        b.replies[0](b"")


async def test_a_timed_out_request_keeps_its_place() -> None:
    async with bench() as b:
        before = b.net.loop.time()
        b.ask("early")
        await wait_until(lambda: b.replies)
        assert b.client.check(before + 4.9)
        assert b.answers["early"] == []
        now = b.net.loop.time()
        assert b.client.check(now + 5.1)
        error = await b.error("early", "maybe")
        assert isinstance(error, DeadlineExceeded)
        assert "5 s" in str(error)
        # The connection answers late: until it does, others are used.
        b.ask("next")
        await wait_until(lambda: len(b.replies) == 2)
        assert b.count("connections") == 2
        b.replies[1](b"next")
        b.replies[0](b"late")
        assert await b.answer("next") == b"next"
        await wait_until(lambda: b.count("unanswered") == 0)
        assert not b.client.check(b.net.loop.time() + 6)


async def test_a_late_reply_is_never_given_to_another() -> None:
    async with bench(pool=1) as b:
        b.ask("early")
        b.ask("second")
        await wait_until(lambda: len(b.replies) == 2)
        line = next(iter(b.client._hosts.values())).lines[0]
        line.slots[1].deadline += 60
        b.client.check(b.net.loop.time() + 5.1)
        await b.error("early", "maybe")
        b.replies[1](b"second")
        b.replies[0](b"late")
        assert await b.answer("second") == b"second"


async def test_a_connection_that_answers_nothing_is_given_up() -> None:
    async with bench(pool=1) as b:
        before = b.net.loop.time()
        b.ask("early")
        await wait_until(lambda: b.replies)
        now = b.net.loop.time()
        b.client.check(now + 5.1)
        assert b.client.check(before + 14.9)
        assert b.count("connections") == 1
        b.client.check(now + 15.2)
        assert b.count("connections") == 0
        await b.error("early", "maybe")
        b.ask("again")
        await wait_until(lambda: len(b.replies) == 2)
        b.replies[1](b"")
        assert await b.answer("again") == b""


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_lost_connection_fails_all_that_wait_on_it(how: str) -> None:
    async with bench() as b, stranger() as (address, take):
        for number in range(3):
            b.ask(f"r{number}", address)
        sock = await take()
        await read_requests(sock, 3)
        sock.send(pack_reply(b"done"))
        assert await b.answer("r0") == b"done"
        if how == "end":
            sock.close()
        else:
            reset(sock)
        for name in ("r1", "r2"):
            error = await b.error(name, "maybe")
            assert type(error) is ConnectionLost
            assert address in str(error)
        assert b.count("connections") == 0


async def test_what_was_not_sent_goes_over_the_next_connection() -> None:
    async with bench(depth=1, pool=1) as b, stranger() as (address, take):
        b.ask("sent", address)
        b.ask("waits", address)
        first = await take()
        await read_requests(first, 1)
        first.close()
        await b.error("sent", "maybe")
        second = await take()
        frames = await read_requests(second, 1)
        assert frames[0].headers["request-id"] == "waits"
        second.send(pack_reply(b""))
        assert await b.answer("waits") == b""


async def test_b137_a_lost_acknowledgement_runs_nothing_twice() -> None:
    async with bench() as b, stranger() as (address, take):
        runs: list[str] = []
        for number in range(100):
            b.ask(f"r{number}", address)
            sock = await take()
            runs += [frame.headers["request-id"] for frame in await read_requests(sock, 1)]
            sock.close()
            assert type(await b.error(f"r{number}", "maybe")) is ConnectionLost
        b.client.check(b.net.loop.time())
        await asyncio.sleep(TICK)
        assert runs == [f"r{number}" for number in range(100)]


async def test_a_refused_connection_is_told_at_once() -> None:
    async with bench() as b:
        with socket.socket() as nobody:  # who holds the port, and does not listen
            nobody.bind(("127.0.0.1", 0))
            address = "{}:{}".format(*nobody.getsockname())
            b.ask("a", address)
            b.ask("b", address)
            for name in ("a", "b"):
                assert type(await b.error(name, "no")) is ConnectionLost
        assert b.answers["a"][0] is not b.answers["b"][0]
        b.ask("wrong", "nowhere")
        await b.error("wrong", "no")


async def test_a_connection_that_is_not_made_in_time_is_told() -> None:
    async with bench(connects=0) as b:
        before = b.net.loop.time()
        b.ask("a")
        await asyncio.sleep(0)
        assert b.client.check(before + 4.9)
        assert not b.client.check(b.net.loop.time() + 5.1)
        error = await b.error("a", "no")
        assert type(error) is DeadlineExceeded
        assert b.server.address in str(error)


async def test_only_so_many_requests_wait_for_a_connection() -> None:
    async with bench(connects=0) as b:
        for number in range(4096):
            b.ask(f"r{number}")
        b.ask("one more")
        assert b.answers["one more"] == []
        assert type(await b.error("one more", "no")) is OutboxFull
    assert type(b.answers["r0"][0]) is ConnectionLost


async def test_conformance_32_a_request_over_the_limit_disturbs_nobody() -> None:
    async with bench() as b:
        b.ask("before")
        await wait_until(lambda: b.replies)
        big = bytes(33 << 20)
        with pytest.raises(TooLarge, match=r"34603\d{3} bytes .* 33554432"):
            b.client.send(b.server.address, "p", {}, [big], lambda _: None)
        with pytest.raises(LocalProtocolError):
            b.client.send(b.server.address, "p" * 2000, {}, [b"x"], lambda _: None)
        b.ask("large", payload=bytes(31 << 20))
        await wait_until(lambda: len(b.replies) == 2)
        assert len(b.frames[1].payload) == 31 << 20
        for reply in b.replies:
            reply(b"")
        assert await b.answer("before") == await b.answer("large") == b""
        assert b.seen() == ["before", "large"]
        assert b.count("connections") == 1


async def test_answers_that_nobody_asked_for_and_endless_ones_cut_the_connection() -> None:
    async with bench() as b, stranger() as (address, take):
        b.ask("a", address)
        sock = await take()
        sock.send(pack_reply(b"a") + pack_reply(b"b"))
        assert await b.answer("a") == b"a"
        await wait_until(lambda: b.count("connections") == 0)
        b.ask("c", address)
        sock = await take()
        sock.send(b"\x7f\xff\xff\xff")
        assert type(await b.error("c", "maybe")) is RemoteProtocolError


async def test_connections_that_are_not_used_are_closed() -> None:
    async with bench(idle=2 * TICK) as b:
        b.ask("a")
        await wait_until(lambda: b.replies)
        await asyncio.sleep(4 * TICK)
        assert b.count("hosts") == 1  # somebody waits
        b.replies[0](b"")
        await b.answer("a")
        await wait_until(lambda: b.count("hosts") == 0)
        await wait_until(lambda: b.server.connections == 0)
        b.echo = True
        b.ask("again")
        assert await b.answer("again") == b"again"


async def test_close_tells_all_that_wait_and_nothing_comes_after() -> None:
    async with bench(depth=1, pool=1) as b:
        b.ask("sent")
        b.ask("waits")
        await wait_until(lambda: b.replies)
        b.client.close()
        assert type(await b.error("sent", "maybe")) is ConnectionLost
        assert type(await b.error("waits", "no")) is ConnectionLost
        b.ask("late")
        assert b.answers["late"] == []
        await b.error("late", "no")
        assert not b.client.check(b.net.loop.time())


async def test_a_caller_that_fails_on_its_answer_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Answer) -> None:
        raise ValueError("the caller's own")

    async with bench() as b:
        b.echo = True
        b.client.send(b.server.address, "p", {"request-id": "x"}, [b"x"], fail)
        b.ask("other")
        assert await b.answer("other") == b"other"
        assert "the caller's own" in caplog.text


async def test_connections_that_are_retired_bring_their_replies_and_take_nothing_more() -> None:
    async with bench() as b:
        b.ask("before")
        await wait_until(lambda: b.replies)
        b.client.retire(b.server.address)
        b.ask("behind")
        await wait_until(lambda: len(b.replies) == 2)
        assert b.server.connections == 2
        b.replies[1](b"2")
        assert await b.answer("behind") == b"2"
        b.replies[0](b"1")
        assert await b.answer("before") == b"1"
        await wait_until(lambda: b.server.connections == 1, what="the old one is closed")
        b.client.retire(b.server.address)
        await wait_until(lambda: b.server.connections == 0, what="an idle one at once")
        b.client.retire("127.0.0.1:1")  # nobody we know
