"""What a node of ours may put into a stream that goes on to a home of this node, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.errors import RemoteProtocolError
from actors.messages import Accept, End, Item, Open
from tests.ingress.test_relay import body_of
from tests.router.standin_mux import connect, number
from tests.router.test_gateway import SELF, rig, start

ARRAY = np.arange(512, dtype="<i8")


def item(stream: int, *entries: Any, seq: int = 0, size: int = 4096) -> Item:
    """An item that refers to ``entries`` as its arrays."""
    message, _ = body_of(stream, {"x": ARRAY}, seq)
    assert isinstance(message.payload, bytes)
    return Item(stream, seq, message.payload, list(entries), size)


@pytest.mark.parametrize(
    "entry",
    [
        [0x77, 1, 0, 4096, 1, "<i8", [512]],
        [0x77, 1, 0, 4096, 1, "<i8"],
        ["<i8", [512], 4096],
        ["<i8", 512, ARRAY.tobytes()],
        [8, [512], ARRAY.tobytes()],
        b"",
        7,
    ],
    ids=["handle", "old handle", "number", "shape", "dtype", "bytes", "int"],
)
async def test_what_is_not_in_line_ends_its_stream_only(tmp_path: Path, entry: Any) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        n = number(call)
        end.send(Accept(n, SELF, 0, 0), item(n, entry), item(n, entry, seq=1), End(n, 2, None))
        with pytest.raises(RemoteProtocolError, match=r"never leave|\[dtype, shape"):
            await task
        other = start(here)
        end.send(End((await end.find(Open)).stream, 0, None))
        assert await other == []


@pytest.mark.parametrize("size", [-(1 << 40), 0, 1 << 40])
async def test_an_item_counts_as_what_it_is(tmp_path: Path, size: int) -> None:
    async with rig(tmp_path, window_bytes=1 << 16) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        n = number(call)
        near = ["<i8", [512], ARRAY.tobytes()]
        end.send(Accept(n, SELF, 0, 0), item(n, near, size=size), End(n, 1, None))
        assert (await task)[0]["x"].tolist() == ARRAY.tolist()
        # More than the window, whatever they say that they are.
        task = start(here)
        n = (await end.find(Open)).stream
        large = ["<i8", [5_000], bytes(40_000)]
        end.send(Accept(n, SELF, 0, 0), *(item(n, large, seq=seq, size=size) for seq in range(4)))
        with pytest.raises(RemoteProtocolError, match="beyond its credit"):
            await task
