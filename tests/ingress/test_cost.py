"""What a stream and a token cost at an ingress."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from actors.messages import Accept, End, Items, Kill
from tests.ingress.engines import Held
from tests.ingress.muxhome import mux_home
from tests.ingress.rig import Rig, rig
from tests.waiting import TICK, wait_until

STREAMS, TOKENS = 200, 100


async def token(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(TOKENS):
        yield {"token": index}


class Watch:
    """Counts the processor time inside the ingress's own callbacks."""

    def __init__(self, at: Rig) -> None:
        self.spent = 0.0
        runtime = at.ingress.runtime
        for kind in (Items, End, Accept):
            inner = runtime.handler(kind)

            def timed(sender: int, m: Any, inner: Any = inner) -> None:
                begun = time.thread_time()
                inner(sender, m)
                self.spent += time.thread_time() - begun

            runtime.on(kind, timed)


@pytest.mark.parametrize("road", ["nodes of ours", "Dynamo"])
async def test_b82_tokens_of_200_streams(tmp_path: Path, road: str) -> None:
    """Engine, ingress and requester share this loop, which runs in debug mode; with a requester
    of ours all three together take less than the ingress alone may take.
    """
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(token, capacity=STREAMS)
        watch = Watch(at)
        begun = time.process_time()
        if road == "Dynamo":
            asked = [await at.requester.ask(path, {}) for _ in range(STREAMS)]
            for each in asked:
                answer = await each.answer()
                assert answer.data == [{"token": index} for index in range(TOKENS)]
        else:
            streams = [await home.ask(path, {}) for _ in range(STREAMS)]
            for stream in streams:
                assert (await home.ended(stream)).total == TOKENS
        spent = (time.process_time() - begun) / STREAMS / TOKENS
        assert watch.spent / STREAMS / TOKENS < 100e-6
        if road == "nodes of ours":
            assert spent < 100e-6
        await at.idle()


async def test_b82_a_lone_token_waits_for_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as at, mux_home(at.requester) as home:
        path = await at.engine(Held)
        engine: Any = at.engines[0].handler.engine
        stream = await home.ask(path, {"after": 1})
        await home.until(Accept, stream)
        begun = time.monotonic()
        engine.gate.set()
        await wait_until(lambda: home.items(stream))
        assert time.monotonic() - begun < TICK / 2
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
