"""Streams of nodes of ours at an ingress: one connection for all, messages by number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Context
from actors.messages import (
    Accept,
    Credit,
    End,
    Feed,
    FeedEnd,
    FeedItem,
    ItemBody,
    Items,
    Kill,
    Stop,
)
from tests.ingress.engines import Chat, Held, echo
from tests.ingress.muxhome import MuxHome, mux_home
from tests.ingress.rig import Rig, rig
from tests.waiting import wait_until
from transport.payload import encode_payload
from transport.shm.memory import Memory
from transport.wire.codec import decode, encode


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
        assert (end.total, end.error) == (3, None)
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


async def shout(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """The sum of an array, then the array, then small words: large before small."""
    array = request["array"]
    yield {"sum": int(array.sum()), "shape": list(array.shape), "kind": str(array.dtype)}
    yield array * 2
    for word in ("small", "words"):
        yield word


def body_of(stream: int, value: Any, seq: int = -1, number: int = 7) -> tuple[ItemBody, list[Any]]:
    """A value with one array as a router sends it: the message and the parts behind it."""
    memory = Memory(99, wake=lambda: None, step=1 << 22, limit=1 << 24, threshold=1024)
    encoded = encode_payload(value, memory=memory, native=True)
    handle = encoded.handles[0]
    data = bytes(memory.copy_out(handle))
    memory.close()
    table = [[handle.dtype, list(handle.shape), len(data)]]
    message = ItemBody(stream, seq, encoded.data, table, len(encoded.data) + len(data), number)
    return message, [memoryview(data)]


async def test_large_values_both_ways_keep_their_order(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(shout)
        array = np.arange(1 << 18, dtype="<i4").reshape(512, 512)
        metadata = {"x-callhome-body": "{}"}
        stream = await home.ask(path, None, body=b"\xc0", metadata=metadata)
        mux = await home.connected()
        message, parts = body_of(stream, {"array": array})
        sent: list[bool] = []
        mux.send_body(message, message.body, parts, lambda: sent.append(True))
        assert (await home.ended(stream)).error is None
        assert sent == [True]
        kinds = [type(each).__name__ for each in home.of(stream)]
        assert kinds.index("ItemBody") < len(kinds) - 1
        body = next(each for each in home.came if isinstance(each, ItemBody))
        assert (body.seq, body.table) == (1, [["<i4", [512, 512], array.nbytes]])
        await wait_until(lambda: body.body in home.bodies)
        assert home.bodies[body.body] == (array * 2).tobytes()
        small = [each for each in home.came if isinstance(each, Items)]
        payloads = [data for each in small for data in each.payloads]
        payloads += (await home.ended(stream)).last
        values = [decode(data, codec="msgpack") for data in payloads]
        total = int(array.sum())
        assert values == [
            {"sum": total, "shape": [512, 512], "kind": "int32"}, "small", "words",
        ]  # fmt: skip
        await at.idle()
        await unlent(at)


async def unlent(at: Rig) -> None:
    """Wait until nobody holds memory of the ingress or of an engine."""

    def back() -> bool:
        runtimes = [at.ingress.runtime, *(each.runtime for each in at.engines)]
        for each in runtimes:
            each.links.send_releases()
        return not any(each.memory.statistics().slots for each in runtimes)

    await wait_until(back, what="all memory is back")


async def test_a_body_that_breaks_off_ends_its_stream(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(shout)
        stream = await home.ask(path, None, body=b"\xc0", metadata={"x-callhome-body": "{}"})
        mux = await home.connected()
        message, parts = body_of(stream, {"array": np.zeros(1 << 22, dtype="<i4")})
        mux.send_body(message, message.body, parts, lambda: None)
        mux.flush()
        mux.abort_body(message.body)
        assert (await home.ended(stream)).error is not None
        await at.idle()
        assert at.engines[0].counters.requests == 0
        await unlent(at)


async def test_a_body_that_lies_about_itself_ends_its_stream(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(shout)
        for table in ([["<i4", [3], 4096]], [["<i4", [-1], 4]], ["no"], [["|O", [1], 8]]):
            stream = await home.ask(path, None, body=b"\xc0", metadata={"x-callhome-body": "{}"})
            await home.connected()
            home.send(ItemBody(stream, -1, b"\xc0", table, 4097, 3))
            error = (await home.ended(stream)).error
            assert error is not None
            assert error[0] in ("protocol.remote", "payload.decode")
        await at.idle()
        assert at.engines[0].counters.requests == 0


@pytest.mark.parametrize(
    "forged",
    [
        [5, 1, 4096, 8, 1, "<i8", [1]],
        ["<i8", [1], 4096],
        ["<i8", 1, b"12345678"],
        [7, [1], b"12345678"],
        "no list",
    ],
)
async def test_a_handle_from_another_node_is_refused(tmp_path: Path, forged: Any) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Chat)
        stream = await home.ask(path, many=True)
        await home.until(Accept, stream)
        home.send(FeedItem(stream, 0, b"\xc0", [forged], 9))
        error = (await home.ended(stream)).error
        assert error is not None
        assert error[0] == "protocol.remote"
        await at.idle()


async def test_conformance_07_the_wrong_shape_is_a_typed_end(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        unary, chat = await at.engine(echo), await at.engine(Chat, endpoint="t.engine.chat")
        for path, many in ((unary, True), (chat, False)):
            end = await home.ended(await home.ask(path, {}, many=many))
            assert end.error is not None
            assert end.error[0] == "unsupported"
        await at.idle()
        assert at.errors == {"invalid_message": 2}


async def test_b134_a_requester_that_does_not_listen(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        home.listener.close()
        for _ in range(5):
            await home.ask(path, {})
        await wait_until(lambda: at.errors.get("response_stream") == 5)
        await at.idle()
        engine: Any = at.engines[0].handler.engine
        assert engine.begun == []
        assert at.ingress.net.counters["dial.failed"] <= 5
        assert len(at.ingress.connections) == 0


@pytest.mark.parametrize("kind", [Stop, Kill])
async def test_a_cancel_that_overtakes_its_request(tmp_path: Path, kind: Any) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        first = await home.ask(path, {})
        await home.until(Accept, first)
        home.send(kind(home.incarnation, 77, "changed my mind"))
        connection = at.ingress.connections.find_subject(home.subject)
        assert connection is not None
        await wait_until(lambda: len(connection.tombstones) == 1)
        await home.ask(path, {}, number=77)
        if kind is Stop:
            assert await home.ended(77) == End(77, 0, None)
        await wait_until(lambda: at.cancelled == 1)
        engine: Any = at.engines[0].handler.engine
        assert len(engine.begun) == 1
        assert home.got(End, 77) == ([End(77, 0, None)] if kind is Stop else [])
        home.send(Kill(home.incarnation, first, "done"))
        await at.idle()


@pytest.mark.parametrize("kind", [Stop, Kill])
async def test_a_cancel_reaches_what_waits_for_a_place(tmp_path: Path, kind: Any) -> None:
    async with both(tmp_path, ingress_pool=1) as (at, home):
        path = await at.engine(Held)
        first = await home.ask(path, {"after": 1})
        await home.until(Accept, first)
        second, third = await home.ask(path, {}), await home.ask(path, {"after": 2})
        await home.ask(path, None, body=b"\xc0", metadata={"x-callhome-body": "{}"}, reply=None)
        assert at.ingress.admission.waiting == 2
        home.send(kind(home.incarnation, second, "never mind"))
        await wait_until(lambda: at.ingress.admission.waiting == 1)
        assert home.got(End, second) == ([End(second, 0, None)] if kind is Stop else [])
        engine: Any = at.engines[0].handler.engine
        engine.gate.set()
        assert (await home.ended(first)).total == 1
        assert (await home.ended(third)).total == 2
        assert len(engine.begun) == 2
        await at.idle()
        assert at.ingress.counters.refused == 1


@pytest.mark.parametrize("kind", [Stop, Kill])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_cancel_that_overtook_its_request_finds_it_where_all_places_are_taken(
    tmp_path: Path, kind: Any, asked: bool
) -> None:
    async with both(tmp_path, ingress_pool=1, ingress_queue=1) as (at, home):
        path = await at.engine(Held)
        first = await home.ask(path, {"after": 1})
        await home.until(Accept, first)
        connection = at.ingress.connections.find_subject(home.subject)
        assert connection is not None
        home.send(kind(home.incarnation, 77, "never mind"))
        await wait_until(lambda: len(connection.tombstones) == 1)
        if asked:
            await home.ask(path, {}, number=77)
        else:
            home.open(path, {}, stream=77)
        await wait_until(lambda: at.cancelled == 1)
        assert at.ingress.admission.waiting == 0
        if kind is Stop:
            assert await home.ended(77) == End(77, 0, None)
        engine: Any = at.engines[0].handler.engine
        engine.gate.set()
        assert (await home.ended(first)).total == 1
        assert len(engine.begun) == 1
        await at.idle()


async def test_an_engine_that_stops_is_a_typed_end(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        stream = await home.ask(await at.engine(Held), {"before": 2})
        await wait_until(lambda: len(home.items(stream)) == 2)
        at.engines[0]._serving.shut("the engine stops")
        end = await home.ended(stream)
        assert end.error is not None
        assert end.error[0] == "connection.lost"
        await at.idle()


async def test_an_ingress_that_stops_ends_streams_with_an_error(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        stream = await home.ask(await at.engine(Held), {"before": 1})
        await home.until(Accept, stream)
        at.ingress.shut()
        await at.ingress.on_stop()
        end = await home.ended(stream)
        assert end.error is not None
        assert end.error[0] == "connection.lost"
        await wait_until(lambda: bool(home.lost))
        engine: Any = at.engines[0].handler.engine
        await wait_until(lambda: engine.ended == ["killed"])


async def test_metadata_of_ours_is_taken_out_and_the_deadline_holds(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(request: Any, ctx: Context) -> AsyncIterator[Any]:
        seen.append((dict(ctx.metadata), ctx.remaining()))
        yield 1

    async with both(tmp_path) as (at, home):
        metadata = {"tenant": "a", "x-callhome-remaining": "9.5", "x-callhome-window": "8,8000"}
        stream = await home.ask(await at.engine(look), 1, metadata=metadata)
        await home.ended(stream)
        assert seen[0][0] == {"tenant": "a"}
        assert 0 < seen[0][1] <= 9.5
        for bad in ("x-callhome-remaining", "x-callhome-window"):
            path = await at.engine(look)
            await home.ask(path, 1, metadata={bad: "soon"}, reply=b"Server unavailable: ")
        assert at.errors == {"invalid_message": 2}
        await at.idle()


async def test_an_engine_that_dies_is_a_typed_end(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        stream = await home.ask(path, {"before": 2})
        await wait_until(lambda: len(home.items(stream)) == 2)
        asked = await at.requester.ask(path, {"before": 1})
        half = await asked.half()
        for _ in range(2):
            await half.frame()
        at.ingress.runtime.peers.lost(at.engines[0].address, "killed by a test")
        end = await home.ended(stream)
        assert end.error is not None
        assert end.error[0] == "connection.peer"
        assert "after 2 items: killed by a test" in end.error[1]
        assert await half.rest() == []
        await wait_until(lambda: not at.ingress.streams.table)
        assert (await home.ended(await home.ask(path, {}))).error is not None
