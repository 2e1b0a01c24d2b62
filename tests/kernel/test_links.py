"""Announcing memory to a peer that answers late, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from actors.messages import Announce
from tests.kernel.relays import actors, at_rest, send
from tests.waiting import wait_until


async def test_a_reader_that_was_late_once_gets_handles_again(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "owner", "reader") as (owner, reader):
        held: list[tuple[int, Announce]] = []
        answer = reader.runtime.handler(Announce)
        reader.runtime.on(Announce, lambda sender, m: held.append((sender, m)))
        await send(owner, reader, np.full(100_000, 7, "u1"))
        first = await reader.item()
        assert len(first.handles[0]) == 3, "bytes in line"
        assert not owner.runtime.memory.usable(reader.runtime.address.incarnation)
        for sender, m in held:  # its loop goes on
            answer(sender, m)
        peer = reader.runtime.address.incarnation
        await wait_until(lambda: owner.runtime.memory.usable(peer), what="it has answered")
        await send(owner, reader, np.full(100_000, 9, "u1"))
        second = await reader.item()
        assert len(second.handles[0]) > 3, "a handle"
        value = reader.runtime.decode(second.payload, second.handles, "msgpack")
        assert value.min() == value.max() == 9
        del value
        await at_rest(owner, reader)
