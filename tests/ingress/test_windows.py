"""How far an engine may run ahead of its requester: no further than this node lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from actors.messages import Accept, Credit, End, Items, Kill
from tests.ingress.muxhome import MuxHome
from tests.ingress.test_relay import both
from tests.waiting import TICK, wait_until

MUCH = 1 << 52


async def endless(request: Any, ctx: Context) -> AsyncIterator[Any]:
    while not ctx.stopped:
        yield b"x" * 30_000


async def counted(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(request["n"]):
        yield index


def come(home: MuxHome, stream: int) -> int:
    return sum(len(each.payloads) for each in home.got(Items, stream))


@pytest.mark.parametrize("how", ["letter", "open", "credit"])
async def test_a_requester_that_takes_everything_and_reads_nothing(
    tmp_path: Path, how: str
) -> None:
    windows = {"window_items": 64, "window_bytes": 1 << 20}
    async with both(tmp_path, **windows) as (at, home):
        path = await at.engine(endless)
        await home.connected_by(path)
        await at.idle()
        assert home.mux is not None
        home.mux.link.pause()
        if how == "letter":
            metadata = {"x-callhome-window": f"{MUCH},{MUCH}"}
            stream = await home.ask(path, {}, metadata=metadata)
        elif how == "open":
            stream = home.open(path, {}, window_items=MUCH, window_bytes=MUCH)
        else:
            stream = home.open(path, {})
            home.mux.flush()  # credit is control, which would overtake it in the same tick
            for _ in range(100):
                home.send(Credit(stream, MUCH, MUCH))
        connection = at.ingress.connections.find_subject(home.subject)
        assert connection is not None
        assert connection.mux is not None
        mux = connection.mux
        await wait_until(lambda: mux.backlog > 1 << 20, what="the connection is full")
        await asyncio.sleep(2 * TICK)
        assert mux.backlog < 3 << 20
        home.mux.link.resume()
        before = come(home, stream)
        await wait_until(lambda: come(home, stream) > before + 1000, what="it goes on")
        home.send(Kill(home.incarnation, stream, "enough"))
        await at.idle()


@pytest.mark.parametrize("window", [(1024, 1 << 20), (1024, 16 << 20), (8, 4096)])
async def test_windows_that_differ_between_nodes(tmp_path: Path, window: tuple[int, int]) -> None:
    async with both(tmp_path, window_items=16, window_bytes=4096) as (at, home):
        path = await at.engine(counted)
        await home.connected_by(path)
        items, size = window
        stream = home.open(path, {"n": 5000}, window_items=items, window_bytes=size)
        await home.until(Accept, stream)
        granted = 0
        while not home.got(End, stream):
            # As a client does it: half of the window is granted again once it has come.
            if come(home, stream) - granted >= items // 2:
                granted += items // 2
                home.send(Credit(stream, items // 2, size // 2))
            await asyncio.sleep(0)
        assert home.items(stream) == list(range(5000))
        await at.idle()


async def test_credit_of_less_than_nothing(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(endless)
        await home.connected_by(path)
        stream = home.open(path, {}, window_items=1)
        await home.until(Accept, stream)
        home.send(Credit(stream, -1, 5))
        error = (await home.ended(stream)).error
        assert error is not None
        assert error[0] == "protocol.remote"
        await at.idle()
