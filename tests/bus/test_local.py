"""Ports of one process hand each other their messages without a socket, by the same rules."""

from __future__ import annotations

import asyncio

import pytest

from tests.bus.posts import numbered, posts, weighty
from tests.waiting import wait_until
from transport.errors import OutboxFull


async def test_messages_pass_without_a_socket_in_order(run: str) -> None:
    with posts(run, "a", "b", shared=True) as (a, b):
        for number in range(500):
            a.port.send(b.address, numbered(number), control=number % 5 == 0)
        assert b.came == []  # never from inside the sender's own call
        await wait_until(lambda: len(b.came) == 500)
        assert [each for each in b.numbers if each % 5] == [n for n in range(500) if n % 5]
        assert b.hellos == [a.address, a.address]
        assert a.port.statistics().batches_out == b.port.statistics().batches_in == 0


async def test_a_port_may_send_to_itself(run: str) -> None:
    with posts(run, "a", shared=True) as (a,):
        for number in range(10):
            a.port.send(a.address, numbered(number))
        await wait_until(lambda: len(a.came) == 10)
        assert a.numbers == list(range(10))


async def test_answers_from_inside_a_delivery_keep_their_order(run: str) -> None:
    with posts(run, "a", "b", shared=True) as (a, b):

        def answer(message: tuple[object, ...]) -> None:
            b.port.send(a.address, message)
            b.port.hurry()

        b.react = answer
        for number in range(50):
            a.port.send(b.address, numbered(number))
            a.port.hurry()
        await wait_until(lambda: len(a.came) == 50)
        assert a.numbers == b.numbers == list(range(50))


async def test_ports_of_other_processes_are_reached_by_socket(run: str) -> None:
    with posts(run, "a", "b", shared=True) as (a, b), posts(run, "c") as (c,):
        a.port.send(b.address, numbered(1))
        a.port.send(c.address, numbered(2))
        c.port.send(a.address, numbered(3))
        await wait_until(lambda: b.came and c.came and a.came)
        assert (a.numbers, b.numbers, c.numbers) == ([3], [1], [2])


async def test_held_data_stays_with_its_sender_and_control_goes_on(run: str) -> None:
    with posts(run, "a", "b", shared=True, outbox_messages=50) as (a, b):
        b.port.hold_data(True)
        for number in range(49):  # and the Hello
            a.port.send(b.address, weighty(number, 10), bounded=True)
            await asyncio.sleep(0)
        with pytest.raises(OutboxFull, match="does not read"):
            a.port.send(b.address, weighty(49, 10), bounded=True)
        a.port.send(b.address, numbered(77), control=True, bounded=True)
        await wait_until(lambda: b.numbers == [77])
        b.port.hold_data(False)
        await wait_until(lambda: len(b.came) == 50)
        assert b.numbers[1:] == list(range(49))
        a.port.send(b.address, weighty(50, 10), bounded=True)
        await wait_until(lambda: len(b.came) == 51)


async def test_a_closed_port_gets_nothing_more(run: str) -> None:
    with posts(run, "a", "b", shared=True) as (a, b):
        a.port.send(b.address, numbered(1))
        a.port.flush()
        b.port.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert b.came == []
        a.port.send(b.address, numbered(2))
        a.port.flush()
        a.port.forget(b.address.incarnation)
        a.port.send(b.address, numbered(3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert b.came == []
