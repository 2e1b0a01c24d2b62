"""A stream whose worker is none of ours: its codec is told by the Accept, its errors are typed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Annotated
from actors.config import Settings
from actors.errors import (
    CallHomeError,
    Cancelled,
    DecodeError,
    EncodeError,
    EngineError,
    Overloaded,
    RemoteProtocolError,
)
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Accept, End, Feed, FeedEnd, Items, Kill, Open
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import LONG, wait_until
from transport.shm.frames import Frame

TARGET = "t.foreign.go"


class Foreign:
    """A worker made by hand, as a router shows one that speaks another tongue."""

    def __init__(self, raw: RawHome, caller: Caller) -> None:
        self.raw = raw
        self.caller = caller
        self.open: Open
        self._seq = self._taken = 0

    async def accept(self, codec: str = "plain.json", feed: int = 0) -> None:
        """Wait for the next Open and take it."""
        await wait_until(lambda: len(self.raw.got(Open)) > self._taken, what="an Open")
        self._taken += 1
        self.open = self.raw.got(Open)[-1]
        self._seq = 0
        credit = (feed, 1 << 20 if feed else 0)
        self.send(Accept(self.open.stream, self.raw.address, *credit, codec))

    def send(self, message: Any) -> None:
        self.raw.send(self.open.home, message)

    def items(self, *payloads: bytes) -> None:
        self.send(Items(self.open.stream, self._seq, list(payloads)))
        self._seq += len(payloads)

    def end(self) -> None:
        self.send(End(self.open.stream, self._seq, None))


@contextmanager
def foreign(run: Path, settings: Settings | None = None) -> Iterator[Foreign]:
    with raw_home(str(run)) as raw:
        runtime = Runtime(run=str(run), name="caller", settings=settings)
        try:
            yield Foreign(raw, Caller(runtime, lambda target: raw.address))
        finally:
            runtime.close()  # before the worker, for whom it would linger


async def test_items_are_read_in_the_codec_of_the_accept(tmp_path: Path) -> None:
    with foreign(tmp_path) as worker:
        items: list[Any] = []

        async def take(annotated: bool) -> None:
            async with worker.caller.stream(TARGET, 1, annotated=annotated) as answers:
                items.extend([item async for item in answers])

        for annotated in (False, True):
            taking = asyncio.create_task(take(annotated))
            await worker.accept()
            assert worker.open.codec == "msgpack"
            worker.items(b'{"data":{"a":[1]}}', b'{"data":null}', b'{"data":2,"id":"7"}')
            worker.end()
            await taking
        assert items[:3] == [{"a": [1]}, None, 2]
        assert items[3:] == [Annotated({"a": [1]}), Annotated(None), Annotated(2, "7")]


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("plain.msgpack", b"\x81\xa4data\x91\x01"),
        ("plain.json", b'{"data":[1]}'),
        ("json", b"[1]"),
        ("", b"\x91\x01"),
    ],
)
async def test_a_call_is_answered_in_any_codec(tmp_path: Path, codec: str, payload: bytes) -> None:
    with foreign(tmp_path) as worker:
        calling = asyncio.create_task(worker.caller.call(TARGET, 1, timeout=LONG))
        await worker.accept(codec)
        worker.items(payload)
        worker.end()
        assert await calling == [1]


async def test_a_codec_that_is_none_ends_the_stream(tmp_path: Path) -> None:
    with foreign(tmp_path) as worker:
        calling = asyncio.create_task(worker.caller.call(TARGET, 1, timeout=LONG))
        await worker.accept("yaml")
        with pytest.raises(RemoteProtocolError, match="its items come in codec 'yaml'"):
            await calling
        await wait_until(lambda: worker.raw.got(Kill))


async def test_request_items_go_in_the_codec_of_the_accept(tmp_path: Path) -> None:
    with foreign(tmp_path) as worker:
        async with worker.caller.open(TARGET, timeout=LONG) as stream:
            sending = asyncio.create_task(stream.send({"a": (1, "x")}))
            await worker.accept(feed=64)
            await sending
            frame = worker.caller.frames.new(50_000, "u1")
            for bad in (np.zeros(3), {"f": frame}, {1: 2}, b"x"):
                with pytest.raises(EncodeError, match="request"):
                    await stream.send(bad)
            frame.release()  # it is ours still
            await stream.send("last")
            await stream.end()
            await wait_until(lambda: worker.raw.got(FeedEnd))
            payloads = [data for m in worker.raw.got(Feed) for data in m.payloads]
            assert [json.loads(data) for data in payloads] == [{"a": [1, "x"]}, "last"]
            assert worker.raw.got(FeedEnd)[0].total == 2
            worker.items(b'{"data":"heard"}')
            worker.end()
            assert await stream.recv() == "heard"
            with pytest.raises(EOFError):
                await stream.recv()
        assert not worker.caller.runtime.memory.statistics().slots


def _error(**fields: Any) -> bytes:
    return json.dumps({"event": "error", "error": fields}).encode()


ERRORS: list[tuple[dict[str, Any], type[CallHomeError], str]] = [
    (
        {"class": "Internal", "reason": "backend.unknown", "message": "KeyError: 'k'"},
        EngineError,
        "'k'",
    ),
    ({"class": "CapacityExhausted", "message": "full"}, Overloaded, "full"),
    ({"class": "Cancelled", "message": "enough"}, Cancelled, "enough"),
]


@pytest.mark.parametrize(("fields", "kind", "says"), ERRORS)
async def test_an_error_item_raises_what_it_stands_for_behind_the_items_before_it(
    tmp_path: Path, fields: dict[str, Any], kind: type[CallHomeError], says: str
) -> None:
    with foreign(tmp_path, Settings(retry_limit=0)) as worker:
        stream = worker.caller.stream(TARGET, 1)
        first = asyncio.create_task(anext(stream))
        await worker.accept()
        worker.items(b'{"data":1}', _error(**fields), b'{"data":2}')
        worker.end()
        assert await first == 1
        with pytest.raises(kind, match=says) as caught:
            await anext(stream)
        assert type(caught.value) is kind
        for _ in range(2):  # and nothing behind it
            with pytest.raises(kind, match=says):
                await anext(stream)

        calling = asyncio.create_task(worker.caller.call(TARGET, 1, timeout=LONG))
        await worker.accept()
        worker.items(_error(**fields))
        worker.end()
        with pytest.raises(kind, match=says):
            await calling


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_worker_that_says_at_once_that_it_is_full_is_left_for_another(
    tmp_path: Path, how: str
) -> None:
    with foreign(tmp_path) as worker:
        if how == "call":
            asking = asyncio.create_task(worker.caller.call(TARGET, 1, timeout=LONG))
        else:
            asking = asyncio.create_task(anext(worker.caller.stream(TARGET, 1, timeout=LONG)))
        await worker.accept()
        worker.items(_error(**{"class": "CapacityExhausted", "message": "full"}))
        worker.end()
        await worker.accept()
        worker.items(b'{"data":1}')
        worker.end()
        assert await asking == 1


async def test_an_error_item_is_an_item_for_who_wants_them_annotated(tmp_path: Path) -> None:
    with foreign(tmp_path) as worker:
        stream = worker.caller.stream(TARGET, 1, annotated=True)
        first = asyncio.create_task(anext(stream))
        await worker.accept()
        worker.items(_error(message="no"))
        worker.end()
        item = await first
        assert (item.is_error, item.error) == (True, {"message": "no"})
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("payload", [b"", b"1", b"[1]", b'{"data":1', b'{"id":7}', b'{"data":NaN}'])
async def test_an_item_that_is_none_breaks_its_stream(tmp_path: Path, payload: bytes) -> None:
    with foreign(tmp_path) as worker:
        stream = worker.caller.stream(TARGET, 1)
        first = asyncio.create_task(anext(stream))
        await worker.accept()
        worker.items(b'{"data":1}', payload)
        assert await first == 1
        with pytest.raises(DecodeError):
            await anext(stream)
        await wait_until(lambda: worker.raw.got(Kill))


async def test_a_frame_in_a_request_needs_no_codec_of_the_worker(tmp_path: Path) -> None:
    # The router refuses it, as it alone knows the worker; the frame comes back with the End.
    with foreign(tmp_path) as worker:
        frame: Frame = worker.caller.frames.new(50_000, "u1")
        calling = asyncio.create_task(worker.caller.call(TARGET, frame, timeout=LONG))
        await wait_until(lambda: worker.raw.got(Open))
        opened = worker.raw.got(Open)[0]
        error = ["payload.encode", "a Dynamo worker cannot take frames", {}]
        worker.raw.send(opened.home, End(opened.stream, 0, error))
        with pytest.raises(EncodeError, match="cannot take frames"):
            await calling
        assert not worker.caller.runtime.memory.statistics().slots
