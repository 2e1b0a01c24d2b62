"""Streams of requests at an engine: order, credit, cuts, and what is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors import BidirectionalEngine, Context, RequestStream, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.errors import Cancelled, EngineError
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Accept, Feed, FeedCredit, FeedEnd, Items, Kill
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.wire.codec import encode

ENDPOINT = "t.requests.go"


class Reader(BidirectionalEngine[Any, Any]):
    """Reads as the test lets it, and notes what it got and how it ended."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.ends: list[str] = []
        self.gate = asyncio.Event()
        self.most = 1 << 30

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        try:
            await self.gate.wait()
            if self.most < 0:
                self.helper = asyncio.create_task(self.help(requests))
                await asyncio.Event().wait()
            if not self.most:
                raise ValueError("reads nothing")
            async for item in requests:
                self.got.append(item)
                if len(self.got) >= self.most:
                    break
            self.ends.append("clean")
            yield len(self.got)
        except asyncio.CancelledError:
            self.ends.append(f"cancelled: {ctx.reason}")
            raise

    async def help(self, requests: RequestStream[Any]) -> None:
        """Read in a task beside the handler."""
        try:
            async for item in requests:
                self.got.append(item)
            self.ends.append("clean")
        except Cancelled as error:
            self.ends.append(str(error))


class Rig:
    def __init__(self, run: str, actor: EngineActor) -> None:
        assert isinstance(actor.handler.engine, Reader)
        self.run = run
        self.actor = actor
        self.reader = actor.handler.engine


@asynccontextmanager
async def rig(tmp_path: Path, **settings: Any) -> AsyncIterator[Rig]:
    spec = {
        "run": str(tmp_path),
        "name": "engine",
        "role": "engine",
        "settings": Settings(**settings).to_dict(),
    }
    actor = EngineActor(Reader, {}, ENDPOINT, 4, 4, None)
    async with running(spec, actor):
        yield Rig(str(tmp_path), actor)


@asynccontextmanager
async def calling(at: Rig) -> AsyncIterator[Caller]:
    """A caller over real sockets, without a router."""
    runtime = Runtime(run=at.run, name="home")
    try:
        yield Caller(runtime, lambda target: at.actor.address)
    finally:
        runtime.close()


@asynccontextmanager
async def opened(at: Rig) -> AsyncIterator[tuple[RawHome, Accept]]:
    """A hand-made home with stream 1 open and accepted."""
    with raw_home(at.run) as home:
        home.open(at.actor.address, 1, ENDPOINT, None, many=True)
        await wait_until(lambda: home.got(Accept, 1))
        yield home, home.got(Accept, 1)[0]
        await home.leave(at.actor.runtime)


def feed(at: Rig, home: RawHome, first: int, *values: Any) -> None:
    payloads = [encode(value, codec="msgpack") for value in values]
    home.send(at.actor.address, Feed(1, first, payloads))


# ----------------------------------------------------------------------------------- by the rules


async def test_requests_arrive_in_order_and_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, calling(at) as caller:
        at.reader.gate.set()
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            for number in range(2000):
                await stream.send(number)
            await stream.end()
            await stream.end()  # twice is once
            assert await stream.recv() == 2000
            with pytest.raises(EOFError):
                await stream.recv()
        assert at.reader.got == list(range(2000))


