"""What a router keeps of workers and endpoints that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.errors import NoWorkers
from actors.router import members
from tests.router.local_rig import GO, local_rig
from tests.router.rig import far_record


async def test_endpoints_that_are_gone_are_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_KEPT", 10)
    async with local_rig(tmp_path, 1, router={"queue": 5}) as here:
        known, told = here.router.members, here.told
        for number in range(50):
            record = far_record("127.0.0.1:1/p", f"t.e{number}.go", number + 1)
            told.add(record)
            if number == 3:  # its worker may be back before its quarantine is over
                pool = known.pools["t.e3.go"]
                told.add(other := far_record("127.0.0.1:1/p", "t.e3.go", 999))
                pool.ended(pool.members[4].carried, (1, 1), "connection.lost")
                told.remove(other)
            told.remove(record)
        assert GO in known.pools
        assert "t.e3.go" in known.pools
        assert len(known.pools) <= 12
        assert list(known._records) == [GO]
        with pytest.raises(NoWorkers, match=r"no worker of endpoint 't\.e49\.go' is alive"):
            await here.client.call("t.e49.go", None)
        with pytest.raises(NoWorkers, match=r"endpoint 't\.e20\.go' is unknown here"):
            await here.client.call("t.e20.go", None)
        known.pools["t.e3.go"].faults.forget(4)
        for number in range(60, 72):
            told.add(record := far_record("127.0.0.1:1/p", f"t.e{number}.go", number + 1))
            told.remove(record)
        assert "t.e3.go" not in known.pools


async def test_an_endpoint_for_which_streams_wait_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_KEPT", 0)
    async with local_rig(tmp_path, 1, router={"queue": 5, "busy_streams": 1}) as here:
        held = await here.held(2)
        assert here.waiting == 1
        (record,) = (each.carried.record for each in here.members)
        here.told.remove(record)
        pool = here.pool  # is kept
        here.told.add(record)
        assert here.pool is pool
        here.gate.set()
        assert [await each for each in held] == [0, 0]
        here.told.remove(record)
        assert not here.router.members.pools
        here.told.add(record)


async def test_the_cause_of_the_last_one_s_end_is_told_to_its_end(tmp_path: Path) -> None:
    """It names a second actor, and how that one ended stands behind both."""
    cause = f"engine t.core.{'x' * 60} (pid 4194304), which is essential, has ended: killed by SIG"
    async with local_rig(tmp_path, 1) as here:
        (record,) = (each.carried.record for each in here.members)
        here.told.remove(record, f"{cause}KILL")
        with pytest.raises(NoWorkers, match=r"killed by SIGKILL'\)"):
            await here.client.call(GO, None)
        here.told.add(record)
        here.told.remove(record, f"{cause * 10}KILL")  # others choose the words
        with pytest.raises(NoWorkers) as caught:
            await here.client.call(GO, None)
        assert len(caught.value.message) < 700
        here.told.add(record)
