"""Dynamo's requesters at an ingress: what they get, byte by byte, and what their engines see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from tests.clock import at_once, steady
from tests.ingress.engines import Held, echo
from tests.ingress.rig import Rig, rig
from tests.ingress.standin import Half, control, pack, read_answer
from tests.waiting import wait_until

CODECS = ["msgpack", "json"]


def held(at: Rig) -> Held:
    """The first engine, a Held."""
    engine = at.engines[0].handler.engine
    assert isinstance(engine, Held)
    return engine


async def items_of(half: Half, count: int) -> None:
    """Read the prologue and some items."""
    for _ in range(count + 1):
        assert await half.frame() is not None


@pytest.mark.parametrize("codec", CODECS)
async def test_conformance_09_three_items_unary(tmp_path: Path, codec: str) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        asked = await at.requester.ask(path, {"n": 3, "text": "äh"}, codec=codec)
        assert asked.reply == b""
        answer = await asked.answer()
        assert answer.prologue == {"error": None}
        assert answer.data == [{"i": index, "text": "äh"} for index in range(3)]
        assert answer.final
        assert answer.sentinel
        assert (await asked.half()).hello["stream_type"] == "response"
        await at.idle()
        assert at.errors == {}
        assert at.cancelled == 0


async def test_conformance_08_no_codec_means_json_both_ways(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        asked = await at.requester.ask(
            path, {"n": 1, "text": "x"}, codec="json", payload_codec=None
        )
        assert (await asked.answer()).data == [{"i": 0, "text": "x"}]


@pytest.mark.parametrize("codec", CODECS)
async def test_a_stream_without_items_ends_with_both_words(tmp_path: Path, codec: str) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        answer = await (await at.requester.ask(path, {"n": 0, "text": ""}, codec=codec)).answer()
        assert answer == ({"error": None}, [], True, True)


async def raises_at_once(request: Any, ctx: Context) -> AsyncIterator[Any]:
    raise ValueError("not today")
    yield


async def raises_later(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield {"one": 1}
    yield {"two": 2}
    raise RuntimeError("broken inside")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("engine", "count"), [(raises_at_once, 0), (raises_later, 2)])
async def test_b127_a_handler_that_raises_is_an_item_and_a_clean_end(
    tmp_path: Path, codec: str, engine: Any, count: int
) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(engine), {}, codec=codec)
        answer = await asked.answer()
        assert answer.prologue == {"error": None}
        assert len(answer.items) == count + 1
        told = answer.items[-1]
        assert told["event"] == "error"
        assert ("not today" if count == 0 else "broken inside") in told["error"]["message"]
        assert answer.final
        assert answer.sentinel
        await at.idle()
        assert at.errors == {"generate": 1}


async def unencodable(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield {"fine": 1}
    yield {"bad": object()}
    yield {"never": 1}


@pytest.mark.parametrize("codec", CODECS)
async def test_conformance_15_what_cannot_be_encoded_is_an_error_item(
    tmp_path: Path, codec: str
) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(unencodable), {}, codec=codec)
        answer = await asked.answer()
        assert answer.items[0] == {"data": {"fine": 1}}
        assert answer.items[1]["event"] == "error"
        assert "bad" in answer.items[1]["error"]["message"]
        assert len(answer.items) == 2
        assert answer.final
        await at.idle()
        assert at.errors == {"serialization": 1}


class Stubborn:
    """An adapter that encodes the first item, and not the second, nor its error."""

    def decode(self, data: bytes) -> Any:
        return data

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        if item == "second":
            raise ValueError("no words for it")
        return pack({"data": item}, "msgpack"), False, False


async def two_words(request: Any, ctx: Context) -> AsyncIterator[Any]:
    yield "first"
    yield "second"


async def test_conformance_16_an_adapter_without_an_error_truncates(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(two_words, adapter=Stubborn())
        answer = await (await at.requester.ask(path, {})).answer()
        assert answer.data == ["first"]
        assert not answer.final
        assert not answer.sentinel
        await at.idle()
        assert at.errors == {"serialization": 1}


async def one_dict(request: Any, ctx: Context) -> AsyncIterator[Any]:
    item = {"i": 0}
    for index in range(100):
        item["i"] = index
        yield item


@pytest.mark.parametrize("codec", CODECS)
async def test_conformance_17_a_dict_that_is_yielded_again(tmp_path: Path, codec: str) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(one_dict), {}, codec=codec)
        assert (await asked.answer()).data == [{"i": index} for index in range(100)]


async def test_conformance_19_a_requester_that_leaves_after_two_items(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(Held), {"before": 2})
        half = await asked.half()
        await items_of(half, 2)
        half.close()
        await at_once(lambda: held(at).ended == ["killed"], "that it has left")
        await at.idle()
        assert at.cancelled == 1
        assert at.errors == {}


async def test_conformance_20a_a_stop_lets_three_more_items_through(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(Held), {"before": 1, "after": 3})
        half = await asked.half()
        await items_of(half, 1)
        half.send(control("stop"))
        await half.rest()
        answer = read_answer(half.frames, "msgpack")
        assert answer.data == [{"before": 0}, *({"after": index} for index in range(3))]
        assert answer.final
        assert answer.sentinel
        assert held(at).ended == ["stopped"]
        await at.idle()
        assert at.cancelled == 1
        assert at.errors == {}


@pytest.mark.parametrize("words", [("stop", "kill"), ("kill", "stop")])
async def test_conformance_21_a_kill_is_not_undone(tmp_path: Path, words: tuple[str, str]) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(slow_to_stop), {})
        half = await asked.half()
        await items_of(half, 1)
        for word in words:
            half.send(control(word))
        await half.rest()
        answer = read_answer(half.frames, "msgpack")
        assert not answer.final
        assert not answer.sentinel
        await at.idle()
        assert STATES.pop() == "killed"
        assert at.cancelled == 1


STATES: list[str] = []


async def slow_to_stop(request: Any, ctx: Context) -> AsyncIterator[Any]:
    try:
        yield {"begun": True}
        await asyncio.Event().wait()
    finally:
        STATES.append("killed" if ctx.killed else "not killed")


@pytest.mark.parametrize(
    "garbage",
    [control("sentinel"), control("what"), b"\xff" * 40, pack(1, "json") * 30],
    ids=["sentinel", "word", "length", "text"],
)
async def test_garbage_on_a_response_socket_ends_that_stream_alone(
    tmp_path: Path, garbage: bytes
) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        first, second = [await at.requester.ask(path, {"before": 1, "after": 1}) for _ in "ab"]
        half = await first.half()
        await items_of(half, 1)
        half.send(garbage)
        await half.rest()
        assert not read_answer(half.frames, "msgpack").final
        await wait_until(lambda: held(at).ended == ["killed"])
        held(at).gate.set()
        answer = await second.answer()
        assert answer.final
        assert len(answer.items) == 2
        await at.idle()
        assert at.cancelled == 1


async def test_half_a_control_frame_cut_at_every_byte(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        whole = control("stop")
        for size in range(1, len(whole)):
            half = await (await at.requester.ask(path, {})).half()
            await half.frame()
            half.send(whole[:size])
            half.close()
            await wait_until(lambda size=size: held(at).ended == ["killed"] * size)
        await at.idle()
        assert at.cancelled == len(whole) - 1


async def test_a_slow_reader_stops_its_own_engine_only(tmp_path: Path) -> None:
    """Conformance of back-pressure: the engine waits for credit, which comes with the socket."""
    async with rig(tmp_path, window_items=8, window_bytes=1 << 20) as at:
        path = await at.engine(chatter)
        CHATTED.clear()
        slow = await (await at.requester.ask(path, {"id": "slow", "n": 400})).half()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wait_until(lambda: CHATTED.get("slow", 0) > 8)
        stalled = await steady(lambda: CHATTED["slow"])
        assert stalled < 400
        answer = await (await at.requester.ask(path, {"id": "quick", "n": 40})).answer()
        assert len(answer.items) == 40
        assert CHATTED["slow"] == stalled
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while (each := await slow.frame()) is not None and each[0] != b'"sentinel"':
            pass
        slow.close()
        assert len(read_answer(slow.frames, "msgpack").items) == 400
        await at.idle()


CHATTED: dict[str, int] = {}


async def chatter(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(request["n"]):
        CHATTED[request["id"]] = index
        yield "x" * 60_000


async def test_b127_an_engine_that_stops_leaves_no_clean_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        asked = await at.requester.ask(await at.engine(Held), {"before": 1})
        half = await asked.half()
        await items_of(half, 1)
        at.engines[0]._serving.shut("the engine stops")
        await half.rest()
        answer = read_answer(half.frames, "msgpack")
        assert not answer.final
        assert not answer.sentinel
        await at.idle()


async def test_metadata_and_id_reach_the_handler_and_ours_do_not(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    async def look(request: Any, ctx: Context) -> AsyncIterator[Any]:
        seen.append((ctx.id, dict(ctx.metadata)))
        yield 1

    async with rig(tmp_path) as at:
        metadata = {"tenant": "a", "x-callhome-window": "1,1", "x-callhome-remaining": "0"}
        asked = await at.requester.ask(await at.engine(look), 1, metadata=metadata)
        assert (await asked.answer()).final
        assert seen[0][0].startswith("r-")
        assert seen[0][1] == {"tenant": "a"}


async def test_the_time_of_a_request_on_its_way_is_observed(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        before = time.time_ns() - 2_000_000_000
        for sent in [str(before), str(time.time_ns() + 10**12), "soon", None]:
            headers = {} if sent is None else {"x-frontend-send-ts-ns": sent}
            await (await at.requester.ask(path, {"n": 0}, headers=headers)).answer()
        transit = at.ingress.transit.seen()
        assert transit["count"] == 2
        assert 2 <= transit["most"] < 60
        assert transit["mean"] == pytest.approx(transit["most"] / 2)
