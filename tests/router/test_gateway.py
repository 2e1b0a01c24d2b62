"""The one connection with another node of ours, when that node does what it should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.record import SPEAKS
from actors.errors import (
    CallBackFailed,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    LocalProtocolError,
    Overloaded,
    RemoteProtocolError,
    TooLarge,
)
from actors.messages import (
    Accept,
    End,
    Feed,
    FeedEnd,
    Hello,
    ItemBody,
    Items,
    Kill,
    Open,
    Stop,
)
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.rig import RouterRig, far_record, router_rig
from tests.router.standin import StandIn, standin
from tests.router.standin_mux import MuxEnd, connect, number
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address
from transport.wire.codec import encode
from transport.wire.control import pack_handshake
from transport.wire.mux import BATCH, BODY, pack_mux

GO = "t.far.go"
SELF = Address("far", 0x77, 1, 1)
Rig = tuple[RouterRig, StandIn]


@asynccontextmanager
async def rig(tmp_path: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A router and a node of ours that a test plays; at the end nothing of any stream is left."""
    async with standin() as worker:
        record = far_record(worker.via, GO, speaks=SPEAKS)
        async with router_rig(tmp_path, record, **settings) as here:
            yield here, worker
            await here.idle()
            worker.hang_up()


async def collected(here: RouterRig, request: Any = None, **options: Any) -> list[Any]:
    """The items of one stream."""
    async with here.client.stream(GO, request, **options) as items:
        return [item async for item in items]


def items(stream: int, first: int, *values: Any) -> Items:
    return Items(stream, first, [encode(each, codec="msgpack") for each in values])


def start(here: RouterRig, request: Any = None, **options: Any) -> asyncio.Task[list[Any]]:
    return asyncio.ensure_future(collected(here, request, **options))


async def test_what_the_envelope_says(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here, {"a": 1}, request_id="mine", metadata={"k": "v"}, timeout=1000.0)
        call, end = await connect(worker)
        sent = call.envelope
        assert (call.value, sent.id, sent.request_type) == ({"a": 1}, "mine", "single_in")
        assert sent.connection.transport == "callhome_mux_v1"
        assert sent.connection.text("incarnation") == f"{here.actor.address.incarnation:x}"
        metadata = dict(sent.metadata)
        assert 900.0 < float(metadata.pop("x-callhome-remaining")) <= 1000.0
        assert metadata.pop("x-callhome-window") == "256,16777216"
        assert metadata == {"k": "v"}
        end.send(items(number(call), 0, 1, 2), End(number(call), 2, None))
        assert await task == [1, 2]


