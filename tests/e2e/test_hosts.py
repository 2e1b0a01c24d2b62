"""Three hosts with networks of their own, etcd on one of them; the long form, with the times that
are promised, is ``python -m tests.e2e.hosts``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import hosts
from tests.e2e.hosts import World, world
from tests.waiting import DEADLINE

#: A lease that is soon over; how late all may be on a machine with other tenants; an outage.
TTL, LATE, CUT = 2.0, DEADLINE, 6.0


@pytest.fixture(scope="module")
def stand() -> Iterator[World]:
    said: list[str] = []
    with world(TTL, LATE, said.append, delay=0.02, loss=0.01) as found:
        yield found


@pytest.mark.timeout(400)
async def test_streams_from_each_to_each_over_slow_and_lossy_cables(stand: World) -> None:
    await hosts.streams(stand, items=100, frames=2)


@pytest.mark.timeout(400)
async def test_a_worker_is_killed_on_a_host_that_lives(stand: World) -> None:
    await hosts.kill_worker(stand)


@pytest.mark.timeout(400)
async def test_a_cable_is_cut_and_plugged_in_again(stand: World) -> None:
    await hosts.cut_cable(stand, CUT)


@pytest.mark.timeout(400)
async def test_b147_a_host_is_gone_then_etcd_and_the_host_comes_back_meanwhile(
    stand: World,
) -> None:
    await hosts.lose_host(stand)
    try:
        await hosts.lose_etcd(stand, CUT)
    finally:  # it was started in this test
        stand.fleet[hosts.CUT].stop()
        stand.fleet[hosts.CUT].wait_stopped()
