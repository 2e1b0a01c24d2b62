"""Streams in a plain codec at an engine: what peers that are not ours send, and get to read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Annotated, Context, RequestStream, bidirectional
from actors.errors import DecodeError
from actors.messages import Accept, Feed, FeedEnd, Items
from tests.engine.plain import both, read, rig, write
from tests.waiting import wait_until


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for item in request:
        yield item


def echo_in_a_thread(request: Any) -> Iterator[Any]:
    yield from request


@bidirectional
async def echo_each(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
    async for item in requests:
        yield item


@both
@pytest.mark.parametrize("handler", [echo, echo_in_a_thread])
async def test_conformance_09_unary_items_are_annotated_maps(
    tmp_path: Path, codec: str, handler: Any
) -> None:
    sent = [{"a": [1, 2.5, None, True, "ä"]}, "text", None]
    async with rig(tmp_path, handler) as at:
        items, error = await at.run(codec, sent)
        assert error is None
        assert items == [{"data": item} for item in sent]


@both
async def test_conformance_09_request_items_are_bare(tmp_path: Path, codec: str) -> None:
    sent = [{"a": 1}, [1, [2]], "x"]
    async with rig(tmp_path, echo_each) as at:
        stream = at.open(codec, b"", many=True)
        await wait_until(lambda: at.home.got(Accept, stream))
        payloads = [write(item, codec) for item in sent]
        at.home.send(at.actor.address, Feed(stream, 0, payloads))
        at.home.send(at.actor.address, FeedEnd(stream, 3))
        found, end = await at.ended(stream)
        assert end.error is None
        assert [read(data, codec) for data in found] == [{"data": item} for item in sent]


@both
@pytest.mark.parametrize("count", [2, 3])
async def test_a_request_item_that_is_none_is_never_read_over(
    tmp_path: Path, codec: str, count: int
) -> None:
    ends: list[str] = []

    @bidirectional
    async def careless(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        try:
            while True:
                try:
                    yield await anext(requests)
                except DecodeError:
                    ends.append("decode")
                except StopAsyncIteration:
                    ends.append("whole")
                    return
        finally:
            ends.append(ctx.reason[:4])

    async with rig(tmp_path, careless) as at:
        stream = at.open(codec, b"", many=True)
        await wait_until(lambda: at.home.got(Accept, stream))
        payloads = [write(1, codec), b"\xc1", write(2, codec)][:count]
        at.home.send(at.actor.address, Feed(stream, 0, payloads))
        at.home.send(at.actor.address, FeedEnd(stream, count))
        payloads, end = await at.ended(stream)
        assert [read(data, codec) for data in payloads] in ([], [{"data": 1}])
        assert end.error is not None
        assert end.error[0] == "payload.decode"
        await wait_until(lambda: len(ends) == 2)
        assert ends[0] == "decode"  # and not "whole", though the request had ended


async def test_bytes_survive_under_msgpack_and_tuples_are_lists(tmp_path: Path) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        assert request == b"\0\xff"
        yield {"b": request, "t": (1, (2,))}

    async with rig(tmp_path, give) as at:
        items, error = await at.run("plain.msgpack", b"\0\xff")
        assert error is None
        assert items == [{"data": {"b": b"\0\xff", "t": [1, [2]]}}]


@both
async def test_conformance_18_a_field_that_is_none_is_missing(tmp_path: Path, codec: str) -> None:
    async def give(request: Any) -> AsyncIterator[Any]:
        yield Annotated()
        yield Annotated(data=1, id=None, event=None, comment=None, error=None)
        yield Annotated(id="7", event="tick", comment=["a", "b"])
        yield Annotated(data={"x": None}, event="error", error={"message": "no"})

    async with rig(tmp_path, give) as at:
        items, error = await at.run(codec)
        assert error is None
        assert items == [
            {},
            {"data": 1},
            {"id": "7", "event": "tick", "comment": ["a", "b"]},
            {"data": {"x": None}, "event": "error", "error": {"message": "no"}},
        ]


async def mutated(request: Any) -> AsyncIterator[Any]:
    item: dict[str, Any] = {"n": 0, "l": []}
    for number in range(100):
        item["n"] = number
        item["l"].append(number)
        yield item


def mutated_in_a_thread(request: Any) -> Iterator[Any]:
    item: dict[str, Any] = {"n": 0, "l": []}
    for number in range(100):
        item["n"] = number
        item["l"].append(number)
        yield item


@both
@pytest.mark.parametrize("handler", [mutated, mutated_in_a_thread])
async def test_conformance_17_an_object_that_is_yielded_again_is_another_item(
    tmp_path: Path, codec: str, handler: Any
) -> None:
    async with rig(tmp_path, handler) as at:
        items, error = await at.run(codec)
        assert error is None
        assert items == [{"data": {"n": n, "l": [*range(n + 1)]}} for n in range(100)]


async def with_context(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield ctx.metadata


async def without_context(request: Any) -> AsyncIterator[Any]:
    yield {"who": "me"}


@pytest.mark.parametrize("handler", [with_context, without_context])
async def test_conformance_38_with_and_without_context(tmp_path: Path, handler: Any) -> None:
    async with rig(tmp_path, handler) as at:
        stream = at.open("plain.json", b"1", metadata={"who": "me"})
        payloads, end = await at.ended(stream)
        assert (payloads, end.error) == ([b'{"data":{"who":"me"}}'], None)


async def test_conformance_27_a_second_reader_of_the_requests_gets_an_error(
    tmp_path: Path,
) -> None:
    @bidirectional
    async def twice(requests: RequestStream[Any]) -> AsyncIterator[Any]:
        first = asyncio.create_task(anext(requests))
        await asyncio.sleep(0)
        try:
            await anext(requests)
        except Exception as error:
            yield type(error).__name__
        yield await first

    async with rig(tmp_path, twice) as at:
        stream = at.open("plain.json", b"", many=True)
        await wait_until(lambda: at.home.got(Items, stream))
        at.home.send(at.actor.address, Feed(stream, 0, [b'"whole"']))
        payloads, end = await at.ended(stream)
        assert payloads == [b'{"data":"LocalProtocolError"}', b'{"data":"whole"}']
        assert end.error is None


# -------------------------------------------------------------------------------- payload adapters


class Own:
    """The adapter's bytes are the whole map of an item; ``!`` is an error, ``?`` is beyond it."""

    def decode(self, data: bytes) -> Any:
        return data.decode()

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        if item == "?":
            raise ValueError("no words for it")
        if item == "!":
            return b'{"event":"error","error":{"message":"own"}}', True, False
        return f'{{"data":"<{item}>"}}'.encode(), False, item == "."


