"""How long one that was started anew is to be well before it counts: by a clock of the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.cluster import rolling
from actors.cluster.steps import Work
from actors.errors import SpawnError
from actors.kernel.children import ChildSpec, ChildStatus
from actors.kernel.verdicts import FROZEN, Verdict
from tests.cluster.test_alone import Around, router
from transport.bus.address import Address

#: Seconds in which it has to become well.
LIMIT = 5.0


class Clock:
    """Stands for the loop: who sleeps is there at once, and later."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def tried(
    monkeypatch: pytest.MonkeyPatch, *ill: tuple[float, float], dies: float = 2 * LIMIT
) -> tuple[bool, float]:
    """Whether one stands its trial that is ``ill`` from each first second to each second one, and
    ``dies`` then; and when that was known.
    """
    around, clock = Around(), Clock()
    began = clock.now

    def verdict(address: Address) -> Verdict:
        since = clock.now - began
        return Verdict(FROZEN) if any(a <= since < b for a, b in ill) else Verdict()

    around.renewal._verdict = verdict  # type: ignore[method-assign]
    around.runtime.peers = SimpleNamespace(alive=lambda address: clock.now - began < dies)
    stand_in = SimpleNamespace(get_running_loop=lambda: clock, sleep=clock.sleep)
    with monkeypatch.context() as patch:
        patch.setattr(rolling, "asyncio", stand_in)
        stands = await around.renewal._stays_well(router(1).address, LIMIT)
    return stands, clock.now - began


async def test_one_that_is_well_for_a_moment_only_does_not_stand_its_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a quarter of a second nobody who looks at it now and then has to know."""
    stands, at = await tried(monkeypatch, (0.25, 2 * LIMIT))
    assert not stands
    assert at >= LIMIT


async def test_two_moments_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    stands, _ = await tried(monkeypatch, (0.15, 0.25), (0.45, 2 * LIMIT))
    assert not stands


async def test_one_that_becomes_well_late_stands_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    stands, at = await tried(monkeypatch, (0.0, LIMIT / 2))
    assert stands
    assert LIMIT / 2 + 0.3 <= at < LIMIT


async def test_one_that_dies_does_not_and_nobody_waits_for_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stands, at = await tried(monkeypatch, dies=0.15)
    assert not stands
    assert at < LIMIT / 2


@pytest.mark.parametrize("stands", [True, False])
async def test_the_end_of_a_successor_that_did_not_stand_its_trial_is_no_trouble(
    stands: bool,
) -> None:
    one = router(1)
    around = Around(one)
    spec = ChildSpec("router-1", {"role": "router"})
    status = ChildStatus(spec, "up", 101, one.address, 0, "")
    new = Address("router-1", 77, 177, 1)

    async def succeed(name: str, prove: Any) -> tuple[None, Address]:
        await prove(new)
        return None, new

    async def serves(work: Work, address: Address) -> None:
        assert address == new
        if not stands:
            raise SpawnError("it is not well", actor="router-1")

    around.succeed = succeed  # type: ignore[method-assign]
    around.renewal._serves = serves  # type: ignore[method-assign]
    if stands:
        await around.renewal._replace(Work(), status, one, 1.0, True)
    else:
        with pytest.raises(SpawnError, match="not well"):
            await around.renewal._replace(Work(), status, one, 1.0, True)
    assert around.renewal.ending == (set() if stands else {new.incarnation})
