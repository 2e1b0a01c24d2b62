"""Who may go before another has his place, and what holds where a successor fails: by stand-ins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cluster import rolling
from actors.cluster.rolling import Renewal
from actors.cluster.steps import Work
from actors.discovery.registry import Registry
from actors.errors import SpawnError
from actors.kernel.children import ChildSpec, ChildStatus
from actors.kernel.verdicts import FROZEN, Verdict
from actors.messages import Record
from tests.discovery.samples import engine
from tests.waiting import LONG, TICK
from transport.bus.address import Address


def router(instance: int) -> Record:
    return Record(instance, Address(f"router-{instance}", instance, 100 + instance, 1), "router")


class Around:
    """What a node has around the renewal of its actors; nobody else serves anything."""

    def __init__(self, *records: Record, call_home_port: int = 0) -> None:
        self.registry = Registry()
        for record in records:
            self.registry.add(record)
        self.states: dict[str, str] = {}
        self.unwell: dict[int, Verdict] = {}
        settings = SimpleNamespace(call_home_port=call_home_port, start_timeout=1.0)
        self.runtime: Any = SimpleNamespace(settings=settings)
        self.statuses: list[ChildStatus] = []
        #: Where a router knows of others.
        self.elsewhere: list[dict[str, object]] = []
        self.renewal = self._renewal()

    def _renewal(self) -> Renewal:
        it: Any = self
        found = Renewal(self.runtime, self.registry, it, it, it, it)

        async def workers(router: Address, endpoint: str) -> list[dict[str, object]]:
            return self.elsewhere

        found._workers = workers  # type: ignore[method-assign]
        return found

    def status(self) -> list[ChildStatus]:
        return self.statuses

    async def succeed(self, name: str, prove: Any) -> Any:
        raise SpawnError("it does not come up", actor=name)

    async def alone(self, record: Record, *together: str) -> bool:
        return await self.renewal._is_alone(record, [record.address.name, *together])


async def test_another_that_serves_is_enough_and_one_that_cannot_is_not() -> None:
    one, other = engine(1), engine(2)
    around = Around(one, other, engine(3, "t.another.one"))
    assert not await around.alone(one)
    assert await around.alone(one, "engine-2")  # it is away at the same time
    around.states["engine-2"] = "drained"
    assert await around.alone(one)
    around.states.clear()
    around.unwell[2] = Verdict(FROZEN)
    assert await around.alone(one)


async def test_one_elsewhere_is_enough_if_it_takes_streams() -> None:
    one = engine(1)
    around = Around(one, router(2))
    assert await around.alone(one)
    for state, enough in (("frozen", False), ("busy", True), ("free", True)):
        around.elsewhere = [{"where": "10.0.0.7:7400", "state": state}]
        assert await around.alone(one) != enough
    around.elsewhere = [{"where": "", "state": "free"}]  # that is on this node
    assert await around.alone(one)


async def test_no_two_routers_can_be_called_home_at_one_port() -> None:
    assert await Around(router(1)).alone(router(1))
    assert not await Around(router(1), call_home_port=7500).alone(router(1))
    assert not await Around(router(1), router(2)).alone(router(1))


@pytest.mark.parametrize("state", ["", "drained"])
async def test_who_took_nothing_takes_nothing_still_where_his_successor_fails(state: str) -> None:
    one = router(1)
    around = Around(one)
    spec = ChildSpec("router-1", {"role": "router"})
    around.statuses = [ChildStatus(spec, "up", 101, one.address, 0, "")]
    if state:
        around.states["router-1"] = state
    before = dict(around.states)
    with pytest.raises(SpawnError, match="does not come up"):
        await around.renewal._replace(Work(), around.statuses[0], one, 1.0, True)
    assert around.states == before


async def test_who_is_well_for_a_moment_only_does_not_stay_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rolling, "_HOLD", LONG)  # however late the next look is
    around, looks = Around(), list[Address]()

    def verdict(address: Address) -> Verdict:
        looks.append(address)
        return Verdict() if len(looks) < 3 else Verdict(FROZEN)

    around.runtime.peers = SimpleNamespace(alive=lambda address: True)
    around.renewal._verdict = verdict  # type: ignore[method-assign]
    assert not await around.renewal._stays_well(engine(1).address, 5 * TICK)
    assert looks


async def test_what_nobody_wants_any_more_ends_behind_the_actor_that_it_is_at() -> None:
    around, work, begun = Around(), Work(), list[str]()

    async def renew(work: Work, name: str, limit: float, together: Any) -> None:
        begun.append(name)
        work.abandoned = True
        await asyncio.sleep(0)

    around.renewal._renew = renew  # type: ignore[method-assign]
    await around.renewal.run(work, ["a", "b"], True, 1.0)
    steps = [step async for step in work.follow()]
    assert begun == ["a"]
    assert (steps[-1]["finished"], steps[-1]["left"]) == (["a"], ["b"])
    assert "nobody wanted the others any more" in steps[-1]["text"]
