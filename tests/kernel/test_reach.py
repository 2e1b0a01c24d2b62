"""Announcing between two runtimes: which road is taken is told, and what cannot be read is too."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from actors.config import Settings
from actors.kernel.runtime import Runtime
from transport.payload import Encoded
from transport.wire.handle import Handle


@asynccontextmanager
async def two(run: Path, owner: str, reader: str) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """An owner and a reader with these settings of ``frame_road``, each with a bus of its own."""
    made = [
        Runtime(run=str(run), name=name, settings=Settings.load(frame_road=road))
        for name, road in (("owner", owner), ("reader", reader))
    ]
    try:
        yield made[0], made[1]
    finally:
        for each in made:
            each.close()


async def lent(owner: Runtime, reader: Runtime, number: int = 1) -> Encoded:
    """An array of 400 KB, encoded and lent to the reader."""
    encoded = owner.encode(np.arange(100_000, dtype="i4"), "msgpack", True, "item")
    return await owner.lend(encoded, reader.address, number)


@pytest.mark.parametrize("road", ["proc", "socket", "file"])
async def test_the_owner_knows_by_which_road_it_is_read(tmp_path: Path, road: str) -> None:
    async with two(tmp_path, road, road) as (owner, reader):
        encoded = await lent(owner, reader)
        assert [type(each) for each in encoded.handles] == [Handle]
        assert owner.keeping.account()["readers"] == [
            {"actor": "reader", "pid": reader.address.pid, "road": road}
        ]
        owner.links.take_back(encoded, reader.address)


async def test_where_no_road_leads_one_line_says_why_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path, "proc", "inline") as (owner, reader):
        with caplog.at_level(logging.WARNING, logger="callhome"):
            for number in range(3):
                encoded = await lent(owner, reader, number)
                assert [type(each) for each in encoded.handles] == [list]
        (line,) = [each.getMessage() for each in caplog.records]
        assert line.startswith("owner: reader (pid ")
        assert "gets frames as bytes" in line
        assert "frame_road is 'inline' here" in line
        assert "set frame_road to 'auto'" in line
        assert owner.memory.statistics().slots == 0
        assert [each["road"] for each in owner.keeping.account()["readers"]] == ["inline"]


async def test_who_offers_nothing_sends_bytes_without_asking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path, "inline", "auto") as (owner, reader):
        encoded = owner.encode(np.arange(100_000, dtype="i4"), "msgpack", True, "item")
        assert [type(each) for each in encoded.handles] == [list]
        assert (await owner.lend(encoded, reader.address, 1)).handles == encoded.handles
        assert owner.memory.statistics().slots == 0
        assert reader.memory.reading.mapped == 0
        assert not caplog.records


async def test_a_reader_that_wants_files_gets_them_in_later_segments(tmp_path: Path) -> None:
    async with two(tmp_path, "auto", "file") as (owner, reader):
        first = await lent(owner, reader)
        assert [type(each) for each in first.handles] == [list]
        # The segment that is there stays what it is; the next one is a file.
        held = [owner.memory.frames.new(owner.settings.arena_step - (1 << 20), "u1")]
        second = await lent(owner, reader, 2)
        while type(second.handles[0]) is list:
            held.append(owner.memory.frames.new(1 << 20, "u1"))
            second = await lent(owner, reader, 2)
        assert owner.memory.road(reader.address.incarnation) == "file"
        owner.links.take_back(second, reader.address)
        del held
