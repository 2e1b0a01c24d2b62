"""An engine waits for its first canary only as long as its start may still take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context, Settings
from actors.cluster.entry import running
from actors.engine.actor import EngineActor
from tests.e2e.raw import raw_home
from tests.waiting import LONG, TICK


async def never(request: Any, ctx: Context) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield request


#: A tenth of it is left for what comes behind the canary.
WHOLE = 10 * LONG


@pytest.mark.parametrize("left", [-1.0, WHOLE / 10 + TICK])
async def test_who_took_long_to_load_is_up_in_time_and_unready(tmp_path: Path, left: float) -> None:
    settings = Settings(canary_timeout=2 * WHOLE, start_timeout=WHOLE).to_dict()
    began = time.monotonic()
    spec = {
        "run": str(tmp_path), "name": "engine", "role": "engine", "settings": settings,
        "start_by": began + left,
    }  # fmt: skip
    actor = EngineActor(never, {}, "t.first.go", 2, 0, None)
    actor.canary_request = "canary"
    with raw_home(str(tmp_path)):  # open for the engine's good-bye
        async with running(spec, actor) as (_, runtime):
            assert time.monotonic() < began + LONG, "half of start_timeout is five times as long"
            verdict = runtime.vigil.of(actor.address, time.monotonic())
            assert verdict.code == "unready"
            assert "not answered yet" in verdict.why
