"""Requests to Dynamo workers: how they go, are refused, and are called home for or not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    Overloaded,
    RemoteProtocolError,
    TooLarge,
    WorkerUnavailable,
)
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.foreign_rig import GO, begun, collected, rig
from tests.router.rig import far_record, router_rig
from tests.router.standin import standin
from tests.waiting import LONG, TICK, wait_until
from transport.wire.control import pack_handshake
from transport.wire.framing import frame


async def test_a_stream_goes_there_and_comes_home(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(
            collected(here, {"a": [1, b"x"]}, request_id="mine", metadata={"k": "v"})
        )
        call = await worker.next()
        assert call.path == "abc/t/far/go"
        assert call.headers["request-id"] == "mine"
        assert call.value == {"a": [1, b"x"]}
        sent = call.envelope
        assert (sent.id, sent.codec, sent.request_type) == ("mine", "msgpack", "single_in")
        assert dict(sent.metadata) == {"k": "v"}
        assert sent.connection.transport == "tcp_server"
        assert sent.connection.text("context") == "mine"
        half = await call.answer(1, {"b": b"y"}, "three")
        assert await task == [1, {"b": b"y"}, "three"]
        assert await half.rest() == []


async def test_conformance_37_each_worker_gets_its_own_codec(tmp_path: Path) -> None:
    async with standin() as one, standin() as other:
        records = [
            far_record(one.via, "t.far.json", codec="json"),
            far_record(other.via, "t.far.pack", codec="msgpack"),
        ]
        async with router_rig(tmp_path, *records) as here:
            for codec, worker, endpoint in (
                ("json", one, "t.far.json"),
                ("msgpack", other, "t.far.pack"),
            ):
                for own in ("msgpack", "json"):
                    task = asyncio.ensure_future(
                        here.client.call(endpoint, {"n": 1, "t": "é"}, codec=own)
                    )
                    call = await worker.next()
                    assert call.envelope.codec == codec
                    expected = b'{"n":1,"t":"\xc3\xa9"}' if codec == "json" else None
                    assert expected is None or call.body == expected
                    await call.answer({"back": [1, None]}, codec=codec)
                    assert await task == {"back": [1, None]}
            await here.idle()


async def test_what_such_a_worker_cannot_take_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    numpy = pytest.importorskip("numpy")
    async with rig(tmp_path, codec="json") as (here, worker):
        for request in (
            {"a": numpy.zeros(4)},
            {"a": numpy.zeros((200, 200))},
            {"a": b"bytes"},
            {1: 2},
        ):
            with pytest.raises(EncodeError):
                await here.client.call(GO, request)
        assert worker.calls == []
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


@pytest.mark.parametrize("size", [(32 << 10) - 1, 32 << 10, 1 << 20, 8 << 20])
async def test_bytes_of_any_size_go_there_wherever_they_stand(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    async with rig(tmp_path) as (here, worker):
        for request in (data, {"b": data, "n": 1}, [data, data], {"a": {"b": [data]}}):
            task = asyncio.ensure_future(here.client.call(GO, request))
            call = await worker.next()
            assert call.value == request
            await call.answer(size)
            assert await task == size
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


@pytest.mark.parametrize("how", ["kill", "stop", "overdue"])
async def test_memory_of_a_request_comes_back_without_an_answer(tmp_path: Path, how: str) -> None:
    async with rig(tmp_path, dial_in_timeout=5 * TICK) as (here, worker):
        async with here.client.stream(GO, bytes(1 << 20)) as items:
            first = asyncio.ensure_future(anext(items))
            call = await worker.next()
            if how == "kill":
                items.kill()
            elif how == "stop":
                items.stop()
            call.reply()
            with pytest.raises((CallHomeError, StopAsyncIteration)):
                await first
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


async def test_what_is_no_bytes_is_refused_by_its_name_and_leaves_no_memory(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    large = bytes(64 << 10)
    async with rig(tmp_path) as (here, worker):
        frame = here.runtime.memory.frames.new((64 << 10,), "uint8")
        for value, name in (
            (numpy.zeros(4), "an array"),
            (numpy.zeros(100_000), "an array"),
            (bytearray(b"x"), "a bytearray or memoryview"),
            (bytearray(large), "a bytearray or memoryview"),
            (memoryview(large), "a bytearray or memoryview"),
            (frame, "a frame"),
        ):
            with pytest.raises(EncodeError, match=rf'request\["v"\]: {name} is nothing'):
                await here.client.call(GO, {"b": large, "v": value})
        assert worker.calls == []
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


async def test_bytes_for_a_worker_with_json_are_named(tmp_path: Path) -> None:
    async with rig(tmp_path, codec="json") as (here, _):
        for size in (3, 64 << 10):
            with pytest.raises(EncodeError, match=r'request\["b"\]: bytes are no JSON'):
                await here.client.call(GO, {"b": bytes(size)})
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


async def test_bytes_over_the_limit_are_not_copied_first(tmp_path: Path) -> None:
    async with rig(tmp_path, max_message=1 << 20) as (here, worker):
        with pytest.raises(TooLarge, match=f"^{GO}: a request of 10"):
            await here.client.call(GO, {"b": bytes(1 << 20)})
        assert worker.calls == []
        await wait_until(lambda: not here.runtime.memory.statistics().slots)


async def test_conformance_32_a_request_over_the_limit(tmp_path: Path) -> None:
    async with rig(tmp_path, max_message=1 << 20) as (here, worker):
        async with begun(here, worker) as (items, _, half):
            text = f"^{GO}: a request of 10.* bytes; 1048576 may be sent .*: raise max_message"
            with pytest.raises(TooLarge, match=text):
                await here.client.call(GO, "x" * (1 << 20))
            half.end()
            assert [item async for item in items] == []
        assert len(worker.calls) == 1


async def test_metadata_that_is_too_large_is_said_to_be(tmp_path: Path) -> None:
    async with rig(tmp_path, max_message=64 << 10) as (here, worker):
        for size, text in (
            (64 << 10, rf"^{GO}: a request with 65537 bytes of metadata; 65536 .*send less metad"),
            (200 << 10, rf"^{GO}: a request's control message of .*: send less metadata$"),
        ):
            with pytest.raises(TooLarge, match=text):
                await here.client.call(GO, 1, metadata={"k": "v" * size})
        assert worker.calls == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"Server overloaded: worker at capacity", Overloaded),
        (b"Server unavailable: unknown endpoint", WorkerUnavailable),
        (b"whatever", RemoteProtocolError),
    ],
)
async def test_conformance_05_06_refusals(
    tmp_path: Path, text: bytes, kind: type[CallHomeError]
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        (await worker.next()).reply(text)
        with pytest.raises(kind, match=text.decode()[:10]):
            await task


async def test_a_reply_that_never_comes(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, ack_timeout=LONG) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        await worker.next()
        clock.turn(LONG / 2)  # no other limit strikes before
        await asyncio.sleep(2 * TICK)
        assert not task.done()
        clock.turn(LONG / 2)
        with pytest.raises(DeadlineExceeded):
            await task
        assert len(worker.calls) == 1


@pytest.mark.parametrize(
    ("words", "typed", "kind"),
    [
        ("no model", None, CallHomeError),
        (
            "full",
            {"class": "CapacityExhausted", "reason": "capacity.exhausted", "message": "full"},
            Overloaded,
        ),
        (
            "stopped",
            {"class": "Cancelled", "reason": "request.cancelled", "message": "stopped"},
            Cancelled,
        ),
        ("odd", {"error_type": "NeverHeardOf", "message": "odd"}, CallHomeError),
        ("odd", {"class": "NeverHeardOf", "message": "odd"}, CallHomeError),
    ],
)
async def test_conformance_10_error_prologues(
    tmp_path: Path, words: str, typed: Any, kind: type[CallHomeError]
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        half = await call.dial()
        half.prologue(words, typed)
        with pytest.raises(kind, match=words):
            await task


@pytest.mark.parametrize(
    "prologue",
    [
        frame(b"", b'{"error":null}'),
        frame(b'{"error":null}', b"x"),
        frame(b"no json"),
        frame(b"[]"),
        b"\xff" * 24,
    ],
)
async def test_malformed_prologues(tmp_path: Path, prologue: bytes) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        (await call.dial()).send(prologue)
        with pytest.raises((RemoteProtocolError, ConnectionLost)):
            await task


@pytest.mark.parametrize(
    "hello",
    [
        pack_handshake("4f6fbd21-0000-0000-0000-000000000000", "response"),
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"", b"body"),
    ],
)
async def test_wrong_callers_do_not_disturb_the_right_one(tmp_path: Path, hello: bytes) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        wrong = await call.dial(hello=hello)
        if not hello.startswith(b"GET"):
            assert await wrong.rest() == []
        other = await call.dial(stream_type="request")  # the other half of it
        assert await other.rest() == []
        half = await call.dial()
        half.prologue()
        twice = await call.dial()  # a subject is good for one connection
        assert await twice.rest() == []
        half.item(1)
        half.end()
        assert await task == [1]


async def test_conformance_12_a_worker_removed_before_it_called_home(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply()
        here.told.remove(here.told.records[0], "its lease ran out")
        with pytest.raises(ConnectionLost, match="its lease ran out"):
            await task
        assert await (await call.dial()).rest() == []


async def test_a_stream_that_runs_survives_the_removal(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        here.told.remove(here.told.records[0])
        half.item(2)
        half.end()
        assert [item async for item in items] == [2]


async def test_conformance_13_nothing_is_sent_to_who_was_removed_just_now(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        record = here.told.records[0]
        here.actor._ways.standard.foreign.on_instance_removed(record, "it is gone")
        with pytest.raises(ConnectionLost):
            await collected(here)
        assert worker.calls == []
        here.actor._ways.standard.foreign.on_instance_added(record)
        task = asyncio.ensure_future(collected(here))
        await (await worker.next()).answer(1)
        assert await task == [1]


async def test_b137_a_lost_acknowledgement_is_no_reason_to_send_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        for count in range(1, 21):
            task = asyncio.ensure_future(collected(here))
            call = await worker.next()
            call.cut()
            with pytest.raises(ConnectionLost) as caught:
                await task
            assert caught.value.details["sent"] == "maybe"
            assert len(worker.calls) == count


async def test_a_worker_with_a_smaller_limit_says_what_to_do(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        call.reply(b"Server unavailable: a request of 9 bytes is over the limit of 8 bytes here")
        words = f"^{GO}: a request of 9 bytes; {worker.via} takes 8 in one: raise max_message"
        with pytest.raises(TooLarge, match=words):
            await task


async def test_b134_a_refused_connection_was_never_sent(tmp_path: Path) -> None:
    async with standin() as worker:
        via = worker.via
    async with router_rig(tmp_path, far_record(via, GO)) as here:
        with pytest.raises(ConnectionLost) as caught:
            await collected(here)
        assert caught.value.details["sent"] == "no"
        assert str(caught.value).startswith(f"{GO}: {via}: ")
        assert "ECONNREFUSED" in str(caught.value)
        await here.idle()


async def test_two_endpoints_of_one_instance_are_apart(tmp_path: Path) -> None:
    async with standin() as worker:
        records = [far_record(worker.via, name) for name in ("t.far.go", "t.far.other")]
        async with router_rig(tmp_path, *records) as here:
            async with begun(here, worker) as (items, _, half):
                here.told.remove(records[1])
                half.end()
                assert [item async for item in items] == []
            await here.idle()


async def test_the_router_stops_and_all_are_told(tmp_path: Path) -> None:
    async with standin() as worker, router_rig(tmp_path, far_record(worker.via, GO)) as here:
        async with begun(here, worker) as (items, _, half):
            await here.actor.on_stop()
            with pytest.raises(ConnectionLost, match="stops"):
                await anext(items)
            assert await half.rest() == [(b'"kill"', b"")]
        here.actor.on_stop = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    """It was stopped already."""