async def test_a_request_may_end_before_it_was_accepted(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, calling(at) as caller:
        at.reader.gate.set()
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            await stream.end()
            assert [answer async for answer in stream] == [0]


async def test_b68_a_sender_does_not_run_ahead_of_its_engine(tmp_path: Path) -> None:
    async with rig(tmp_path, window_items=16) as at, calling(at) as caller:
        sent: list[int] = []
        async with caller.open(ENDPOINT, timeout=LONG) as stream:

            async def send() -> None:
                for number in range(500):
                    await stream.send(number)
                    sent.append(number)
                await stream.end()

            sending = asyncio.create_task(send())
            await wait_until(lambda: len(sent) == 16)
            await asyncio.sleep(TICK)
            assert len(sent) == 16
            at.reader.gate.set()
            await asyncio.wait_for(sending, DEADLINE)
            assert [answer async for answer in stream] == [500]
        assert at.reader.got == list(range(500))


async def test_b74_the_credit_of_requests_counts_bytes(tmp_path: Path) -> None:
    async with rig(tmp_path, window_bytes=100_000) as at, calling(at) as caller:
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            await stream.send(b"x" * 1_000_000)  # larger than all of it: passes alone
            waiting = asyncio.create_task(stream.send(b"y"))
            done, _ = await asyncio.wait([waiting], timeout=TICK)
            assert not done
            at.reader.gate.set()
            await asyncio.wait_for(waiting, DEADLINE)
            await stream.end()
            assert [answer async for answer in stream] == [2]
        assert [len(item) for item in at.reader.got] == [1_000_000, 1]


async def test_an_engine_that_ends_takes_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, calling(at) as caller:
        at.reader.gate.set()
        at.reader.most = 3
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            for number in range(3):
                await stream.send(number)
            assert await stream.recv() == 3
            with pytest.raises(EOFError):
                await stream.recv()
            with pytest.raises(Cancelled, match="takes no more input"):
                await stream.send(4)


async def test_a_sender_that_waits_hears_that_the_engine_has_ended(tmp_path: Path) -> None:
    async with rig(tmp_path, window_items=2) as at, calling(at) as caller:
        at.reader.most = 0
        stream = caller.open(ENDPOINT, timeout=LONG)
        async with stream:
            await stream.send(0)
            await stream.send(1)
            waiting = asyncio.create_task(stream.send(2))
            done, _ = await asyncio.wait([waiting], timeout=TICK)
            assert not done
            at.reader.gate.set()
            with pytest.raises(EngineError, match="reads nothing"):
                await asyncio.wait_for(waiting, DEADLINE)


async def test_leases_of_requests_that_nobody_took_come_back(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, calling(at) as caller:
        memory = caller.runtime.memory
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            for _ in range(10):
                await stream.send(caller.frames.new(50_000, "u1"))
            assert memory.statistics().slots == 10
        await wait_until(lambda: not memory.statistics().slots)
        await wait_until(lambda: at.reader.ends)
        assert at.reader.ends[0].startswith("cancelled")


# ------------------------------------------------------------------------------ against the rules


async def test_a_task_beside_the_handler_takes_no_cut_for_an_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, calling(at) as caller:
        at.reader.gate.set()
        at.reader.most = -1
        async with caller.open(ENDPOINT, timeout=LONG) as stream:
            await stream.send(1)
            await wait_until(lambda: at.reader.got == [1])
        await wait_until(lambda: len(at.reader.ends) == 2)
        await at.reader.helper
        assert "clean" not in at.reader.ends
        assert any("the request was cut" in end for end in at.reader.ends)


async def test_b67_a_request_that_was_cut_never_ends_cleanly(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, opened(at) as (home, _):
        at.reader.gate.set()
        feed(at, home, 0, "a", "b")
        home.send(at.actor.address, FeedEnd(1, 5))
        end = await home.ended(1)
        assert end.error is not None
        assert end.error[0] == "connection.lost"
        assert "2 of 5 items" in end.error[1]
        assert not home.got(Items, 1)
        assert "clean" not in at.reader.ends


async def test_request_items_out_of_order_break_the_stream(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, opened(at) as (home, _):
        at.reader.gate.set()
        feed(at, home, 0, "a")
        feed(at, home, 5, "b")
        end = await home.ended(1)
        assert end.error is not None
        assert end.error[0] == "protocol.remote"
        assert "clean" not in at.reader.ends


async def test_request_items_beyond_their_credit_break_the_stream(tmp_path: Path) -> None:
    async with rig(tmp_path, window_items=4) as at, opened(at) as (home, accept):
        assert accept.feed_items == 4
        feed(at, home, 0, 1, 2, 3, 4)
        feed(at, home, 4, 5)
        end = await home.ended(1)
        assert end.error is not None
        assert "beyond its credit" in end.error[1]


async def test_a_poison_request_item_is_an_error_of_its_stream_only(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, opened(at) as (home, _):
        at.reader.gate.set()
        home.send(at.actor.address, Feed(1, 0, [b"\xc1"]))
        end = await home.ended(1)
        assert end.error is not None
        assert end.error[0] == "payload.decode"
        home.open(at.actor.address, 2, ENDPOINT, None, many=True)
        home.send(at.actor.address, FeedEnd(2, 0))
        assert (await home.ended(2)).error is None


async def test_credit_is_granted_as_requests_are_taken(tmp_path: Path) -> None:
    async with rig(tmp_path, window_items=8) as at, opened(at) as (home, accept):
        feed(at, home, 0, *range(accept.feed_items))
        await asyncio.sleep(TICK / 2)
        assert not home.got(FeedCredit, 1)
        at.reader.gate.set()
        await wait_until(lambda: sum(each.items for each in home.got(FeedCredit, 1)) == 8)
        home.send(at.actor.address, Kill(home.address.incarnation, 1, "done"), control=True)
        await wait_until(lambda: at.reader.ends == ["cancelled: done"])
