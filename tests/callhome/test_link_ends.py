"""How links end: by the peer, by a failure, by a fault of ours, and by being closed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.callhome.sockets import Heard, a_net, a_pair, read_all, read_exactly, reset, two_links
from tests.waiting import TICK, wait_until
from transport.callhome import link as link_module
from transport.callhome.net import silence
from transport.errors import ConnectionLost, RemoteProtocolError


async def test_the_peers_end_is_told_and_writing_goes_on() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link)
        peer.send(b"last words")
        peer.shutdown(socket.SHUT_WR)
        assert await heard.wait_end() is None
        assert bytes(heard.data) == b"last words"
        link.write(b"answer")
        link.end_write()
        assert await read_all(peer) == b"answer"
        link.write(b"dropped")
        assert link.backlog == 0
        assert heard.ends == [None]


async def test_a_reset_is_told_once_with_peer_and_errno() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link)
        reset(peer)
        error = await heard.wait_error()
        assert isinstance(error, ConnectionLost)
        assert error.details["errno"] == "ECONNRESET"
        assert link.peer in str(error)
        link.write(b"nobody")
        link.flush()
        link.close()
        assert heard.ends == [error]
        assert net.links == set()


async def test_what_came_before_a_failed_write_is_handed_on_before_the_error() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        peer.send(b"the end of the answer")
        await asyncio.sleep(0)
        reset(peer)
        heard = Heard(link, start=False)
        link.write(b"stop")
        link.flush()
        link.write(b"stop")
        link.flush()
        link.start(heard.received, heard.ends.append)
        error = await heard.wait_error()
        assert bytes(heard.data) == b"the end of the answer"
        assert isinstance(error, ConnectionLost)
        assert error.details["errno"] in ("EPIPE", "ECONNRESET")
        assert len(heard.ends) == 1


async def test_a_write_that_fails_behind_the_peers_end_is_told() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link)
        peer.close()
        assert await heard.wait_end() is None
        for _ in range(20):
            link.write(b"more")
            link.flush()
            await asyncio.sleep(0.001)
        assert isinstance(await heard.wait_error(), ConnectionLost)
        assert len(heard.ends) == 2


async def test_an_end_in_the_middle_of_a_body_is_a_loss() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link, start=False)
        link.read_into(memoryview(bytearray(100)), lambda: None)
        link.start(heard.received, heard.ends.append)
        peer.send(b"half")
        peer.close()
        assert "middle of a body" in str(await heard.wait_error())


@pytest.mark.parametrize("error", [RemoteProtocolError("nonsense came"), KeyError("bug")])
async def test_a_callback_that_raises_ends_its_link_only(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def received(view: memoryview) -> None:
        raise error

    with a_net() as net, a_pair(net) as (link, peer), a_pair(net) as (other, friend):
        heard, fine = Heard(link, start=False), Heard(other)
        link.start(received, heard.ends.append)
        peer.send(b"x" * 10)
        told = await heard.wait_error()
        if isinstance(error, RemoteProtocolError):
            assert told is error
        else:
            assert isinstance(told, ConnectionLost)
            assert "KeyError" in str(told)
        assert len(caplog.records) == 1
        assert link.peer in caplog.text
        friend.send(b"still here")
        await fine.wait_bytes(10)
        assert net.links == {other}


@pytest.mark.parametrize("error", [None, ConnectionLost("gone")])
async def test_an_end_that_is_not_understood_is_logged(
    error: ConnectionLost | None, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[object] = []

    def ended(told: object) -> None:
        calls.append(told)
        raise ZeroDivisionError("bug")

    with a_net() as net, a_pair(net) as (link, peer):
        link.start(lambda view: None, ended)
        if error:
            reset(peer)
        else:
            peer.close()
        await wait_until(lambda: net.links == set())
        assert len(calls) == (1 if error else 2)
        assert "ZeroDivisionError" in caplog.text


async def test_close_sends_what_was_written() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link)
        peer.send(b"unread, and no reason to lose what was written")
        link.write(bytes(8 << 20))
        link.close()
        link.close()
        assert link.closing
        link.write(b"dropped")
        first = await read_exactly(peer, 1 << 20)
        peer.send(b"more that nobody reads here")
        rest = await read_all(peer)
        assert len(first) + len(rest) == 8 << 20
        peer.close()
        await wait_until(lambda: net.links == set())
        assert heard.ends == []
        assert bytes(heard.data) == b""
        assert "link.cut" not in net.counters


async def test_close_waits_for_a_peer_that_does_not_read_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "LINGER", 2 * TICK)
    with a_net() as net, a_pair(net) as (link, peer):
        link.write(bytes(64 << 20))
        link.close()
        await wait_until(lambda: net.links == set())
        assert net.counters["link.cut"] == 1
        assert "does not read" in caplog.text
        with pytest.raises(ConnectionResetError):
            await read_all(peer)


async def test_close_of_an_idle_peer_ends_cleanly_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "LINGER", TICK)
    with a_net() as net, a_pair(net) as (link, peer):
        link.write(b"bye")
        link.close()
        await wait_until(lambda: net.links == set())
        assert await read_all(peer) == b"bye"
        assert "link.cut" not in net.counters


async def test_abort_is_a_reset() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        heard = Heard(link)
        link.write(b"thrown away")
        link.close(abort=True)
        assert net.links == set()
        with pytest.raises(ConnectionResetError):
            await read_all(peer)
        assert heard.ends == []


async def test_closing_in_a_callback_stops_the_reading() -> None:
    with a_net() as net:
        one, two = two_links(net)
        calls: list[int] = []

        def received(view: memoryview) -> None:
            calls.append(len(view))
            two.close(abort=True)

        two.start(received, lambda error: calls.append(-1))
        one.write(bytes(4 << 20))
        await wait_until(lambda: two not in net.links)
        assert len(calls) == 1


async def test_a_reader_that_merely_pauses_is_not_taken_for_dead() -> None:
    with a_net() as net:
        one, two = two_links(net)
        one.write(bytes(64 << 20))
        await wait_until(lambda: one.backlog and silence(one.socket) is not None)
        two.pause()
        verdicts: list[str | None] = []

        def full() -> bool:
            verdicts.append(silence(one.socket))
            return len(verdicts) > 10 * TICK / 0.005

        await wait_until(full)
        assert not any(verdicts)
        assert one.examine()  # it is asked again
        assert one in net.links


async def test_a_silent_peer_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "silence", lambda sock: "nothing is acknowledged")
    with a_net() as net, a_pair(net) as (link, _):
        heard = Heard(link)
        assert not link.examine()
        error = await heard.wait_error()
        assert str(error) == f"connection with {link.peer} is lost: nothing is acknowledged"
        assert link not in net.links