async def test_items_may_come_before_the_acknowledgement(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call = await worker.next()
        end = MuxEnd(await call.dial())
        end.send(Accept(number(call), SELF, 0, 0), items(number(call), 0, "early"))
        await wait_until(lambda: here.runtime.home.streams[1].seq == 1)
        call.reply()
        end.send(End(number(call), 1, None))
        assert await task == ["early"]


async def test_an_acknowledgement_that_is_lost_does_not_matter_once_home_was_called(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call = await worker.next()
        end = MuxEnd(await call.dial())
        end.send(Accept(number(call), SELF, 0, 0), items(number(call), 0, "early"))
        await wait_until(lambda: here.runtime.home.streams[1].seq == 1)
        call.cut()
        end.send(End(number(call), 1, None))
        assert await task == ["early"]


async def test_one_connection_serves_all_and_its_subject_is_for_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        tasks = [start(here, n) for n in range(3)]
        calls = [await worker.next() for _ in tasks]
        assert len({each.envelope.connection.text("subject") for each in calls}) == 1
        end = MuxEnd(await calls[0].dial())
        second = await calls[1].dial()
        assert await second.rest() == []
        for each in calls:
            each.reply()
            end.send(items(number(each), 0, each.value), End(number(each), 1, None))
        assert await asyncio.gather(*tasks) == [[0], [1], [2]]


async def test_b124_accepted_and_never_called_back(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, dial_in_timeout=LONG, ack_timeout=10 * LONG) as (here, worker):
        task = start(here)
        call = await worker.next()
        call.reply()
        requests = here.actor._plane.requests
        await wait_until(lambda: not requests.statistics()["unanswered"])
        clock.turn(LONG / 2)  # no other limit strikes before
        await asyncio.sleep(2 * TICK)
        assert not task.done()
        clock.turn(LONG / 2)
        with pytest.raises(CallBackFailed, match="did not call back") as caught:
            await task
        assert call.envelope.connection.text("address") in str(caught.value)
        assert worker.address in str(caught.value)
        assert here.awaited() == 0
        late = await call.dial()
        assert await late.rest() == []
        # The next stream is told a new subject.
        task = start(here)
        again, end = await connect(worker)
        assert again.envelope.connection.text("subject") != call.envelope.connection.text("subject")
        end.send(End(number(again), 0, None))
        assert await task == []


async def test_called_back_and_never_accepted(tmp_path: Path) -> None:
    async with rig(tmp_path, prologue_timeout=TICK) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        with pytest.raises(DeadlineExceeded, match="did not accept"):
            await task
        kill = await end.find(Kill)
        assert kill.stream == number(call)


async def test_a_kill_before_the_connection_is_up_is_told_when_it_is(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        other = start(here, "other")
        call = await worker.next()
        async with here.client.stream(GO, "mine", request_id="r"):
            killed = await worker.next()
            here.client.cancel("r")
        await wait_until(lambda: here.relays == 1)
        for each in (call, killed):
            each.reply()
        end = MuxEnd(await call.dial())
        assert (await end.find(Kill)).stream == number(killed)
        end.send(End(number(call), 0, None))
        assert await other == []


async def test_a_stop_before_the_connection_is_up_is_told_when_it_is(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here, request_id="r")
        call = await worker.next()
        here.client.cancel("r", kill=False, reason="why")
        call.reply()
        end = MuxEnd(await call.dial())
        assert await end.read() == Stop(here.actor.address.incarnation, number(call), "why")
        end.send(End(number(call), 0, None))
        assert await task == []


@pytest.mark.parametrize("reset", [False, True])
async def test_conformance_14_a_lost_connection_ends_its_streams_only(
    tmp_path: Path, reset: bool
) -> None:
    async with standin() as one, standin() as two:
        records = [
            far_record(each.via, f"t.far.{name}", instance, speaks=SPEAKS)
            for each, name, instance in ((one, "one", 1), (two, "two", 2))
        ]
        async with router_rig(tmp_path, *records) as here:
            async with (
                here.client.stream("t.far.one") as first,
                here.client.stream("t.far.two") as second,
            ):
                reading = [asyncio.ensure_future(anext(each)) for each in (first, second)]
                ends = []
                for worker in (one, two):
                    call, end = await connect(worker)
                    end.send(items(number(call), 0, "item"))
                    ends.append((call, end))
                assert await asyncio.gather(*reading) == ["item", "item"]
                if reset:
                    ends[0][1].half.abort()
                else:
                    ends[0][1].half.close()
                with pytest.raises(ConnectionLost, match="after 1 items") as caught:
                    await anext(first)
                assert f"t.far.one: the connection with {one.address} was" in str(caught.value)
                assert str(caught.value).count("connection") == 1
                assert ("has its ingress ended?" in str(caught.value)) is not reset
                call, end = ends[1]
                end.send(items(number(call), 1, "more"), End(number(call), 2, None))
                assert [item async for item in second] == ["more"]
            await here.idle()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        pack_mux(BATCH, 4) + b"\xc1\xc1\xc1\xc1",
        b"\x00" * 8,
        pack_mux(BATCH, 1 << 20),
    ],
    ids=["bytes", "batch", "nothing", "half"],
)
async def test_garbage_ends_the_connection_with_a_reason(tmp_path: Path, garbage: bytes) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        _, end = await connect(worker)
        end.half.send(garbage)
        end.half.close()
        with pytest.raises(ConnectionLost):
            await task
        task = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await task == []


async def test_messages_that_have_no_place_cost_nothing_but_themselves(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        n = number(call)
        end.send(Hello(SELF), Kill(1, n, "no"), Feed(n, 0, [b"x"]), items(n, 0, 1))
        end.half.send(pack_mux(BODY, 3, 7) + b"abc")  # of a body that nobody expects
        end.send(End(n, 1, None))
        assert await task == [1]


@pytest.mark.parametrize(
    "lie",
    [
        lambda n: items(n, 5, 1),
        lambda n: End(n, 3, None),
        lambda n: ItemBody(n, 0, 100, [], 7, 1),
        lambda n: ItemBody(n, 0, b"", [["<f8", [3], 8]], 8, 1),
        lambda n: ItemBody(n, 0, 1 << 62, [], 1 << 62, 1),
        lambda n: Items(n, 0, [b"x"] * 300),
    ],
    ids=["out of order", "cut", "size", "shape", "huge", "beyond its credit"],
)
async def test_lies_about_a_stream_end_that_stream(tmp_path: Path, lie: Any) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        end.send(Accept(number(call), SELF, 0, 0), lie(number(call)))
        with pytest.raises((RemoteProtocolError, ConnectionLost, TooLarge)):
            await task
        other = start(here)
        end.send(End((await end.find(Open)).stream, 0, None))
        assert await other == []


async def test_a_body_that_breaks_off_ends_its_stream(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        n = number(call)
        end.send(Accept(n, SELF, 0, 0), items(n, 0, 1), ItemBody(n, 1, 300_000, [], 300_000, 1))
        end.half.send(pack_mux(BODY, 1000, 1) + bytes(1000))
        # Behind the body that is on its way, and waits for it.
        end.send(End(n, 2, None))
        await wait_until(lambda: not here.relays)
        end.half.close()
        with pytest.raises(ConnectionLost):
            await task
        await wait_until(lambda: not here.actor.runtime.memory.statistics().slots)


async def test_conformance_12_a_worker_removed_before_it_took_the_stream(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call = await worker.next()
        call.reply()
        record = here.told.records[0]
        here.told.remove(record, "its lease ran out")
        with pytest.raises(ConnectionLost, match="its lease ran out"):
            await task
        assert here.awaited() == 0
        # 13: nothing is sent to who was removed a moment ago
        with pytest.raises(ConnectionLost, match="its lease ran out"):
            here.actor._ways.standard.remote.generate(None, record, here.runtime.address)  # type: ignore[arg-type]
        assert len(worker.calls) == 1


async def test_a_full_node(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        (await worker.next()).reply(b"Server overloaded: all places are taken")
        with pytest.raises(Overloaded, match="all places are taken"):
            await task
        assert here.awaited() == 0


async def test_b137_nothing_is_sent_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        for count in range(1, 21):
            task = start(here)
            (await worker.next()).cut()
            with pytest.raises(ConnectionLost) as caught:
                await task
            assert caught.value.details["sent"] == "maybe"
            assert len(worker.calls) == count


async def test_b127_one_last_word_of_the_client(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        async with here.client.open(GO) as chat:
            sending = asyncio.ensure_future(chat.send("x"))
            call, end = await connect(worker)
            n = number(call)
            assert call.envelope.request_connection is not None
            assert call.envelope.request_connection.text("stream_type") == "request"
            end.send(Accept(n, SELF, 8, 1 << 20))
            await sending
            assert await end.read() == Feed(n, 0, [encode("x", codec="msgpack")])
            await chat.end()
            assert await end.read() == FeedEnd(n, 1)
            end.send(End(n, 0, None))
            assert [each async for each in chat] == []
        task = start(here)
        end.send(End((await end.find(Open)).stream, 0, None))
        assert await task == []
        end.half.close()
        left = []
        while (each := await end.read()) is not None:
            left.append(each)
        assert left == []


async def test_words_of_ours_are_not_for_users(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        with pytest.raises(LocalProtocolError):
            await collected(here, metadata={"x-callhome-window": "1,1"})
        with pytest.raises((EncodeError, LocalProtocolError)):
            await collected(here, codec="plain.msgpack")
        assert worker.calls == []


async def test_handshakes_that_are_none(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call = await worker.next()
        call.reply()
        for hello in (b"\xff" * 24, pack_handshake("4f6fbd21-0000", "mux")):
            assert await (await call.dial(hello=hello)).rest() == []
        assert await (await call.dial(stream_type="response")).rest() == []
        end = MuxEnd(await call.dial())
        end.send(End(number(call), 0, None))
        assert await task == []
