"""Bidirectional streams of Dynamo's requesters: both sockets, all their endings."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

from actors import BidirectionalEngine, Context, RequestStream
from tests.ingress.engines import Chat
from tests.ingress.rig import Rig, rig
from tests.ingress.standin import Answer, Half, control, pack, read_answer, two_part
from tests.waiting import TICK, wait_until

CODECS = ["msgpack", "json"]


class Talk:
    """One stream that is open: its two sockets and its engine."""

    def __init__(self, at: Rig, codec: str, answers: Half, feed: Half) -> None:
        self.at = at
        self.codec = codec
        self.answers = answers
        self.feed = feed
        engine = at.engines[0].handler.engine
        assert isinstance(engine, Chat)
        self.engine = engine

    def say(self, *items: Any) -> None:
        for each in items:
            self.feed.send(two_part(b"", pack(each, self.codec)))

    async def heard(self, count: int) -> None:
        await wait_until(lambda: len(self.engine.heard) == count, what=f"{count} items heard")

    async def answer(self) -> Answer:
        """All that comes; the response socket is closed behind the sentinel."""
        while (each := await self.answers.frame()) is not None and each[0] != b'"sentinel"':
            pass
        self.answers.close()
        return read_answer(self.answers.frames, self.codec)


@asynccontextmanager
async def talk(
    tmp_path: Path, codec: str = "msgpack", engine: Any = Chat, **settings: Any
) -> AsyncIterator[Talk]:
    async with rig(tmp_path, **settings) as at:
        path = await at.engine(engine)
        asked = await at.requester.ask(path, codec=codec, many=True)
        assert asked.reply == b""
        feed, answers = await asked.half("request"), await asked.half()
        assert feed.hello["stream_type"] == "request"
        assert await answers.frame() == (b'{"error":null}', b"")
        yield Talk(at, codec, answers, feed)
        await at.idle()


@pytest.mark.parametrize("codec", CODECS)
async def test_conformance_09_three_items_each_way(tmp_path: Path, codec: str) -> None:
    async with talk(tmp_path, codec) as at:
        at.say("a", {"b": 2}, ["c"])
        at.feed.send(control("sentinel"))
        answer = await at.answer()
        assert answer.data == [
            {"echo": "a"}, {"echo": {"b": 2}}, {"echo": ["c"]}, {"bye": 0},
        ]  # fmt: skip
        assert answer.final
        assert answer.sentinel
        assert at.engine.ended == ["live"]
    assert at.at.cancelled == 0


async def test_the_worker_says_nothing_on_the_request_socket(tmp_path: Path) -> None:
    """Step 3b: behind its handshake it ends its side."""
    async with talk(tmp_path) as at:
        assert await at.feed.rest() == []
        at.feed.send(control("sentinel"))
        await at.answer()


class Late(Chat):
    """Says three things more once the input has ended."""

    last = 3


async def test_conformance_22_b128a_input_that_ends_early_is_no_cancel(tmp_path: Path) -> None:
    async with talk(tmp_path, engine=Late) as at:
        at.say(1, 2, 3)
        at.feed.send(control("sentinel"))
        at.feed.close()
        answer = await at.answer()
        assert [each for each in answer.data if "bye" in each] == [
            {"bye": 0}, {"bye": 1}, {"bye": 2},
        ]  # fmt: skip
        assert answer.final
        assert at.engine.ended == ["live"]
    assert at.at.cancelled == 0
    assert at.at.errors == {}


async def test_conformance_23_b128d_an_input_that_is_cut_kills(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.say(1)
        await at.heard(1)
        at.feed.close()
        answer = await at.answer()
        assert not answer.final
        assert not answer.sentinel
        await wait_until(lambda: at.engine.ended == ["killed"])
    assert at.at.cancelled == 1
    assert at.at.errors == {"requester": 1}


async def test_conformance_24_a_stop_on_the_request_socket(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.say(1)
        await at.heard(1)
        at.feed.send(control("stop"))
        answer = await at.answer()
        assert answer.data == [{"echo": 1}, {"bye": 0}]
        assert answer.final
        assert at.engine.ended == ["stopped"]
    assert at.at.cancelled == 1


async def test_a_kill_on_the_request_socket(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.say(1)
        at.feed.send(control("kill"))
        assert not (await at.answer()).final
        await wait_until(lambda: at.engine.ended == ["killed"])
    assert at.at.cancelled == 1
    assert at.at.errors == {}


async def test_conformance_25_a_requester_that_never_sends_and_leaves(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.answers.close()
        at.feed.close()
        await wait_until(lambda: at.engine.ended == ["killed"])
    assert at.at.cancelled == 1


async def test_b128c_a_requester_that_dies_after_its_input(tmp_path: Path) -> None:
    class Waits(Chat):
        """Waits for ever behind its input."""

    async with talk(tmp_path, engine=WaitsForEver) as at:
        at.feed.send(control("sentinel"))
        await wait_until(lambda: at.engine.heard == ["end"])
        at.answers.writer.transport.abort()
        await wait_until(lambda: at.engine.ended == ["killed"])
    assert at.at.cancelled == 1


class WaitsForEver(Chat):
    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        try:
            async for item in requests:
                yield item
            self.heard.append("end")
            await asyncio.Event().wait()
        finally:
            self.ended.append("killed" if ctx.killed else "live")


class First(Chat):
    """Ends after one item of the request."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        async for item in requests:
            yield {"only": item}
            return


