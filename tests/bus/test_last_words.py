"""What waits for a peer that does not read, when its sender ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.bus.posts import arrived, numbered, posts, weighty
from tests.waiting import LONG

_MIB = 1 << 20


async def test_what_waits_for_a_busy_peer_arrives_though_the_port_closes(run: str) -> None:
    """More than may be under way, small and large: none of it was refused, so all of it comes."""
    with posts(run, "a", "b") as (a, b):
        for number in range(40):
            a.port.send(b.address, weighty(number, _MIB), size=_MIB, bounded=True)
            a.port.flush()
        for number in range(40, 140):
            a.port.send(b.address, numbered(number), bounded=True)
        assert a.port.backlog(b.address) > 20 * _MIB  # b has not had its turn
        a.port.close(LONG)
        await arrived(b, 140)
        assert b.numbers == list(range(140))


async def test_more_batches_than_zeromq_holds_wait_for_a_busy_peer(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        for number in range(1000):
            a.port.send(b.address, numbered(number), bounded=True)
            a.port.flush()
        a.port.close(LONG)
        await arrived(b, 1000)
        assert b.numbers == list(range(1000))


async def test_what_a_peer_never_takes_is_lost_with_a_line_in_the_log(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with posts(run, "a", "b") as (a, b):
        b.port.hold_data(True)
        for number in range(5000):  # more than both ends of a connection hold
            a.port.send(b.address, weighty(number, 2000), size=2000)
            a.port.flush()
            if a.port.backlog(b.address):
                await asyncio.sleep(0.001)
        with caplog.at_level(logging.ERROR, logger="callhome.bus"):
            a.port.close(0.2)
        (line,) = [each for each in caplog.messages if "are lost" in each]
        assert str(b.address) in line
