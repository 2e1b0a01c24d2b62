"""Announcing memory to a peer that answers late, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from actors.kernel import parted
from actors.messages import Announce
from tests.kernel.relays import actors, at_rest, send
from tests.waiting import LONG, wait_until


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


async def test_what_the_gone_had_goes_back_when_nobody_can_look_at_it(tmp_path: Path) -> None:
    """One that is closed, one that nothing reaches though it lives, one that keeps an array."""
    names = ("owner", "closed", "lost", "keeps")
    async with actors(str(tmp_path), *names) as (owner, closed, lost, keeps):
        for each in (closed, lost, keeps):
            await send(owner, each, np.full(100_000, 7, "u1"))
        kept = await keeps.value()
        for each in (closed, lost):
            await wait_until(lambda each=each: each.messages, what="it came")

        def has() -> list[str]:
            leases = owner.runtime.keeping.account()["leases"]
            return sorted(each["actor"] for each in leases)

        assert has() == ["closed", "keeps", "lost"]
        owner.runtime.peers.lost(lost.runtime.address, "its outbox is full")
        closed.messages.clear()
        closed.runtime.close()
        keeps.runtime.close()
        await wait_until(lambda: has() == ["keeps", "lost"], what="it came back")
        assert kept.min() == kept.max() == 7
        del kept
        await wait_until(lambda: has() == ["lost"], what="the array's, too")


async def test_what_the_dead_had_goes_back_at_once_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted, "_LATE", 10 * LONG)  # when it goes back that nobody needs
    settings = {"arena_step": 1 << 20, "arena_limit": 1 << 20}
    async with actors(str(tmp_path), "owner", "reader", **settings) as (owner, reader):
        await send(owner, reader, np.full(1 << 20, 7, "u1"))
        await wait_until(lambda: reader.messages, what="it came")
        waits = owner.runtime.memory.frames.wait_new(1 << 20, "u1", timeout=LONG)
        waiting = asyncio.ensure_future(waits)
        reader.messages.clear()
        reader.runtime.close()
        (await waiting).release()
