"""What a stream and a token cost at an ingress."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from actors.messages import Accept, End, Items, Kill
from tests.clock import at_once
from tests.ingress.engines import Held
from tests.ingress.muxhome import mux_home
from tests.ingress.rig import Rig, rig
from tests.waiting import TICK

STREAMS, TOKENS = 200, 100


async def token(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(TOKENS):
        yield {"token": index}
    await asyncio.sleep(TICK / 10)  # so that none of them travels with the end


class Watch:
    """Counts what is called inside the ingress's own callbacks, and how often these are."""

    def __init__(self, at: Rig) -> None:
        self.calls = self.messages = 0
        runtime = at.ingress.runtime
        for kind in (Items, End, Accept):
            inner = runtime.handler(kind)

            def counted(sender: int, m: Any, inner: Any = inner) -> None:
                self.messages += 1
                sys.setprofile(self._called)
                try:
                    inner(sender, m)
                finally:
                    sys.setprofile(None)

            runtime.on(kind, counted)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")


@pytest.mark.parametrize("road", ["nodes of ours", "Dynamo"])
async def test_b82_tokens_of_200_streams(tmp_path: Path, road: str) -> None:
    """How much the ingress does for a token, counted in calls, of Python and what it is made of;
    how long that takes, 100 us of a processor at most, is measured in ``perf``.
    """
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(token, capacity=STREAMS)
        watch = Watch(at)
        if road == "Dynamo":
            asked = [await at.requester.ask(path, {}) for _ in range(STREAMS)]
            for each in asked:
                answer = await each.answer()
                assert answer.data == [{"token": index} for index in range(TOKENS)]
        else:
            streams = [await home.ask(path, {}) for _ in range(STREAMS)]
            for stream in streams:
                assert (await home.ended(stream)).total == TOKENS
        assert watch.calls / STREAMS / TOKENS < {"nodes of ours": 2.5, "Dynamo": 14}[road]
        assert watch.messages / STREAMS / TOKENS < 0.2  # many tokens come in one
        await at.idle()


async def test_b82_a_lone_token_waits_for_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(Held)
        engine: Any = at.engines[0].handler.engine
        stream = await home.ask(path, {"after": 1})
        await home.until(Accept, stream)
        engine.gate.set()
        await at_once(lambda: home.items(stream), "a token")
        await home.ended(stream)


async def test_open_streams_cost_little(tmp_path: Path) -> None:
    """In the ingress alone, by what Python says that it has allocated."""
    import tracemalloc

    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(Held, capacity=1024)
        first = await home.ask(path, {})
        await home.until(Accept, first)
        tracemalloc.start()
        try:
            streams = [await home.ask(path, {}) for _ in range(100)]
            for stream in streams:
                await home.until(Accept, stream)
            found = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        mine = found.filter_traces([tracemalloc.Filter(True, "*/actors/ingress/*")])
        size = sum(each.size for each in mine.statistics("filename"))
        assert 0 < size / 100 < 4096
        for stream in [first, *streams]:
            home.send(Kill(home.incarnation, stream, "done"))
        await at.idle()