async def letters(request: str) -> AsyncIterator[str]:
    for each in request:
        yield each


def letters_in_a_thread(request: str) -> Iterator[str]:
    yield from request


threads_too = pytest.mark.parametrize("handler", [letters, letters_in_a_thread])


@threads_too
async def test_an_adapter_alone_decides_what_its_bytes_are(tmp_path: Path, handler: Any) -> None:
    async with rig(tmp_path, handler, Own()) as at:
        payloads, end = await at.ended(at.open("plain.json", b"a.b"))
        assert payloads == [b'{"data":"<a>"}', b'{"data":"<.>"}']
        assert end.error is None
        payloads, end = await at.ended(at.open("plain.json", b"a!b"))
        assert payloads == [b'{"data":"<a>"}', b'{"event":"error","error":{"message":"own"}}']
        assert end.error is not None
        assert (end.error[0], end.error[2]["type"]) == ("engine", "error item")


@threads_too
async def test_conformance_16_an_adapter_without_words_is_told_apart(
    tmp_path: Path, handler: Any
) -> None:
    async with rig(tmp_path, handler, Own()) as at:
        payloads, end = await at.ended(at.open("plain.json", b"a?b"))
        assert payloads == [b'{"data":"<a>"}']
        assert end.error is not None
        code, text, details = end.error
        assert (code, details["adapter"]) == ("payload.encode", "raised")
        assert text == "the payload adapter of t.plain.go raised ValueError: no words for it"
        # Among our own it stays what the handler's side raised.
        payloads, end = await at.ended(at.open("msgpack", b"a?b"))
        assert end.error is not None
        assert end.error[0] == "engine"
