"""The membership suite, small: what its figures are made of, and what it says without etcd."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from actors.discovery.record import read_record
from perf import crowd
from perf.calling import Calls
from perf.checks import LIMITS
from perf.etcd import running
from perf.figures import Sample
from perf.plan import PerfError, Plan
from perf.suites import membership
from tests.etcd import require_etcd

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]
PLAN = Plan("membership", CORES, scale=0.01)


@pytest.fixture(autouse=True)
def affinity() -> Iterator[None]:
    """The cores of this process, which a suite pins to one: it has a process of its own else."""
    before = os.sched_getaffinity(0)
    yield
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), before)


def keys(samples: list[Sample]) -> set[tuple[str, str]]:
    assert all(sample.value > 0 for sample in samples)
    return {(sample.workload, sample.metric) for sample in samples}


def limited(*workloads: str) -> set[tuple[str, str]]:
    return {(limit.workload, limit.metric) for limit in LIMITS if limit.workload in workloads}


class _Known:
    """A client whose calls end as they are told to."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[list[float]]] = []

    async def call(self, endpoint: str, request: None, timeout: float) -> list[float]:
        self.calls.append(asyncio.get_running_loop().create_future())
        return await self.calls[-1]


async def test_a_call_counts_by_when_it_began() -> None:
    from actors.errors import PeerLost

    client = _Known()
    async with asyncio.TaskGroup() as group:
        calls = Calls(client, group)  # type: ignore[arg-type]
        calls.start()
        await calls.wait(lambda: len(client.calls) >= 3, "three calls")
        early, late, good = client.calls[:3]
        early.set_exception(PeerLost("it was killed"))
        await calls.wait(lambda: calls.failed, "the first to fail")
        since = calls.failed[0]
        assert calls.none_after(since) == 0.0  # what had begun before is nobody's fault
        late.set_exception(PeerLost("it was killed"))
        good.set_result([7, 1.5, 2.5])
        await calls.wait(lambda: calls.members and len(calls.failed) == 2, "the others")
        assert calls.none_after(since) == calls.failed[1] - since > 0.0
        assert calls.members == {7: membership_of(1.5, 2.5)}
        assert calls._pacing is not None
        calls._pacing.cancel()
        await asyncio.sleep(0)  # the call that was made last has begun: else nobody would end it
        for call in client.calls[3:]:
            call.set_result([8, 1.0, 1.0])


def membership_of(ready: float, first: float) -> object:
    from perf.calling import Member

    return Member(ready, first)


def test_records_are_ours_and_of_many_hosts() -> None:
    written = [crowd.record(number, 7400) for number in range(1000)]
    found = [read_record(json.loads(value)) for _, value in written]
    assert len({key for key, _ in written}) == len({each.instance for each in found}) == 1000
    assert len({each.via.partition("/")[0] for each in found}) == 125
    assert all(
        key.endswith(f"/{each.instance:x}") for (key, _), each in zip(written, found, strict=True)
    )


async def test_workers_beside_their_router() -> None:
    samples = await membership._near(PLAN)
    assert keys(samples) == limited("membership.near")


async def test_a_crowd_in_etcd() -> None:
    require_etcd()
    with running() as etcd, crowd.in_etcd(etcd) as records:
        samples = await crowd.measure(PLAN, records)
    assert keys(samples) >= limited("membership.etcd.1000")


async def test_without_etcd_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PerfError, match="no etcd in PATH"):
        await membership.run(PLAN)
