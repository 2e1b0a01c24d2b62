"""An engine's error items: who holds a permit hears of them first, though the stream goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Annotated, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from actors.messages import End, Faulted, Items, Report, Subscribe
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import LONG, wait_until
from transport.wire.adapter import PayloadAdapter
from transport.wire.codec import encode

ENDPOINT = "t.engine.go"
GATES: list[threading.Event] = []


def errors(request: Any) -> Iterator[Any]:
    """Two error items behind a good one, then a rest that lasts."""
    yield 1
    yield Annotated(error="no" * request, comment=["first"])
    yield Annotated(event="error", comment=["second"])


async def in_the_loop(request: Any) -> AsyncIterator[Any]:
    for item in errors(request):
        yield item
    await asyncio.to_thread(GATES[-1].wait, LONG)
    yield 2


def in_a_thread(request: Any) -> Iterator[Any]:
    yield from errors(request)
    GATES[-1].wait()
    yield 2


class Bytes:
    """An adapter to which "bad" is an error."""

    def decode(self, data: bytes) -> Any:
        return data

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        return str(item).encode(), item == "bad", False


async def bad(request: Any) -> AsyncIterator[Any]:
    yield "good"
    yield "bad"


def bad_in_a_thread(request: Any) -> Iterator[Any]:
    yield "good"
    yield "bad"


async def newest(home: RawHome, actor: EngineActor) -> Report:
    before = len(home.got(Report))
    home.send(actor.address, Subscribe(home.address), control=True)
    await wait_until(lambda: len(home.got(Report)) > before)
    return home.got(Report)[-1]


def ended(home: RawHome) -> list[list[Any]]:
    """Streams that reports have named as settled."""
    return [each for report in home.got(Report) for each in report.ended]


def actor_of(target: Any, adapter: PayloadAdapter | None = None) -> EngineActor:
    return EngineActor(target, {}, ENDPOINT, 4, 4, adapter)


def spec(tmp_path: Path) -> dict[str, Any]:
    return {
        "run": str(tmp_path), "name": "engine", "role": "engine", "settings": Settings().to_dict(),
    }  # fmt: skip


@pytest.mark.parametrize("target", [in_the_loop, in_a_thread])
async def test_conformance_29_an_error_item_settles_the_stream_for_its_router(
    tmp_path: Path, target: Any
) -> None:
    GATES.append(threading.Event())
    actor = actor_of(target)
    with raw_home(str(tmp_path)) as home:
        async with running(spec(tmp_path), actor):  # ends before the home, for whom it would linger
            # Small under each codec, and large, which is another way through the pump.
            for stream, (size, codec) in enumerate(
                [(1, "msgpack"), (1, "json"), (9000, "msgpack")]
            ):
                home.open(
                    actor.address, stream, ENDPOINT, None, codec=codec, router=home.address,
                    payload=encode(size, codec=codec),
                )  # fmt: skip
            await wait_until(lambda: len(ended(home)) == 3)
            own = home.address.incarnation
            assert sorted(ended(home)) == [[own, stream, "engine.item"] for stream in range(3)]
            report = await newest(home, actor)
            assert (report.in_flight, report.opened, report.settled) == (3, 3, 3)
            assert home.got(Faulted) == []
            GATES[-1].set()
            for stream in range(3):
                assert (await home.ended(stream)).error is None
            report = await newest(home, actor)
            assert (report.in_flight, report.opened, report.settled) == (0, 3, 3)
            assert len(ended(home)) == 3
            assert not actor._faulted


@pytest.mark.parametrize("target", [in_the_loop, in_a_thread])
async def test_without_a_router_the_home_is_told_before_the_item_comes(
    tmp_path: Path, target: Any
) -> None:
    GATES.append(threading.Event())
    actor = actor_of(target)
    with raw_home(str(tmp_path)) as home:
        async with running(spec(tmp_path), actor):  # ends before the home, for whom it would linger
            home.open(actor.address, 7, ENDPOINT, 1)
            await wait_until(lambda: sum(len(each.payloads) for each in home.got(Items)) == 3)
            kinds = [type(each) for each in home.of(7)]
            assert kinds.count(Faulted) == 1, "once a stream"
            assert kinds.index(Faulted) <= 1
            assert kinds[-1] is Items
            GATES[-1].set()
            await home.ended(7)


@pytest.mark.parametrize("target", [bad, bad_in_a_thread])
async def test_what_an_adapter_calls_an_error_is_one(tmp_path: Path, target: Any) -> None:
    actor = actor_of(target, Bytes())
    with raw_home(str(tmp_path)) as home:
        async with running(spec(tmp_path), actor):  # ends before the home, for whom it would linger
            home.open(actor.address, 7, ENDPOINT, None, codec="plain.json", native=False)
            end = await home.ended(7)
            assert end.error is not None
            assert end.error[2]["type"] == "error item"
            came = home.of(7)
            assert isinstance(came[-1], End)
            before = came[: [type(each) for each in came].index(Faulted)]
            assert all(isinstance(each, Items) and b"bad" not in each.payloads for each in before)
