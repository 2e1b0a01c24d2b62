"""Ports over real sockets: order, batches, lanes, bounds, and what is left behind."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise

import pytest

from tests.bus.posts import Post, arrived, numbered, posts, stand_still, weighty
from tests.waiting import LONG, wait_until, wait_until_sync
from transport.bus.address import Address
from transport.bus.port import Bus, Port
from transport.bus.socket import BURST
from transport.errors import OutboxFull, PeerLost

MIB = 1 << 20


async def test_what_is_sent_in_one_tick_is_one_batch(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        for number in range(10):
            a.port.send(b.address, numbered(number))
        await arrived(b, 10)
        assert b.numbers == list(range(10))
        assert {sender for sender, _ in b.came} == {a.address.incarnation}
        assert b.hellos == [a.address]
        assert a.port.statistics().batches_out == b.port.statistics().batches_in == 1
        assert a.port.statistics().messages_out == b.port.statistics().messages_in == 11
        a.port.send(b.address, numbered(10))
        await arrived(b, 11)
        assert a.port.statistics().batches_out == 2
        assert b.hellos == [a.address]


async def test_thousands_of_messages_keep_their_order_both_ways(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        for number in range(3000):
            a.port.send(b.address, numbered(number))
            b.port.send(a.address, numbered(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await arrived(a, 3000)
        await arrived(b, 3000)
        assert a.numbers == b.numbers == list(range(3000))
        assert a.port.statistics().batches_out < 1000


async def test_b44_answers_from_inside_a_delivery_do_not_stall(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        b.react = lambda message: b.port.send(a.address, message)
        for number in range(1000):
            a.port.send(b.address, numbered(number), control=number % 2 == 0)
        await arrived(a, 1000)
        assert sorted(a.numbers) == list(range(1000))
        # A ping-pong of 1000 turns, each from inside the other's callback.
        a.react = lambda message: (
            a.port.send(b.address, numbered(message[0] + 1)) if message[0] < 3000 else None
        )
        a.port.send(b.address, numbered(2000))
        await wait_until(lambda: a.numbers[-1] == 3000)


async def test_each_lane_has_its_own_order_and_its_own_hello(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        for number in range(200):
            a.port.send(b.address, numbered(number), control=number % 2 == 1)
        await arrived(b, 200)
        assert [each for each in b.numbers if each % 2 == 0] == list(range(0, 200, 2))
        assert [each for each in b.numbers if each % 2 == 1] == list(range(1, 200, 2))
        assert b.hellos == [a.address, a.address]
        assert a.port.statistics().peers == 1


async def test_b26_b30_nothing_waits_for_a_peer_that_has_no_inbox(run: str) -> None:
    with posts(run, "a") as (a,):
        told: list[tuple[str, str]] = []
        a.port.unreachable = lambda address, reason: told.append((address.name, reason))
        later = Address("later", 1 << 40, os.getpid(), 1)
        with pytest.raises(PeerLost, match=r"later .* has no inbox at .*it has closed, or was nev"):
            a.port.send(later, numbered(1), bounded=True)
        a.port.send(later, numbered(2))
        a.port.flush()
        await wait_until(lambda: len(told) == 2)
        assert all(name == "later" and "has no inbox" in reason for name, reason in told)
        bus, came = Bus(), []
        port = Port(
            bus, run, later, lambda sender, message: came.append(message), hello=numbered(0)
        )
        try:
            a.port.send(later, numbered(3), bounded=True)
            await wait_until(lambda: len(came) == 2)
            assert came[1] == numbered(3)  # what was refused has not waited for it
        finally:
            port.close(0)
            bus.close()


async def test_held_data_waits_and_control_goes_on(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        a.port.send(b.address, numbered(0))
        await arrived(b, 1)
        b.port.hold_data(True)
        for number in range(1, 101):
            a.port.send(b.address, numbered(number))
            a.port.send(b.address, numbered(1000 + number), control=True)
            await asyncio.sleep(0)
        await arrived(b, 101)
        assert b.numbers[1:] == list(range(1001, 1101))
        assert b.port.poll_data() == 0
        b.port.hold_data(False)
        await arrived(b, 201)
        assert b.numbers[101:] == list(range(1, 101))


async def test_holding_in_the_middle_of_a_burst_takes_effect_behind_the_batch(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        b.react = lambda message: b.port.hold_data(True) if message[0] == 5 else None
        for number in range(20):
            a.port.send(b.address, numbered(number))
            a.port.flush()
        await wait_until(lambda: 5 in b.numbers)
        for _ in range(10):
            await asyncio.sleep(0)
        assert b.numbers == list(range(6))
        b.port.hold_data(False)
        await arrived(b, 20)
        assert b.numbers == list(range(20))


async def fill(a: Post, b: Post) -> int:
    """Send to a peer that does not read until what is held back stays; how many there were.

    ZeroMQ takes thousands of small batches first, and its own thread moves them on for a while.
    """
    count = 0
    while True:
        a.port.send(b.address, weighty(count, 10))
        a.port.flush()
        count += 1
        assert count < 20_000
        for _ in range(5):
            if a.port.backlog(b.address) == 0:
                break
            stand_still()
            await asyncio.sleep(0.005)
        else:
            return count


def send_all(a: Post, b: Post, first: int, size: int) -> int:
    """Send until it is refused; the number of the refused one is in ``a.refused``."""
    number = first
    while number < first + 10_000:
        a.refused = number
        a.port.send(b.address, weighty(number, size), size=size, bounded=True)
        number += 1
    return number


async def test_a_peer_that_does_not_read_is_refused_at_the_bound_of_bytes(run: str) -> None:
    with posts(run, "a", "b", outbox_bytes=MIB) as (a, b):
        b.port.hold_data(True)
        count = await fill(a, b)
        with pytest.raises(OutboxFull, match=r"b .*does not read.*bound"):
            send_all(a, b, count, 100_000)
        count = a.refused
        assert MIB <= a.port.backlog(b.address) < MIB + 300_000
        assert a.port.full(b.address)
        # What belongs to a stream is never refused, nor is control held up by data.
        a.port.send(b.address, weighty(count, 10))
        a.port.send(b.address, numbered(-7), control=True, bounded=True)
        await wait_until(lambda: -7 in b.numbers)
        waiting = asyncio.create_task(a.port.wait_drained(b.address))
        await asyncio.sleep(0)
        assert not waiting.done()
        b.port.hold_data(False)
        await asyncio.wait_for(waiting, LONG)
        assert a.port.backlog(b.address) == 0
        assert not a.port.full(b.address)
        await arrived(b, count + 2)
        assert [each for each in b.numbers if each != -7] == list(range(count + 1))
        a.port.send(b.address, weighty(0, 10), bounded=True)
        await a.port.wait_drained(b.address)


async def test_a_peer_that_does_not_read_is_refused_at_the_bound_of_messages(run: str) -> None:
    with posts(run, "a", "b", outbox_messages=50) as (a, b):
        b.port.hold_data(True)
        count = await fill(a, b)
        with pytest.raises(OutboxFull, match=r"bounds 50 and"):
            send_all(a, b, count, 1)  # what stands in pipes counts, too
        assert a.refused == count
        b.port.hold_data(False)
        await arrived(b, a.refused)
        assert b.numbers == list(range(a.refused))


async def test_a_peer_that_does_not_read_holds_up_no_other(run: str) -> None:
    with posts(run, "a", "b", "c") as (a, b, c):
        b.port.hold_data(True)
        await fill(a, b)
        for number in range(100):
            a.port.send(c.address, numbered(number))
        await arrived(c, 100)
        a.port.send(b.address, numbered(1), control=True)
        await wait_until(lambda: b.numbers == [1])
        b.port.hold_data(False)


async def test_a_peer_that_is_dead_is_forgotten(run: str) -> None:
    with posts(run, "a", "b", "c") as (a, b, c):
        b.port.hold_data(True)
        await fill(a, b)
        waiting = asyncio.create_task(a.port.wait_drained(b.address))
        await asyncio.sleep(0)
        a.port.forget(b.address.incarnation)
        await asyncio.wait_for(waiting, LONG)
        assert a.port.statistics().peers == 0
        assert a.port.backlog(b.address) == 0
        before = a.port.statistics().batches_out
        for control in (False, True):
            a.port.send(b.address, numbered(1), control)  # nobody is there to miss it
        a.port.send(c.address, numbered(2))
        await arrived(c, 1)
        assert a.port.statistics().batches_out == before + 1
        a.port.forget(b.address.incarnation)


async def test_reading_now_takes_what_waits(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        for control in (False, True):
            a.port.send(b.address, numbered(0), control)
        await arrived(b, 2)
        del b.came[:]
        a.port.send(b.address, numbered(1))
        a.port.send(b.address, numbered(2), control=True)
        a.port.flush()
        # The loop stands still here; the other side's ZeroMQ thread does not.
        wait_until_sync(lambda: read(b, 2), what="it is read")
        assert sorted(b.numbers) == [1, 2]


def read(post: Post, count: int) -> bool:
    """Look into both inboxes now; whether so many have come."""
    post.port.poll_control()
    post.port.poll_data()
    return len(post.came) == count


async def test_what_a_poll_leaves_in_the_inbox_is_read_without_another_message(run: str) -> None:
    with posts(run, "b", "a", "c", "d") as (b, *others):
        for each in others:
            each.port.send(b.address, numbered(0), control=True)
        await arrived(b, len(others))
        del b.came[:]
        share = BURST // 2
        for each in others:
            for number in range(share):  # as many batches, as a crowd of cancels is
                each.port.send(b.address, numbered(number), control=True)
                each.port.flush()
        stand_still()
        b.port.poll_control()
        assert len(b.came) == BURST
        await arrived(b, len(others) * share)


async def test_more_than_a_burst_leaves_the_loop_its_turns(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        count = 4 * BURST
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(b.came))
            if len(b.came) < count:
                asyncio.get_running_loop().call_soon(turn)

        a.port.send(b.address, numbered(0))
        await arrived(b, 1)
        b.port.hold_data(True)
        for number in range(1, count):
            a.port.send(b.address, numbered(number))
            a.port.flush()
            await a.port.wait_drained(b.address)  # so that each stays a batch of its own
        turn()
        b.port.hold_data(False)
        await arrived(b, count)
        assert b.numbers == list(range(count))
        # Twice, for a socket may be found readable in the same turn that was asked for.
        assert max(after - before for before, after in pairwise(turns)) <= 2 * BURST


async def test_collectors_are_asked_at_each_flush(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        due = [3, 2, 1]

        def collect() -> None:
            if due:
                a.port.send(b.address, numbered(due.pop()))

        a.port.before_flush.append(collect)
        a.port.plan_flush()
        a.port.plan_flush()
        await wait_until(lambda: len(b.came) >= 1)
        a.port.flush()
        a.port.flush()
        await arrived(b, 3)
        assert b.numbers == [1, 2, 3]
        a.port.before_flush.clear()


async def test_a_collector_that_fails_costs_only_itself(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with posts(run, "a", "b") as (a, b):
        due = [2, 1]

        def failing() -> None:
            raise ValueError("its own fault")

        def collect() -> None:
            if due:
                a.port.queue(b.address, numbered(due.pop()))

        a.port.before_flush += [failing, collect]
        a.port.flush()
        a.port.send(b.address, numbered(7))
        await arrived(b, 3)
        assert b.numbers in ([1, 2, 7], [1, 7, 2])
        assert caplog.text.count("ValueError: its own fault") == 1
        a.port.before_flush.clear()