async def test_b128b_a_worker_that_finishes_first_closes_the_request_socket(
    tmp_path: Path,
) -> None:
    async with talk(tmp_path, engine=First) as at:
        at.say("one", "two")
        answer = await at.answer()
        assert answer.data == [{"only": "one"}]
        assert answer.final
        closed = False
        for _ in range(200):
            at.say("more")
            await asyncio.sleep(0.005)
            closed = at.feed.writer.transport.is_closing()
            if closed:
                break
        assert closed, "the request socket is closed"
    assert at.at.cancelled == 0


@pytest.mark.parametrize(
    "garbage",
    [two_part(), two_part(b'"sentinel"', b"x"), two_part(b"{}"), two_part(b'"over"'), b"\xff" * 30],
    ids=["empty", "body", "json", "word", "length"],
)
async def test_garbage_on_a_request_socket_kills_that_stream(
    tmp_path: Path, garbage: bytes
) -> None:
    async with talk(tmp_path) as at:
        at.say(1)
        await at.heard(1)
        at.feed.send(garbage)
        assert not (await at.answer()).final
        await wait_until(lambda: at.engine.ended == ["killed"])
    assert at.at.cancelled == 1
    assert at.at.errors == {"requester": 1}


async def test_an_input_frame_cut_at_every_byte(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Chat)
        engine: Any = at.engines[0].handler.engine
        whole = two_part(b"", pack("hello", "msgpack")) + control("sentinel")
        for size in range(len(whole)):
            asked = await at.requester.ask(path, many=True)
            feed, answers = await asked.half("request"), await asked.half()
            feed.send(whole[:size])
            feed.close()
            await answers.rest()
            assert not read_answer(answers.frames, "msgpack").final
            await wait_until(lambda size=size: engine.ended == ["killed"] * (size + 1))
        await at.idle()
        assert at.cancelled == len(whole)


async def test_an_item_that_cannot_be_decoded_ends_the_stream(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.feed.send(two_part(b"", b"\xc1 no MessagePack"))
        await at.answer()
        await wait_until(lambda: at.engine.ended != [])
        assert at.engine.heard == []


async def test_input_waits_for_the_engine_and_not_in_memory(tmp_path: Path) -> None:
    async with talk(tmp_path, engine=Reluctant, window_items=4) as at:
        assert isinstance(at.engine, Reluctant)
        at.say(*range(100))
        await asyncio.sleep(2 * TICK)
        served = next(iter(at.at.engines[0]._serving.streams.values()))
        assert len(served.feed_queue) <= 4
        at.engine.go.set()
        at.feed.send(control("sentinel"))
        answer = await at.answer()
        assert answer.data == list(range(100))


class Reluctant(Chat):
    """Does not read before ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        await self.go.wait()
        async for item in requests:
            yield item


def test_reluctant_is_an_engine() -> None:
    assert issubclass(Reluctant, BidirectionalEngine)


def summed(body: bytes, wrong: int = 0) -> bytes:
    """A frame with its checksum."""
    return struct.pack(">QQQ", 0, len(body), xxhash.xxh3_64_intdigest(body) + wrong) + body


async def test_checksums_of_request_items_are_not_looked_at(tmp_path: Path) -> None:
    async with talk(tmp_path) as at:
        at.feed.send(summed(pack("a", at.codec), 1))
        at.feed.send(control("sentinel"))
        assert (await at.answer()).final


async def test_checksums_of_request_items_are_checked_where_that_is_set(tmp_path: Path) -> None:
    async with talk(tmp_path, check_frames=True) as at:
        at.feed.send(summed(pack("a", at.codec)))
        at.say("b")  # has none
        await at.heard(2)
        at.feed.send(summed(pack("c", at.codec), 1))
        assert not (await at.answer()).final
        await wait_until(lambda: at.engine.ended == ["killed"])
        assert at.engine.heard == ["a", "b"]
        assert at.at.errors == {"requester": 1}


async def test_a_request_item_may_be_as_large_as_a_request(tmp_path: Path) -> None:
    async with talk(tmp_path, max_message=40 << 20) as at:
        at.say(b"x" * (33 << 20))
        await at.heard(1)
        at.feed.send(struct.pack(">QQQ", 0, 41 << 20, 0))
        assert not (await at.answer()).final
        assert at.at.errors == {"requester": 1}
