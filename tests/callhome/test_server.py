"""The server of requests: order of replies, bounds, and what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import pytest

from tests.callhome.bench import caller
from tests.callhome.sockets import a_net, read_all, read_exactly, reset
from tests.clock import steady
from tests.waiting import LONG, TICK, wait_until
from transport.callhome import server as server_module
from transport.callhome.listener import bound_socket
from transport.callhome.net import Net
from transport.callhome.server import Reply, RequestServer
from transport.errors import LocalProtocolError, SpecError
from transport.wire.request import RequestFrame, pack_reply, pack_request

LIMIT = 100_000


class Ingress:
    """A server that keeps its requests for the test, or answers them at once."""

    def __init__(self, server: RequestServer) -> None:
        self.server = server
        self.frames: list[RequestFrame] = []
        self.replies: list[Reply] = []
        #: The answer to every request; None: the test answers, an exception: the handler fails.
        self.answer: bytes | Exception | None = None

    def handle(self, frame: RequestFrame, reply: Reply) -> None:
        self.frames.append(frame)
        self.replies.append(reply)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            reply(self.answer)


@contextlib.asynccontextmanager
async def listening(
    unanswered: int = 1024, patience: float = 30.0
) -> AsyncIterator[tuple[Ingress, socket.socket]]:
    """An open server and one connection with it."""
    with a_net() as net:
        ingress: Ingress

        def handle(frame: RequestFrame, reply: Reply) -> None:
            ingress.handle(frame, reply)

        server = RequestServer(
            net, "127.0.0.1", 0, handle, LIMIT, unanswered=unanswered, patience=patience
        )
        ingress = Ingress(server)
        server.open()
        sock = await caller(server.address)
        await wait_until(lambda: server.connections == 1, what="it is taken")
        try:
            yield ingress, sock
        finally:
            sock.close()
            server.close()


def request(path: str = "1a/ns/c/e", payload: bytes = b"payload") -> bytes:
    return b"".join(pack_request(path, {"request-id": "r"}, [payload]))


def raw(path: bytes, headers: bytes = b"{}", payload: bytes = b"x") -> bytes:
    lengths = [len(path).to_bytes(2, "big"), len(headers).to_bytes(2, "big")]
    return b"".join(
        [lengths[0], path, lengths[1], headers, len(payload).to_bytes(4, "big"), payload]
    )


async def test_replies_leave_in_the_order_of_their_requests() -> None:
    async with listening() as (ingress, sock):
        sock.sendall(request("p/1") + request("p/2") + request("p/3"))
        await wait_until(lambda: len(ingress.replies) == 3)
        assert [frame.path for frame in ingress.frames] == ["p/1", "p/2", "p/3"]
        assert ingress.frames[0] == RequestFrame("p/1", {"request-id": "r"}, b"payload")
        ingress.replies[2](b"third")
        ingress.replies[1](b"")
        await asyncio.sleep(TICK)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        ingress.replies[0](b"first")
        expected = pack_reply(b"first") + pack_reply(b"") + pack_reply(b"third")
        assert await read_exactly(sock, len(expected)) == expected
        with pytest.raises(LocalProtocolError, match="once"):
            ingress.replies[0](b"again")


async def test_a_caller_with_many_unanswered_requests_is_read_no_more() -> None:
    async with listening(unanswered=4) as (ingress, sock):
        sock.sendall(b"".join(request(f"p/{number}") for number in range(20)))
        await wait_until(lambda: len(ingress.frames) == 4)
        other = await caller(ingress.server.address)
        other.sendall(request("p/other"))
        await wait_until(lambda: len(ingress.frames) == 5)
        ingress.replies[0](b"")
        ingress.replies[1](b"")
        await wait_until(lambda: len(ingress.frames) == 7)
        for reply in ingress.replies:
            if reply.data is None:
                reply(b"")
        ingress.answer = b""
        await wait_until(lambda: len(ingress.frames) == 21)
        for reply in ingress.replies:
            if reply.data is None:
                reply(b"")
        assert await read_exactly(sock, 80) == pack_reply(b"") * 20
        paths = [frame.path for frame in ingress.frames if frame.path != "p/other"]
        assert paths == [f"p/{number}" for number in range(20)]
        other.close()


async def test_a_caller_that_reads_no_replies_is_read_no_more() -> None:
    count, answer = 1000, bytes(60_000)
    async with listening(unanswered=16) as (ingress, sock):
        ingress.answer = answer
        data = request() * count
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sock, data))
        link = next(iter(ingress.server.net.links))
        await wait_until(lambda: link.backlog > 1 << 20)
        assert await steady(lambda: len(ingress.frames)) < count
        assert link.backlog < 4 << 20
        for _ in range(count):
            assert await read_exactly(sock, 60_004) == pack_reply(answer)
        await sending


BAD = {
    "no path": raw(b""),
    "long path": raw(b"p" * 1025),
    "path that is no text": raw(b"\xff\xfe"),
    "over the limit": raw(b"p")[:-5] + (LIMIT).to_bytes(4, "big"),
    "a length that overflows": raw(b"p")[:-5] + b"\xff\xff\xff\xff",
    "http": b"\0\0GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("piecemeal", [False, True])
async def test_conformance_04_what_cannot_be_read_is_told_and_cut(
    name: str, piecemeal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (ingress, sock):
        ingress.answer = b""
        data = request() + BAD[name] + b"more of it" * 20
        if piecemeal:
            for at in range(len(data)):
                sock.send(data[at : at + 1])
                await asyncio.sleep(0)
        else:
            sock.sendall(data)
        answer = await read_all(sock)
        assert answer.startswith(pack_reply(b""))
        known = b"Server unavailable: " if "limit" in name or "length" in name else b"Read error: "
        assert answer[8:].startswith(known)
        assert len(ingress.frames) == 1
        assert ingress.server.net.counters["request.garbage"] == 1
        assert caplog.text.count("are cut") == 1
        await wait_until(lambda: ingress.server.connections == 0)


@pytest.mark.parametrize("headers", [b"", b"{", b"[1]", b'{"a": 1}', b"\xff"])
async def test_conformance_04_headers_that_are_no_map_are_none(headers: bytes) -> None:
    async with listening() as (ingress, sock):
        sock.sendall(raw(b"p", headers))
        await wait_until(lambda: len(ingress.frames) == 1)
        assert ingress.frames[0] == RequestFrame("p", {}, b"x")


async def test_a_request_cut_at_every_byte_costs_its_connection_only() -> None:
    data = request("p/q", b"xyz")
    async with listening() as (ingress, steady):
        server = ingress.server
        ingress.answer = b""
        for cut in range(1, len(data)):
            sock = await caller(server.address)
            sock.sendall(data + data[:cut])
            if cut % 2:
                reset(sock)
                continue
            sock.shutdown(socket.SHUT_WR)
            answer = await read_all(sock)
            assert answer.startswith(pack_reply(b""))
            assert answer[8:].startswith(b"Read error: ")
            sock.close()
        await wait_until(lambda: server.connections == 1)
        assert server.net.counters["request.garbage"] >= len(data) // 2 - 1
        steady.sendall(data)
        assert await read_exactly(steady, 4) == pack_reply(b"")


async def test_the_end_of_a_caller_waits_for_the_replies_that_are_due() -> None:
    async with listening() as (ingress, sock):
        sock.sendall(request() * 2)
        sock.shutdown(socket.SHUT_WR)
        await wait_until(lambda: len(ingress.replies) == 2)
        ingress.replies[1](b"two")
        ingress.replies[0](b"one")
        assert await read_all(sock) == pack_reply(b"one") + pack_reply(b"two")
        await wait_until(lambda: ingress.server.connections == 0)


async def test_replies_that_never_come_keep_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_LAST_REPLIES", TICK)
    async with listening() as (ingress, sock):
        sock.sendall(request() + BAD["no path"])
        await wait_until(lambda: len(ingress.replies) == 1)
        await wait_until(lambda: ingress.server.connections == 0)
        ingress.replies[0](b"")  # too late, and no matter


async def test_a_request_that_stops_in_the_middle_is_cut() -> None:
    async with listening(patience=LONG) as (ingress, sock):
        ingress.answer = b""
        idle, mute = [await caller(ingress.server.address) for _ in "ab"]
        idle.sendall(request())
        sock.sendall(request()[:-1])
        net = ingress.server.net
        await wait_until(lambda: ingress.server.connections == 3)
        await wait_until(lambda: net.bytes_in == 2 * len(request()) - 1)
        timer = ingress.server._sweeping
        assert timer is not None
        assert timer.when() - net.loop.time() <= LONG
        for _ in "ab":  # what the timer does after each such time
            ingress.server._sweep()
            again = ingress.server._sweeping  # and it is set anew, for those who are left
            assert again is not None
            assert again.when() - net.loop.time() <= LONG
            assert again is not timer
            timer.cancel()
            timer = again
        answer = await read_all(sock)
        assert b"Read error: nothing came" in answer
        assert await read_all(mute) == b""
        assert ingress.server.connections == 1  # the one that waits with its next is welcome
        idle.close()
        mute.close()


async def test_a_handler_that_fails_costs_its_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as (ingress, sock):
        ingress.answer = ValueError("the handler's own")
        sock.sendall(request())
        await wait_until(lambda: len(ingress.frames) == 1)
        ingress.answer = b""
        sock.sendall(request())
        text = server_module._FAILED
        assert await read_exactly(sock, len(text) + 8) == pack_reply(text) + pack_reply(b"")
        assert "the handler's own" in caplog.text


async def test_replies_to_one_who_is_gone_go_nowhere() -> None:
    async with listening() as (ingress, sock):
        sock.sendall(request() * 2)
        await wait_until(lambda: len(ingress.replies) == 2)
        reset(sock)
        await wait_until(lambda: ingress.server.connections == 0)
        ingress.replies[0](b"")


async def test_close_sends_what_was_answered() -> None:
    async with listening() as (ingress, sock):
        sock.sendall(request() * 2)
        await wait_until(lambda: len(ingress.replies) == 2)
        ingress.replies[0](b"one")
        ingress.server.close()
        assert await read_all(sock) == pack_reply(b"one")
        ingress.replies[1](b"two")
        with pytest.raises(ConnectionRefusedError):
            await caller(ingress.server.address)


async def test_an_address_that_cannot_be_bound_names_the_setting() -> None:
    async with listening() as (ingress, _):
        host, _, port = ingress.server.address.rpartition(":")
        second = RequestServer(
            ingress.server.net, host, int(port), ingress.handle, name="listen of the ingress"
        )
        with pytest.raises(SpecError, match="listen of the ingress"):
            second.open()
        second.close()


def _ingress(net: Net, sock: socket.socket) -> Ingress:
    made: list[Ingress] = []

    def handle(frame: RequestFrame, reply: Reply) -> None:
        made[0].handle(frame, reply)

    made.append(Ingress(RequestServer(net, "127.0.0.1", 0, handle, sock=sock)))
    return made[0]


def _parted(server: RequestServer) -> bool:
    server.part()
    return not server.connections


async def test_two_servers_share_a_socket_and_one_leaves_it() -> None:
    """Nobody is refused, and a connection ends where nothing is under way on it."""
    with a_net() as net:
        sock = bound_socket("127.0.0.1", 0, "listen")
        servers = []
        for _ in range(2):
            shared = socket.socket(fileno=os.dup(sock.fileno()))
            servers.append(_ingress(net, shared))
        old, new = servers
        old.server.open()
        with await caller(old.server.address) as busy, await caller(old.server.address) as idle:
            busy.sendall(request() + request()[:-1])
            await wait_until(lambda: old.replies and old.server.connections == 2)
            new.server.open()
            assert new.server.address == old.server.address
            old.server.leave()
            with await caller(new.server.address) as later:
                later.sendall(request())
                await wait_until(lambda: new.replies)
            old.server.part()
            assert await read_all(idle) == b""
            old.replies[0](b"one")
            assert await read_exactly(busy, len(pack_reply(b"one"))) == pack_reply(b"one")
            old.server.part()
            assert old.server.connections == 1  # another request has begun
            busy.sendall(request()[-1:])
            await wait_until(lambda: len(old.replies) == 2)
            old.replies[1](b"two")
            await wait_until(lambda: _parted(old.server))
            assert await read_all(busy) == pack_reply(b"two")
        for each in servers:
            each.server.close()
        sock.close()
