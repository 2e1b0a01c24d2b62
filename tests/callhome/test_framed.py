"""Frames over real sockets: cut anywhere, held back, handed on, broken."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from tests.callhome.sockets import a_net, read_exactly, reset, sockets
from tests.waiting import wait_until
from transport.callhome.framed import FramedLink
from transport.callhome.link import Link, Net
from transport.errors import CallHomeError, ConnectionLost, LocalProtocolError, RemoteProtocolError
from transport.wire.control import SENTINEL
from transport.wire.framing import frame, pack_head


class Frames:
    """What a framed link handed on; ``pause_at`` pauses it behind that many frames."""

    def __init__(self, framed: FramedLink, pause_at: int = 0) -> None:
        self.framed = framed
        self.frames: list[tuple[bytes, bytes]] = []
        self.ends: list[CallHomeError | None] = []
        self.pause_at = pause_at
        framed.start(self.came, self.ends.append)

    def came(self, header: bytes, body: bytes) -> None:
        self.frames.append((header, body))
        if len(self.frames) == self.pause_at:
            self.framed.pause()

    async def wait(self, count: int) -> list[tuple[bytes, bytes]]:
        await wait_until(lambda: len(self.frames) >= count, what=f"{count} frames came")
        return self.frames

    async def wait_end(self) -> CallHomeError | None:
        await wait_until(lambda: self.ends, what="an end was told")
        return self.ends[0]


@contextlib.contextmanager
def framed_pair(net: Net, limit: int = 1 << 20) -> Iterator[tuple[FramedLink, socket.socket]]:
    """A framed link and the plain socket at its other end."""
    one, two = sockets()
    with two:
        yield FramedLink(Link(net, one), limit), two


async def test_all_kinds_arrive_in_order() -> None:
    with a_net() as net:
        one, two = sockets()
        left, right = FramedLink(Link(net, one)), FramedLink(Link(net, two))
        came = Frames(right)
        Frames(left)
        left.send(b"header")
        left.send(b"", b"bo", memoryview(b"dy"))
        left.send(b"header", bytearray(100_000))
        left.write(frame(), b"")
        left.send(b"", memoryview(b"\1\0\0\0").cast("i"))
        assert await came.wait(5) == [
            (b"header", b""),
            (b"", b"body"),
            (b"header", bytes(100_000)),
            (b"", b""),
            (b"", b"\1\0\0\0"),
        ]
        left.end_write()
        assert await came.wait_end() is None
        assert (left.local, left.peer) == (right.peer, right.local)


async def test_many_small_frames_leave_in_one_call() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        for number in range(100):
            framed.send(b"", b"%d" % number)
        assert framed.backlog > 0
        await asyncio.sleep(0)
        assert net.writes == 1
        expected = b"".join(frame(b"", b"%d" % number) for number in range(100))
        assert await read_exactly(peer, len(expected)) == expected


async def test_frames_cut_at_every_byte_are_whole_again() -> None:
    data = frame(b"head", b"body") + SENTINEL
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed)
        for cut in range(1, len(data)):
            there = framed.link.received + cut
            peer.send(data[:cut])
            await wait_until(lambda there=there: framed.link.received == there)
            peer.send(data[cut:])
            await came.wait(2 * cut)
        assert came.frames == [(b"head", b"body"), (b'"sentinel"', b"")] * (len(data) - 1)


async def test_a_peer_that_ends_in_the_middle_of_a_frame_is_lost_at_every_byte() -> None:
    data = frame(b"head", b"body")
    with a_net() as net:
        for cut in range(len(data) + 1):
            with framed_pair(net) as (framed, peer):
                came = Frames(framed)
                peer.send(data[:cut])
                peer.shutdown(socket.SHUT_WR)
                end = await came.wait_end()
                if cut in (0, len(data)):
                    assert end is None
                else:
                    assert isinstance(end, ConnectionLost)
                    assert "in the middle of a frame" in str(end)
                    assert framed.peer in str(end)
                assert len(came.frames) == (cut == len(data))
                assert len(came.ends) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 24,
        pack_head(0, 1 << 20),
        pack_head(1 << 63, 1 << 63),
    ],
)
async def test_garbage_ends_the_link_behind_the_frames_before_it(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed)
        peer.send(frame(b"good") + garbage)
        end = await came.wait_end()
        assert isinstance(end, RemoteProtocolError)
        assert came.frames == [(b"good", b"")]
        assert net.counters["link.garbage"] == 1
        assert len(caplog.records) == 1
        assert net.links == set()


async def test_a_paused_link_holds_frames_that_were_read_already() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed, pause_at=2)
        peer.send(b"".join(frame(b"", b"%d" % number) for number in range(5)))
        await came.wait(2)
        peer.send(frame(b"", b"5"))
        peer.shutdown(socket.SHUT_WR)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(came.frames) == 2
        assert came.ends == []
        came.pause_at = 4
        framed.resume()
        assert len(came.frames) == 2  # not from within the call
        await came.wait(4)
        framed.resume()
        framed.pause()
        framed.resume()
        assert await came.wait(6) == [(b"", b"%d" % number) for number in range(6)]
        assert await came.wait_end() is None


async def test_a_fault_behind_held_frames_comes_behind_them() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed, pause_at=1)
        peer.send(frame(b"one") + frame(b"two") + b"\xff" * 30)
        await came.wait(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert came.ends == []
        framed.resume()
        assert isinstance(await came.wait_end(), RemoteProtocolError)
        assert came.frames == [(b"one", b""), (b"two", b"")]


async def test_detach_gives_the_link_and_all_bytes_behind_the_last_frame() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        given: list[tuple[Link, bytes]] = []
        framed.start(lambda header, body: given.append(framed.detach()), lambda error: None)
        rest = frame(b"two") + frame(b"", b"three") + b"\0\0\0"
        peer.send(frame(b"one") + rest)
        await wait_until(lambda: given)
        assert given == [(framed.link, rest)]
        # The next reader gets them, and what comes later, in order.
        peer.send(frame(b"four")[3:])
        came = Frames(FramedLink(framed.link, 100, first=rest))
        assert came.frames == []
        assert await came.wait(3) == [(b"two", b""), (b"", b"three"), (b"four", b"")]


async def test_a_single_frame_is_read_and_no_other_looked_at() -> None:
    with a_net() as net:
        one, two = sockets()
        with two:
            framed = FramedLink(Link(net, one), 100, single=True)
            given: list[bytes] = []
            framed.start(lambda header, body: given.append(framed.detach()[1]), lambda error: None)
            two.send(frame(b"one") + b"\xff" * 200)
            await wait_until(lambda: given)
            assert given == [b"\xff" * 200]


async def test_a_link_is_not_handed_on_behind_a_fault() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed, pause_at=1)
        peer.send(frame(b"one") + b"\xff" * 30)
        await came.wait(1)
        with pytest.raises(LocalProtocolError):
            framed.detach()


async def test_first_bytes_wait_for_a_paused_reader() -> None:
    with a_net() as net:
        one, two = sockets()
        with two:
            framed = FramedLink(Link(net, one), first=frame(b"one") + frame(b"two")[:10])
            framed.pause()
            came = Frames(framed)
            two.send(frame(b"two")[10:])
            for _ in range(5):
                await asyncio.sleep(0)
            assert came.frames == []
            framed.resume()
            assert await came.wait(2) == [(b"one", b""), (b"two", b"")]


async def test_a_reset_is_handed_through_and_close_is_silent() -> None:
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed)
        reset(peer)
        assert isinstance(await came.wait_end(), ConnectionLost)
    with a_net() as net, framed_pair(net) as (framed, peer):
        came = Frames(framed)
        framed.send(b"last")
        framed.close()
        assert await read_exactly(peer, len(frame(b"last"))) == frame(b"last")
        peer.send(frame(b"nobody"))
        peer.close()
        await wait_until(lambda: net.links == set())
        assert (came.frames, came.ends) == ([], [])


async def test_large_frames_are_gathered_whole_between_small_ones() -> None:
    draw = random.Random(5)
    sizes = (1, 200_000, 300_000, 5, 3_000_000, 1_000_000, 0, 700_000)
    sent = [(draw.randbytes(draw.randrange(40)) or b"h", draw.randbytes(size)) for size in sizes]
    with a_net() as net:
        one, two = sockets()
        left, right = FramedLink(Link(net, one)), FramedLink(Link(net, two))
        came = Frames(right)
        for _ in range(2):
            for header, body in sent:
                left.send(header, body)
        assert await came.wait(16) == sent * 2
        left.end_write()
        assert await came.wait_end() is None


async def test_a_large_frame_that_is_cut_is_a_loss() -> None:
    with a_net() as net, framed_pair(net, 8 << 20) as (framed, peer):
        came = Frames(framed)
        peer.send(frame(b"one") + pack_head(0, 4 << 20) + bytes(1000))
        await came.wait(1)
        with pytest.raises(LocalProtocolError):
            framed.detach()
        peer.close()
        assert isinstance(await came.wait_end(), ConnectionLost)
        assert came.frames == [(b"one", b"")]


async def test_two_links_gather_large_frames_at_the_same_time() -> None:
    bodies = [bytes([number]) * 2_000_000 for number in (1, 2)]
    with (
        a_net() as net,
        framed_pair(net, 8 << 20) as (one, a),
        framed_pair(net, 8 << 20) as (two, b),
    ):
        came = [Frames(one), Frames(two)]
        whole = [frame(b"", body) for body in bodies]
        loop = asyncio.get_running_loop()
        for at in range(0, len(whole[0]), 100_000):
            await loop.sock_sendall(a, whole[0][at : at + 100_000])
            await loop.sock_sendall(b, whole[1][at : at + 100_000])
        for each, body in zip(came, bodies, strict=True):
            assert await each.wait(1) == [(b"", body)]
