"""Dynamo's requesters at an ingress: what they get, byte by byte, and what their engines see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors import Context
from tests.ingress.rig import rig

CODECS = ["msgpack", "json"]


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    for index in range(request["n"]):
        yield {"i": index, "text": request["text"]}


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
        await at.idle()
        assert at.errors == {}
        assert at.cancelled == 0
