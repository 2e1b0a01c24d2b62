"""Workers that cannot be reached, among others that can: who gets how much, and what is charged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.record import SPEAKS
from actors.errors import CallHomeError, ConnectionLost, EngineError
from actors.messages import Open, Record
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import engines
from tests.router.nodes import node
from tests.router.rig import RouterRig, far_record, router_rig
from tests.waiting import LONG, wait_until
from transport.bus.address import Address

GO = "t.far.go"
ENGINE: tuple[str, type, dict[str, Any]] = (GO, engines.Count, {})
#: Nobody listens there.
DEAD = far_record("127.0.0.1:1/p", GO, 9, speaks=SPEAKS)


async def call_all(here: RouterRig, count: int, **request: Any) -> None:
    """So many calls, thirty at a time; each is answered."""
    for _ in range(0, count, 30):
        answers = await asyncio.gather(
            *(here.client.call(GO, {"n": 1} | request) for _ in range(min(count, 30)))
        )
        assert answers == [0] * len(answers)


async def test_b119_one_that_refuses_connections_gets_ten_of_300_and_then_one_probe(
    tmp_path: Path, clock: Clock
) -> None:
    async with (
        node(tmp_path / "b", ENGINE, ENGINE) as far,
        router_rig(tmp_path / "a", *far.records, DEAD, quarantine=LONG) as here,
    ):
        await call_all(here, 30)
        pool = here.actor.members.pools[GO]
        dead = pool.members[9]
        assert dead.state == "quarantined"
        await call_all(here, 270)
        before = dead.carried.sent
        assert 1 <= before <= 10
        clock.turn(LONG)
        await wait_until(lambda: pool.faults.due(9))
        await call_all(here, 60)
        await wait_until(lambda: dead.state == "quarantined")
        assert dead.carried.sent == before + 1
        await here.idle()
        assert not dead.carried.permits


async def test_b119_what_a_far_handler_raises_inhibits_nobody(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "b", ENGINE, ENGINE) as far,
        router_rig(tmp_path / "a", *far.records) as here,
    ):
        for _ in range(5):
            with pytest.raises(EngineError, match="no such luck"):
                await here.client.call(GO, {"do": "raise"})
        assert here.actor.members.pools[GO].calm


async def test_b119_the_only_one_is_tried_every_time(tmp_path: Path) -> None:
    async with router_rig(tmp_path, DEAD) as here:
        for _ in range(5):
            with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
                await here.client.call(GO, {})
        member = here.actor.members.pools[GO].members[9]
        assert member.state == "free"
        assert member.carried.sent >= 5
        await here.idle()


async def test_b120_what_a_refused_and_b_holds_is_charged_to_b(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "b", ENGINE) as far,
        router_rig(tmp_path / "a", *far.records, DEAD) as here,
    ):
        members = here.actor.members.pools[GO].members
        other = next(each for instance, each in members.items() if instance != 9)
        held = here.client.stream(GO, {"n": 1, "do": "wait"}, instance=other.carried.instance)
        async with held:
            assert await anext(held) == 0
            async with here.client.stream(GO, {"n": 1, "do": "wait"}) as items:  # the idle one
                assert await anext(items) == 0
                assert members[9].carried.sent == 1
                await wait_until(lambda: (members[9].carried.load, other.carried.load) == (0, 2))
        await here.idle()


class Refusing:
    """A dispatch that cannot reach some workers, and notes by whom it was asked for the others."""

    def __init__(self, broken: dict[int, CallHomeError]) -> None:
        self.broken = broken
        self.sent: list[tuple[int, Open]] = []

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        error = self.broken.get(worker.instance)
        if error is not None:
            raise error
        self.sent.append((worker.instance, open))

    generate_bidirectional = generate

    def on_instance_added(self, record: Record) -> None:
        """It needs no notice."""

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """It needs no notice."""


@pytest.mark.parametrize("many", [False, True])
async def test_b120_what_could_not_leave_moves_to_another_in_the_same_step(
    tmp_path: Path, many: bool
) -> None:
    records = [far_record("127.0.0.1:9/p", GO, instance) for instance in (1, 2, 3)]
    async with router_rig(tmp_path, *records, retry_limit=5) as here:
        way = Refusing({1: ConnectionLost("no way"), 2: ConnectionLost("no way either")})
        here.actor._choosing.dispatch = way
        pool = here.actor.members.pools[GO]
        home = here.runtime.address
        for number in range(4):
            empty: tuple[Any, ...] = (many, "msgpack", True, b"", [], [], 1, 1, None, {}, "r")
            here.actor._route(home.incarnation, Open(900 + number, home, GO, *empty))
        assert [instance for instance, _ in way.sent] == [3] * 4
        assert all(open.route is None for _, open in way.sent)
        loads = {each: member.carried.load for each, member in pool.members.items()}
        assert loads == {1: 0, 2: 0, 3: 4}
        for number in range(4):
            here.actor.occupancy.settle((home.incarnation, 900 + number))


async def test_what_nobody_takes_is_told_with_the_first_reason_and_whom_it_was(
    tmp_path: Path,
) -> None:
    records = [far_record("127.0.0.1:9/p", GO, instance) for instance in (1, 2)]
    async with router_rig(tmp_path, *records, retry_limit=0) as here:
        here.actor._choosing.dispatch = Refusing(
            {1: ConnectionLost("no way"), 2: ConnectionLost("no way")}
        )
        with pytest.raises(ConnectionLost, match="no way") as caught:
            await here.client.call(GO, {})
        assert caught.value.details["instance"] in ("1", "2")
        assert caught.value.details["sent"] == "no"
        await here.idle()


async def test_conformance_14_a_stream_that_is_cut_is_one_error_and_its_worker_inhibited(
    tmp_path: Path,
) -> None:
    async with (
        node(tmp_path / "b", ENGINE) as far,
        node(tmp_path / "c", ENGINE) as other,
        router_rig(tmp_path / "a", *far.records, *other.records, quarantine=LONG) as here,
    ):
        pool = here.actor.members.pools[GO]
        (cut,) = (pool.members[each.instance] for each in far.records)
        async with here.client.stream(
            GO, {"n": 2, "do": "wait"}, instance=cut.carried.instance
        ) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            far.ingress.connections.close("cut by the test")
            with pytest.raises(ConnectionLost) as caught:
                await anext(items)
            assert caught.value.details["instance"] == str(cut.carried.instance)
        assert cut.state == "quarantined"
        assert cut.carried.permits == 0
        await call_all(here, 30)
        assert cut.carried.sent == 1
        await here.idle()
