"""Streams of nodes of ours at an ingress: one connection for all, messages by number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.messages import Accept, Credit, End, Feed, FeedEnd, Kill, Stop
from tests.ingress.engines import Chat, Held, echo
from tests.ingress.muxhome import MuxHome, mux_home
from tests.ingress.rig import Rig, rig
from tests.waiting import wait_until
from transport.wire.codec import encode


@asynccontextmanager
async def both(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Rig, MuxHome]]:
    """An ingress and one node that has streams there."""
    async with rig(tmp_path, **settings) as at, mux_home(at.requester) as home:
        yield at, home


async def test_a_stream_of_items(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        stream = await home.ask(path, {"n": 3, "text": "ho"})
        end = await home.ended(stream)
        assert end == End(stream, 3, None)
        assert home.items(stream) == [{"i": index, "text": "ho"} for index in range(3)]
        await at.idle()


async def test_many_streams_share_one_dial(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        streams = [await home.ask(path, {"before": 1}) for _ in range(20)]
        for stream in streams:
            await home.until(Accept, stream)
        assert [each["stream_type"] for each in home.hellos] == ["mux"]
        assert home.hellos[0]["incarnation"] == f"{at.ingress.address.incarnation:x}"
        for stream in streams:
            home.send(Stop(home.incarnation, stream, "enough"))
        for stream in streams:
            assert (await home.ended(stream)).error is None
        await at.idle()
        assert at.cancelled == 20


async def test_a_stream_each_way(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Chat)
        stream = await home.ask(path, many=True)
        accept = (await home.until(Accept, stream))[0]
        assert accept.feed_items > 0
        home.send(Feed(stream, 0, [encode(each, codec="msgpack") for each in ("a", "b")]))
        home.send(Feed(stream, 2, [encode("c", codec="msgpack")]))
        home.send(FeedEnd(stream, 3))
        assert (await home.ended(stream)).error is None
        echoes: list[Any] = [{"echo": each} for each in "abc"]
        assert home.items(stream) == [*echoes, {"bye": 0}]
        await at.idle()
        assert at.cancelled == 0


async def test_a_kill_ends_one_stream_alone(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        first, second = [await home.ask(path, {"before": 1, "after": 1}) for _ in range(2)]
        await home.until(Accept, second)
        home.send(Kill(home.incarnation, first, "no more"))
        engine: Any = at.engines[0].handler.engine
        await wait_until(lambda: engine.ended == ["killed"])
        engine.gate.set()
        assert (await home.ended(second)).error is None
        assert len(home.items(second)) == 2
        assert home.got(End, first) == []
        await at.idle()
        assert at.cancelled == 1


async def test_credit_is_between_the_ends(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        metadata = {"x-callhome-window": "4,65536"}
        stream = await home.ask(path, {"n": 10, "text": "t"}, metadata=metadata)
        await wait_until(lambda: len(home.items(stream)) == 4)
        assert home.got(End, stream) == []
        home.send(Credit(stream, 100, 65536))
        assert (await home.ended(stream)).total == 10
        await at.idle()


async def test_a_lost_connection_kills_its_streams_and_nothing_else(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home), mux_home(at.requester) as other:
        path = await at.engine(Held)
        for _ in range(3):
            await home.until(Accept, await home.ask(path, {}))
        stream = await other.ask(path, {"after": 2})
        await other.until(Accept, stream)
        home.cut()
        engine: Any = at.engines[0].handler.engine
        await wait_until(lambda: engine.ended == ["killed"] * 3)
        engine.gate.set()
        assert (await other.ended(stream)).total == 2
        await at.idle()
        assert at.cancelled == 3
