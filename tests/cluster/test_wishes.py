"""What becomes of a wish that fails in a way nobody has foreseen."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from actors import Settings
from actors.cluster.steps import Work
from actors.cluster.wishes import Wishes
from actors.kernel.runtime import Runtime


async def fails() -> None:
    raise RuntimeError("boom")


async def test_it_ends_for_its_followers_and_for_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    runtime = Runtime(run=str(tmp_path), name="node", settings=Settings())
    none: Any = None  # nothing of the node is asked for
    work = Work()
    async with asyncio.TaskGroup() as tasks:
        wishes = Wishes(runtime, none, none, none, none, none, none, tasks)
        wishes._begin(work, fails())
        (last,) = [step async for step in work.follow()]
    runtime.close("the test ends")
    assert (last["step"], last["ok"], last["error"]) == ("done", False, "it has failed: boom")
    assert any("a wish" in each.getMessage() for each in caplog.records)
