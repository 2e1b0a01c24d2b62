"""A router and one Dynamo worker that a test plays; what the tests of that road share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.router.rig import RouterRig, far_record, router_rig
from tests.router.standin import Call, Half, StandIn, standin

GO = "t.far.go"
Rig = tuple[RouterRig, StandIn]


@asynccontextmanager
async def rig(tmp_path: Path, codec: str = "msgpack", **settings: Any) -> AsyncIterator[Rig]:
    """A router and one Dynamo worker; at the end nothing of any stream is left."""
    async with standin() as worker:
        record = far_record(worker.via, GO, codec=codec)
        async with router_rig(tmp_path, record, **settings) as here:
            yield here, worker
            await here.idle()
            assert here.awaited() == 0
            worker.hang_up()


async def collected(here: RouterRig, request: Any = None, **options: Any) -> list[Any]:
    """The items of one stream."""
    async with here.client.stream(GO, request, **options) as items:
        return [item async for item in items]


@asynccontextmanager
async def begun(here: RouterRig, worker: StandIn) -> AsyncIterator[tuple[Any, Call, Half]]:
    """A stream whose worker has acknowledged, dialled and begun."""
    async with here.client.stream(GO, {"a": 1}) as items:
        first = asyncio.ensure_future(anext(items))
        call = await worker.next()
        call.reply()
        half = await call.dial()
        half.prologue()
        half.item("first")
        assert await first == "first"
        yield items, call, half
