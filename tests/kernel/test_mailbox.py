"""The mailbox: order, its bound, and what it does to the data inbox."""

from __future__ import annotations

import asyncio

import pytest

from actors.kernel.mailbox import GO, HOLD, HOLD_ALL, Mailbox
from tests.waiting import LONG


def box(bound: int) -> tuple[Mailbox[int], list[int]]:
    held: list[int] = []
    return Mailbox(bound, held.append), held


async def test_messages_come_out_in_order_of_arrival() -> None:
    mailbox, held = box(100)
    for number in range(50):
        mailbox.put(number)
    assert len(mailbox) == 50
    assert [await mailbox.get() for _ in range(50)] == list(range(50))
    assert held == []


async def test_get_waits_for_a_message() -> None:
    mailbox, _ = box(10)
    waiting = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.put(1)
    mailbox.put(2)
    assert await asyncio.wait_for(waiting, LONG) == 1
    assert await asyncio.wait_for(mailbox.get(), LONG) == 2


async def test_a_wait_that_was_cancelled_takes_nothing() -> None:
    mailbox, _ = box(10)
    waiting = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    mailbox.put(1)
    assert await asyncio.wait_for(mailbox.get(), LONG) == 1


@pytest.mark.parametrize("bound", [1, 2, 5, 8])
async def test_at_its_bound_the_inbox_is_held_and_at_half_of_it_goes_on(bound: int) -> None:
    mailbox, held = box(bound)
    for number in range(bound - 1):
        assert mailbox.room
        mailbox.put(number)
        assert held == []
    mailbox.put(bound - 1)
    assert not mailbox.room
    assert held == [True]
    for expected in range(bound):
        assert await mailbox.get() == expected
        left = bound - 1 - expected
        assert held == ([True, False] if left <= bound // 2 else [True])
    assert mailbox.room


async def test_a_burst_beyond_the_bound_is_kept_and_holds_once() -> None:
    mailbox, held = box(4)
    for number in range(20):
        mailbox.put(number)
    assert held == [True]
    assert [await mailbox.get() for _ in range(20)] == list(range(20))
    assert held == [True, False]
    for number in range(4):
        mailbox.put(number)
    assert held == [True, False, True]


async def test_the_last_bound_holds_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.kernel.mailbox._LAST_BOUND", 6)
    mailbox, held = box(2)
    for number in range(8):
        mailbox.put(number)
    assert held == [HOLD, HOLD_ALL]
    for _ in range(7):
        await mailbox.get()
    assert held == [HOLD, HOLD_ALL, GO]


async def test_bytes_hold_the_inbox_as_messages_do() -> None:
    held: list[int] = []
    mailbox: Mailbox[int] = Mailbox(100, held.append, 1000)
    mailbox.put(0, 999)
    assert mailbox.room
    mailbox.put(1, 1)
    assert not mailbox.room
    assert held == [HOLD]
    mailbox.put(2, 2999)
    assert held == [HOLD]
    mailbox.put(3, 1)  # four times the bound, though a handler may wait
    assert held == [HOLD, HOLD_ALL]
    assert [await mailbox.get() for _ in range(2)] == [0, 1]
    assert held == [HOLD, HOLD_ALL]
    assert await mailbox.get() == 2
    assert held == [HOLD, HOLD_ALL, GO]


async def test_a_small_bound_has_a_small_last_bound() -> None:
    mailbox, held = box(2)
    for number in range(127):
        mailbox.put(number)
    assert held == [HOLD]
    mailbox.put(127)
    assert held == [HOLD, HOLD_ALL]
