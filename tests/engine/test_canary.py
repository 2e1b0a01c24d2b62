"""Conformance 36: an engine that does not answer its canary is not ready, and is again when it
does. Engines run in this process; what they say is read from the file of their signs of life.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from tests.engine.canaries import (
    LIMIT,
    SHAPES,
    WAIT,
    Behaviour,
    answer,
    answers,
    generates,
    in_a_thread,
    reads,
    rig,
)
from tests.engine.canaries import clean as clean
from tests.waiting import wait_until


@pytest.mark.parametrize("handler", SHAPES)
async def test_c36_ready_not_ready_ready(tmp_path: Path, handler: Callable[..., Any]) -> None:
    """Conformance 36, for engines of all four shapes and all ways not to answer."""
    async with rig(tmp_path, handler) as at:
        await at.until("well")
        await at.sent()
        await at.until("well")
        assert Behaviour.asked[0] == ("canary", "1")
        faults = {
            "raise": "its canary raised ValueError: out of order",
            "error": "its canary got an error item",
            "odd": "its canary raised transport.errors.EncodeError: ",
            "nothing": "its canary got no item, and no error",
            "hang": "its canary got no item within 0.3 s",
        }
        if handler is answers:
            del faults["nothing"]
        since = 0.0
        for how, why in faults.items():
            Behaviour.how = how
            found = await at.until("unready", why)
            since = since or found.since
            assert found.since == since, "it has not been ready meanwhile"
        Behaviour.how = "well"
        Behaviour.release.set()
        await at.until("well")
        Behaviour.how = "frame"
        await at.sent(2)
        await at.until("well")
        assert at.actor.canary.failed >= len(faults)
        assert at.actor.counters.requests == 0, "no canary counts as a request"
        memory = at.runtime.memory
        await wait_until(lambda: not memory.statistics().slots, what="its frames are given back")
    assert Behaviour.now == 0


async def test_c36_an_error_item_says_what(tmp_path: Path) -> None:
    Behaviour.how = "error"
    async with rig(tmp_path, generates) as at:
        await at.until("unready", "its canary got an error item: no more tokens")


class Adapter:
    """Reads and writes JSON text."""

    def decode(self, data: bytes) -> Any:
        if Behaviour.how == "deaf":
            raise ValueError("cannot read")
        return ["adapted", json.loads(data)]

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        return json.dumps(item).encode(), Behaviour.how == "marked", False


@pytest.mark.parametrize("handler", [in_a_thread, reads])
async def test_c36_an_adapter_is_on_the_way(tmp_path: Path, handler: Callable[..., Any]) -> None:
    async with rig(tmp_path, handler, {"a": 1}, adapter=Adapter(), codec="json") as at:
        await at.sent()
        await wait_until(lambda: Behaviour.asked)
        assert Behaviour.asked[0][0] == ["adapted", {"a": 1}]
        await at.until("well")
        Behaviour.how = "deaf"
        await at.until("unready", "cannot read")
        Behaviour.how = "marked"
        await at.until("unready", "its canary got an error item")
        Behaviour.how = "well"
        await at.until("well")


async def test_c36_real_items_are_as_good_as_a_canary_and_error_items_are_not(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, generates, capacity=500, canary_wait=0.8) as at:
        canary = at.actor.canary
        await wait_until(lambda: canary.sent and not canary.held)
        canary._wait, canary._due = 600.0, canary._due + 300.0  # it goes on looking as often
        before = canary.sent
        for _ in range(3):
            due = canary._due
            at.open("real")
            await wait_until(lambda due=due: canary._due > due, what="an item puts it off")
        assert canary.sent == before
        Behaviour.how, canary._due = "error", 0.0

        def sent() -> bool:
            at.open("real")
            return canary.sent > before

        await wait_until(sent, what="a canary, for all that come are error items")
        await at.until("unready")
        Behaviour.how = "well"
        canary._due += 1000.0  # so that it is no canary that finds it well
        at.open("real")
        await at.until("well")


async def test_c36_a_canary_without_answer_is_nothing_where_real_streams_have_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, generates, canary_timeout=4 * LIMIT) as at:
        await wait_until(lambda: at.actor.canary.sent and not at.actor.canary.held)
        Behaviour.how = "hang"
        await wait_until(lambda: at.actor.canary.held)
        good = at.actor.good_items
        monkeypatch.setattr(at.actor, "good_items", lambda: good() + 1)
        await wait_until(lambda: not at.actor.canary.held, what="its limit is over")
        assert at.actor.canary.failed == 0
        assert at.verdict().well


async def test_c36_who_does_not_answer_is_tried_again_more_and_more_seldom(tmp_path: Path) -> None:
    Behaviour.how = "raise"
    async with rig(tmp_path, generates, canary_wait=600.0) as at:
        at.actor.canary._pause = 0.02
        pauses = []
        for failed in range(1, 4):
            await wait_until(lambda failed=failed: at.actor.canary.failed == failed, 20)
            pauses.append(at.actor.canary._pause)
            at.actor.canary._due = 0.0
        assert pauses[1:] == [2 * pauses[0], 4 * pauses[0]]


async def test_c36_where_all_places_are_taken_no_canary_is_sent_and_the_verdict_stays(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, generates, capacity=1) as at:
        await at.sent()
        Behaviour.how = "hang"
        await at.until("unready")
        Behaviour.how = "well"
        await at.until("well")
        stream = at.open("real")
        await wait_until(lambda: at.actor._in_flight == 1)
        Behaviour.how = "hang"
        await asyncio.sleep(3 * WAIT)
        before = at.actor.canary.sent
        await asyncio.sleep(4 * WAIT)
        assert at.actor.canary.sent == before
        assert at.verdict().well, "a busy worker is not a dead one"
        at.kill(stream)
        await at.until("unready")


async def test_c36_a_canary_has_a_place_and_a_stream_waits_for_it(tmp_path: Path) -> None:
    """The engine is made for one stream at a time, and has no queue."""
    Behaviour.how = "hang"
    brief: dict[str, Any] = {
        "canary_timeout": 30.0,
        "start_timeout": 1.0,
    }  # half of which the first is waited for
    async with rig(tmp_path, generates, capacity=1, **brief) as at:
        await wait_until(lambda: Behaviour.now == 1)
        first, second = at.open("real"), at.open("real")
        end = await at.home.ended(second)
        assert end.error is not None
        assert end.error[0] == "overloaded"
        assert Behaviour.most == 1
        Behaviour.how = "well"
        await wait_until(lambda: ("real", "") in Behaviour.asked)
        assert Behaviour.most == 1
        at.kill(first)


async def test_c36_a_handler_that_hangs_in_its_thread_keeps_its_place_and_gets_no_other(
    tmp_path: Path,
) -> None:
    Behaviour.how = "hang"
    async with rig(tmp_path, in_a_thread) as at:
        await at.until("unready", "no item within 0.3 s; its handler has not ended since")
        await asyncio.sleep(5 * WAIT)
        assert (at.actor.canary.sent, at.actor.canary.failed) == (1, 1)
        assert at.actor.canary.stuck
        assert at.actor.canary.held == Behaviour.now == 1
        Behaviour.how = "well"
        stream = at.open("real")  # another place is free
        assert (await at.home.ended(stream)).error is None
        await at.until("well")
        Behaviour.release.set()
        await at.sent()
        await at.until("well")
        assert Behaviour.most == 2


async def blocks(request: Any, ctx: Context) -> AsyncIterator[Any]:
    if request == "canary":
        Behaviour.now += 1
        for _ in range(5):
            await asyncio.sleep(0.01)
    else:
        time.sleep(3 * LIMIT)  # noqa: ASYNC251 - the fault that is tried
        raise ValueError("and no item shows that it works")
    yield answer(request, ctx)


async def test_b144_a_loop_that_another_stream_blocks_is_no_fault_of_a_canary(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, blocks) as at:
        await wait_until(lambda: at.actor.canary.sent == 2 and Behaviour.now == 2)
        stream = at.open("real")  # read while the canary is under way
        await at.home.ended(stream)
        await at.sent()
        assert at.actor.canary.failed == 0
        assert at.verdict().well


@pytest.mark.parametrize("settings", [{"canary_wait": 0.0}, {"frozen_after": 0.0}])
async def test_c36_none_is_sent_where_none_is_wanted(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path, generates, **settings) as at:
        await asyncio.sleep(3 * WAIT)
        assert not Behaviour.asked
        assert at.verdict().well
    told = [each.getMessage() for each in caplog.records if "canary" in each.getMessage()]
    assert bool(told) == ("frozen_after" in settings)


async def test_c36_without_a_canary_an_engine_is_always_ready(tmp_path: Path) -> None:
    async with rig(tmp_path, generates, None) as at:
        Behaviour.how = "hang"
        await asyncio.sleep(3 * WAIT)
        assert at.verdict().well
        assert not at.actor.canary.sent


async def test_c36_an_engine_that_drains_is_sent_none_and_stops_with_one_under_way(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, generates) as at:
        await at.sent()
        at.actor.refuse("it stops")
        await asyncio.sleep(2 * WAIT)
        before = at.actor.canary.sent
        await asyncio.sleep(3 * WAIT)
        assert at.actor.canary.sent == before
        at.actor._draining = ""
        Behaviour.how = "hang"
        await wait_until(lambda: Behaviour.now == 1)
    assert Behaviour.now == 0, "it was killed"
