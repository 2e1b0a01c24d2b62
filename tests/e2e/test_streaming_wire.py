"""What a home makes of a peer that breaks the rules: a hand-made engine on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.errors import Cancelled, ConnectionLost, EngineError, RemoteProtocolError
from actors.kernel.calls import Caller
from actors.kernel.responses import ResponseStream
from actors.kernel.runtime import Runtime
from actors.messages import Accept, End, Items, Kill, Open
from tests.waiting import LONG, wait_until
from transport.payload import encode_payload
from transport.wire.message import Message


class Peer:
    """Takes one Open and sends what the test says, whatever the rules are."""

    def __init__(self, run: str) -> None:
        self.runtime = Runtime(run=run, name="peer")
        self.opens: asyncio.Queue[Open] = asyncio.Queue()
        self.killed: list[Kill] = []
        self.runtime.on(Open, self._open)
        self.runtime.on(Kill, lambda sender, m: self.killed.append(m))

    def _open(self, sender: int, m: Open) -> None:
        self.runtime.peers.note(m.home)
        self.opens.put_nowait(m)

    async def accept(self) -> Open:
        async with asyncio.timeout(LONG):
            opened = await self.opens.get()
        self.say(opened, Accept(opened.stream, self.runtime.address, 0, 0))
        return opened

    def say(self, opened: Open, *messages: Message) -> None:
        for message in messages:
            self.runtime.port.send(opened.home, message)

    def items(self, opened: Open, first: int, count: int) -> Items:
        payloads = [encode_payload(number).data for number in range(first, first + count)]
        return Items(opened.stream, first, payloads)


@asynccontextmanager
async def talking(tmp_path: Path) -> AsyncIterator[tuple[Peer, ResponseStream, Open]]:
    """A peer and an accepted stream of a home, over real sockets."""
    peer = Peer(str(tmp_path))
    home = Runtime(run=str(tmp_path), name="home")
    try:
        caller = Caller(home, lambda target: peer.runtime.address)
        async with caller.stream("t.wire.go", None, timeout=LONG) as stream:
            yield peer, stream, await peer.accept()
    finally:
        home.close()
        peer.runtime.close()


async def took(stream: ResponseStream, count: int) -> None:
    assert [await anext(stream) for _ in range(count)] == list(range(count))


async def test_b67_a_batch_missing_before_the_end_is_a_cut(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, 5), End(opened.stream, 10, None))
        await took(stream, 5)
        with pytest.raises(ConnectionLost, match="5 of 10 items"):
            await anext(stream)


async def test_b67_a_batch_missing_in_the_middle_is_a_cut(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, 3), peer.items(opened, 5, 2))
        peer.say(opened, End(opened.stream, 7, None))
        await took(stream, 3)
        with pytest.raises(RemoteProtocolError, match="item 5 arrived where 3 was due"):
            await anext(stream)
        await wait_until(lambda: peer.killed, what="the peer is told to stop")


async def test_b67_every_item_and_its_end_is_clean(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, 5), End(opened.stream, 5, None))
        assert [item async for item in stream] == [0, 1, 2, 3, 4]


async def test_b67_an_item_that_was_sent_twice_is_not_delivered_twice(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, 3), peer.items(opened, 1, 3))
        await took(stream, 3)
        with pytest.raises(RemoteProtocolError, match="item 1 arrived where 3 was due"):
            await anext(stream)


async def test_an_error_comes_after_the_items_before_it(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        error = ["engine", "boom", {"type": "ValueError"}]
        peer.say(opened, peer.items(opened, 0, 2), End(opened.stream, 2, error))
        await took(stream, 2)
        with pytest.raises(EngineError, match="boom"):
            await anext(stream)


async def test_items_beyond_the_credit_break_the_stream(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, opened.window_items + 1))
        with pytest.raises(RemoteProtocolError, match="beyond its credit"):
            await anext(stream)


async def test_items_for_a_forgotten_stream_are_answered_with_kill(tmp_path: Path) -> None:
    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, peer.items(opened, 0, 1))
        await took(stream, 1)
        stream.kill()
        await wait_until(lambda: len(peer.killed) == 1)
        peer.say(opened, peer.items(opened, 1, 1))
        await wait_until(lambda: len(peer.killed) == 2)
        with pytest.raises(Cancelled):
            await anext(stream)


async def test_an_unknown_error_code_is_an_error_all_the_same(tmp_path: Path) -> None:
    from actors import CallHomeError

    async with talking(tmp_path) as (peer, stream, opened):
        peer.say(opened, End(opened.stream, 0, ["code.of.tomorrow", "who knows", {}]))
        with pytest.raises(CallHomeError, match="who knows") as failed:
            await anext(stream)
        assert failed.value.details["code"] == "code.of.tomorrow"
