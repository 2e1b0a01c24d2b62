"""Frames of requests that nobody has accepted yet: whose release is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.kernel.runtime import Runtime
from actors.kernel.unclaimed import Unclaimed
from actors.messages import Release
from actors.notices import Adopt, Adopted
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.shm.memory import Memory
from transport.shm.passing import key_of
from transport.wire.handle import Handle

OWNER, ENGINE, THIRD = 1, 2, 3
STREAM = 10
ROUTER = Address("router", 4, 1, 1)
MIB = 1 << 20


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory(OWNER, wake=lambda: None, step=8 * MIB, limit=8 * MIB)
    yield memory
    memory.close()


def lease(handle: Handle) -> tuple[int, int, int]:
    return handle.segment, handle.offset, handle.generation


def request(memory: Memory, count: int = 1) -> tuple[Unclaimed, list[Handle]]:
    """A request with frames that is on its way."""
    unclaimed = Unclaimed(memory)
    handles = [memory.export_array(np.full(MIB, 7, "u1")) for _ in range(count)]
    unclaimed.requested(STREAM, handles, ROUTER)
    return unclaimed, handles


def gives_back(memory: Memory, unclaimed: Unclaimed, who: int, handle: Handle) -> None:
    """As ``Links`` does with a Release."""
    if memory.release(who, [lease(handle)]):
        unclaimed.came(who, [key_of(handle)])


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_b05_what_a_third_one_gives_back_is_not_the_lease_of_who_has_accepted(
    memory: Memory, adopted: bool, keep: bool
) -> None:
    unclaimed, [handle] = request(memory)
    if adopted:  # the engine has handed it on, and is quicker to do so than its Accept
        memory.adopt(lease(handle), ENGINE, THIRD, 99, asked=True)
    gives_back(memory, unclaimed, THIRD, handle)
    unclaimed.accepted(STREAM, ENGINE, keep)
    assert memory.statistics().lent == 1
    unclaimed.settled(STREAM)
    other = memory.export_array(np.full(MIB, 9, "u1"))
    assert other.offset != handle.offset, "the engine still reads it"
    memory.unexport(other)
    gives_back(memory, unclaimed, ENGINE, handle)
    assert memory.statistics().slots == 0
    assert not unclaimed._early


def test_who_gives_back_before_his_accept_comes_is_lent_nothing(memory: Memory) -> None:
    unclaimed, [handle] = request(memory)
    memory.adopt(lease(handle), ENGINE, THIRD, 99, asked=True)
    gives_back(memory, unclaimed, THIRD, handle)
    gives_back(memory, unclaimed, ENGINE, handle)
    unclaimed.accepted(STREAM, ENGINE)
    assert memory.statistics().slots == 0
    assert not unclaimed._early


def test_who_has_his_frame_back_before_his_accept_comes_has_two_leases(memory: Memory) -> None:
    unclaimed, [handle, second] = request(memory, 2)
    memory.adopt(lease(handle), ENGINE, THIRD, 99, asked=True)
    memory.adopt(lease(handle), THIRD, ENGINE, 98)
    gives_back(memory, unclaimed, THIRD, handle)
    unclaimed.accepted(STREAM, ENGINE)
    gives_back(memory, unclaimed, ENGINE, handle)
    assert memory.statistics().lent == 2
    gives_back(memory, unclaimed, ENGINE, handle)
    gives_back(memory, unclaimed, ENGINE, second)
    assert memory.statistics().slots == 0


def test_what_came_early_is_forgotten_with_a_request_that_nobody_took(memory: Memory) -> None:
    for end in ("refused", "came_back", "take"):
        unclaimed, [handle] = request(memory)
        gives_back(memory, unclaimed, ENGINE, handle)
        assert unclaimed._early
        getattr(unclaimed, end)(STREAM)
        assert not unclaimed._early
        unclaimed.settled(STREAM)
        assert not unclaimed._waiting
        memory.unexport(handle)
    assert memory.statistics().slots == 0


async def test_b05_the_release_of_a_third_one_may_overtake_the_accept(tmp_path: Path) -> None:
    """With real sockets, from whose control inboxes nothing waits for what is in the others."""
    owner, engine, third = (Runtime(run=str(tmp_path), name=name) for name in "oet")
    try:
        for one in (owner, engine, third):
            for other in (owner, engine, third):
                one.peers.note(other.address)
        handle = owner.memory.export_array(np.full(MIB, 7, "u1"))
        owner.links.requested(STREAM, [handle], engine.address)
        answers: list[Adopted] = []
        third.on(Adopted, lambda sender, m: answers.append(m))
        ask = Adopt(engine.address.incarnation, *lease(handle), STREAM)
        third.port.send(owner.address, ask, control=True)
        await wait_until(lambda: answers, what="the third one has a lease")
        third.port.send(owner.address, Release([list(lease(handle))]), control=True)
        await wait_until(lambda: not owner.memory.statistics().lent, what="it came back")
        owner.links.accepted(STREAM, engine.address.incarnation)
        assert owner.memory.statistics().lent == 1
        engine.port.send(owner.address, Release([list(lease(handle))]), control=True)
        await wait_until(lambda: not owner.memory.statistics().slots, what="all came back")
        await asyncio.sleep(0)
    finally:
        for each in (engine, third, owner):
            each.close()
