"""B38: actors that are stopped or blocked are seen, left out and warned of, and serve again by
themselves; whoever is merely busy is none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import (
    Client,
    Cluster,
    EngineSpec,
    NodeSpec,
    ResponseStream,
    RouterSpec,
    Settings,
    StreamWarning,
    connect,
)
from actors.cluster.node import Ps
from actors.errors import AllBusy, DeadlineExceeded, LocalProtocolError, WorkerUnavailable
from actors.kernel.calls import Caller
from actors.kernel.watchful import OnWarning
from tests.e2e.standing import ROADS, Standing, inspect, standing, wait_idle
from tests.e2e.watching import kill
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.bus.address import Address

GO = "t.count.go"
#: What is noticed is noticed within this; the default is 3, and works by the same sums.
LIMIT = 2.0
SETTINGS = Settings.load(frozen_after=LIMIT)
#: What the machine may take beyond a time that is asked for: others work on it, too.
SLACK = DEADLINE
#: Beyond the limit at which somebody is seen to be frozen, where that has to come first.
LATER = 40 * TICK
#: By its load alone one that holds many streams would be left out, frozen or not.
ROUTER = RouterSpec(policy="round_robin")
ANY = "127.0.0.1:0"


def node(*routers: RouterSpec, listen: str = "") -> NodeSpec:
    engine = EngineSpec(GO, "tests.e2e.frozen_engines:Counter", replicas=2, capacity=512)
    return NodeSpec(engines=[engine], routers=routers or [ROUTER], settings=SETTINGS, listen=listen)


@pytest.fixture(scope="module", params=ROADS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Standing]:
    """Two workers of one endpoint, on the node of their callers or on another."""
    with standing(node(), request.param) as found:
        yield found


@pytest.fixture(scope="module")
def near() -> Iterator[Standing]:
    """The same on one node, with two routers."""
    with standing(node(RouterSpec(name="one"), RouterSpec(name="two"), listen=ANY)) as found:
        yield found


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is stopped inside."""
    kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGCONT)


async def states(client: Client) -> dict[int, str]:
    """The state of each worker by its instance."""
    return {each.instance: each.state for each in await client.workers(GO)}


async def seen(client: Client) -> list[dict[int, str]]:
    """The same by each router of the client's node: each finds out for itself, and calls go through
    them in turn."""
    routers = [each.address for each in Client.records(client) if each.kind == "router"]
    if not routers:  # a client from outside routes by itself
        return [await states(client)]
    return [await seen_by(client, router) for router in routers]


async def seen_by(client: Client, router: Address) -> dict[int, str]:
    """The same by that router."""
    asked = await Caller(client.runtime, lambda _: router).call("Workers", [GO])
    return {each["instance"]: each["state"] for each in asked}


async def wait_state(client: Client, instance: int, state: str, within: float) -> float:
    """Seconds until a worker is in this state for all routers."""
    began = time.monotonic()

    async def so() -> bool:
        return all(each.get(instance) == state for each in await seen(client))

    await wait_until(so, within, f"{instance} is {state}")
    return time.monotonic() - began


async def workers(client: Client) -> list[tuple[int, int]]:
    """Instance and pid of both workers, as soon as both are known to all routers and free."""

    async def both() -> bool:
        return all(list(each.values()) == ["free", "free"] for each in await seen(client))

    await wait_until(both, what="two free workers")
    pids = {each.instance: each.address.pid for each in client.records() if each.endpoint == GO}
    return [(instance, pids[instance]) for instance in await states(client)]


def make(file: Path, what: bytes = b"") -> None:
    """Let those go on who wait for it; who has it in his memory sees the same file."""
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
        opened.write(what)


async def gather(items: ResponseStream) -> list[int]:
    return [each async for each in items]


async def test_b38_a_stopped_worker_gets_nothing_and_is_back_by_itself(
    cluster: Standing, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    async with cluster.client(frozen_after=LIMIT) as client:
        (frozen, pid), (other, _) = await workers(client)
        heard: list[StreamWarning] = []
        async with contextlib.AsyncExitStack() as stack:
            held: list[ResponseStream] = []
            for number in range(100):
                hear = heard.append if number else deaf
                request = {"n": 40, "pause": 0.005, "until": str(until)}
                items = client.stream(GO, request, instance=frozen, on_warning=hear)
                held.append(await stack.enter_async_context(items))
            first = [await anext(each) for each in held]
            assert first == [0] * 100
            call = asyncio.ensure_future(
                client.call(GO, {"until": str(until)}, instance=frozen, timeout=LIMIT + LATER)
            )
            began = time.monotonic()
            with stopped(pid):
                rest = [asyncio.ensure_future(gather(each)) for each in held]
                await wait_state(client, frozen, "frozen", LIMIT + SLACK)
                await wait_until(lambda: len(heard) >= 99, SLACK, "all streams are warned")
                assert time.monotonic() - began >= 1.0
                calls = [client.call(GO, {}, timeout=SLACK) for _ in range(20)]
                assert await asyncio.gather(*calls) == [0] * 20
                assert (await states(client))[other] == "free"
                with pytest.raises(WorkerUnavailable, match=r"is frozen since \d"):
                    await client.call(GO, {}, instance=frozen)
                await look_at_ps(client)
                with pytest.raises(DeadlineExceeded, match=rf"pid {pid}\).* is frozen: .* for \d"):
                    await call
            await wait_state(client, frozen, "free", SLACK)
            # The client sees for itself that it goes on; a stream that has ended is told no more.
            told = "all streams are told that it goes on"
            await wait_until(lambda: all(len(each.warnings) > 1 for each in held), SLACK, told)
            make(until)
            assert await asyncio.gather(*rest) == [list(range(1, 40))] * 100
        check_warnings(held, heard, pid)
        assert any("boom" in str(each.exc_info) for each in caplog.records)
        lines = [each for each in caplog.records if "is frozen" in each.getMessage()]
        assert 1 <= len(lines) <= 3, "one line for all of them, not one for each"
        await wait_until(lambda: not client.runtime.home.streams)
        await wait_idle(client)
        assert await client.call(GO, {}, instance=frozen) == 0


async def look_at_ps(client: Client) -> None:
    """The node shows one of its actors as frozen, and the others as they are."""
    rows = await client.ref("node").ask(Ps(False), timeout=SLACK)
    found = {row["name"]: row for row in rows if row["state"] == "frozen"}
    if not any(row["endpoint"] == GO for row in rows):
        return  # the node of the callers, which runs no engine
    ((_, row),) = found.items()
    assert row["endpoint"] == GO
    assert row["since"] > 1.0
    assert row["reason"] == "its process is stopped"
    assert row["in_flight"] is None


def check_warnings(held: list[ResponseStream], heard: list[StreamWarning], pid: int) -> None:
    """Each stream was told that it froze, once, and that it goes on; the text says who."""
    for each in held:
        codes = [warning.code for warning in each.warnings]
        assert codes == ["frozen", "thawed"], each.warnings
        for warning in each.warnings:
            assert f"(pid {pid})" in warning.text
            assert " s" in warning.text
            assert warning.since > 0.5
    # One listens badly: that is his own affair.
    assert len(heard) == 2 * len(held) - 2


def deaf(warning: StreamWarning) -> None:
    raise ValueError("boom")


async def never_awaited(warning: StreamWarning) -> None:
    """Takes no warning."""


@pytest.mark.parametrize("listener", [never_awaited, 7])
async def test_b38_who_is_to_be_warned_can_be_called(near: Standing, listener: OnWarning) -> None:
    async with near.client() as client:
        assert len(await seen(client)) == 2, "each router is asked"
        with pytest.raises(LocalProtocolError, match="on_warning"):
            client.stream(GO, {}, on_warning=listener)
        with pytest.raises(LocalProtocolError, match="on_warning"):
            await client.call(GO, {}, on_warning=listener)


async def test_b38_a_blocked_loop_and_a_held_interpreter_are_stalled(
    near: Standing, tmp_path: Path
) -> None:
    """Both at once: then nobody is left, and that is what a caller is told."""
    awake, loose = tmp_path / "awake", tmp_path / "loose"
    make(loose, b"\0")
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(near.client(frozen_after=LIMIT))
        (sleeper, _), (holder, _) = await workers(client)
        stack.callback(make, awake)
        stack.callback(make, loose, b"\1")
        async with (
            client.stream(GO, {"sleep": str(awake), "n": 3}, instance=sleeper) as slept,
            client.stream(GO, {"hold": str(loose), "n": 3}, instance=holder) as held,
        ):
            slow = [asyncio.ensure_future(gather(each)) for each in (slept, held)]

            async def both() -> bool:
                return all(set(each.values()) == {"stalled"} for each in await seen(client))

            await wait_until(both, LIMIT + SLACK, "both are stalled")
            with pytest.raises(AllBusy, match=r"2 stalled.*is stalled since"):
                await client.call(GO, {})
            make(awake)
            make(loose, b"\1")
            assert await asyncio.gather(*slow) == [[0, 1, 2], [0, 1, 2]]
            assert slept.warnings[0].code == "stalled"
            assert "event loop is blocked" in slept.warnings[0].text
            assert "stalled" in [each.code for each in held.warnings]
        for each in (sleeper, holder):
            await wait_state(client, each, "free", SLACK)


def burner() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "while 1: 0"])


async def test_b38_busy_is_not_frozen(near: Standing) -> None:
    """Workers that compute all the time, on cores that others want as well."""
    burners = [burner() for _ in range(len(os.sched_getaffinity(0)))]
    try:
        async with near.client(frozen_after=LIMIT) as client:
            both = await workers(client)
            seconds, found, warned = LIMIT + 5 * TICK, set[str](), list[StreamWarning]()
            busy = [
                asyncio.ensure_future(
                    client.call(GO, {"burn": seconds}, instance=each, on_warning=warned.append)
                )
                for each, _ in both
            ]
            while not all(each.done() for each in busy):
                found |= set((await states(client)).values())
                await asyncio.sleep(TICK)
            assert await asyncio.gather(*busy) == [0, 0]
            assert found == {"free"}
            assert not warned
    finally:
        for each in burners:
            each.kill()
            each.wait()


async def test_b38_a_frozen_router_is_passed_over(near: Standing) -> None:
    async with near.client(frozen_after=LIMIT) as client:
        await workers(client)
        pid = near.pids["one"]
        with stopped(pid):
            calls = [
                asyncio.ensure_future(client.call(GO, {}, timeout=LIMIT + LATER)) for _ in range(4)
            ]
            heard: list[StreamWarning] = []
            items = [client.stream(GO, {"n": 2}, on_warning=heard.append) for _ in range(2)]
            streams = [asyncio.ensure_future(gather(each)) for each in items]
            results = await asyncio.gather(*calls, return_exceptions=True)
            lost = [each for each in results if isinstance(each, BaseException)]
            assert results.count(0) == 2
            assert len(lost) == 2, "every other one has gone to the frozen router"
            for each in lost:
                assert isinstance(each, DeadlineExceeded)
                assert f"one (pid {pid}) is frozen" in str(each)
            assert [each.code for each in heard] == ["frozen"]
            for _ in range(10):
                assert await client.call(GO, {}, timeout=SLACK) == 0
        assert await asyncio.gather(*streams) == [[0, 1], [0, 1]]
        await wait_until(lambda: client.runtime.vigil.well(client.ref("one").address), 2.0 + SLACK)
        for _ in range(4):
            assert await client.call(GO, {}, timeout=SLACK) == 0


async def test_b38_who_went_on_while_nobody_followed_is_well_for_all_who_come(
    near: Standing,
) -> None:
    async with near.client() as client:
        (one, first), (_, second) = await workers(client)

        async def unfollowed() -> bool:
            return bool((await inspect(client.ref("ingress")))["connections"] == 0)

        with stopped(first):
            async with connect(f"tcp://{near.listen}") as outside:
                await wait_state(outside, one, "frozen", LIMIT + SLACK)
            await wait_until(unfollowed, what="nobody follows the loads")
        await wait_state(client, one, "free", SLACK)
        async with connect(f"tcp://{near.listen}") as outside:
            await workers(outside)
            with stopped(second):  # so that word of who is frozen has come for certain

                async def told() -> bool:
                    return "frozen" in (await states(outside)).values()

                await wait_until(told, LIMIT + SLACK, "word of who is frozen")
                assert (await states(outside))[one] == "free"
            assert await outside.call(GO, {}, instance=one, timeout=SLACK) == 0


async def test_b38_those_who_wait_are_served_when_it_goes_on() -> None:
    engine = EngineSpec(GO, "tests.e2e.frozen_engines:Counter")
    settings = Settings.load(frozen_after=LIMIT, stop_grace=1.0)
    spec = NodeSpec(engines=[engine], routers=[RouterSpec(queue=10)], settings=settings)
    began = 0.0
    async with Cluster(spec) as cluster, cluster.client() as client:
        await wait_until(lambda: client.records())
        (instance,) = await states(client)
        pid = client.ref(GO).address.pid
        with stopped(pid):
            await wait_state(client, instance, "frozen", LIMIT + SLACK)
            waiting = [asyncio.ensure_future(client.call(GO, {}, timeout=LONG)) for _ in range(5)]
            done, _ = await asyncio.wait(waiting, timeout=2 * TICK)
            assert not done
        assert await asyncio.gather(*waiting) == [0] * 5
        kill(pid, signal.SIGSTOP)
        await wait_state(client, instance, "frozen", LIMIT + SLACK)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0 + SLACK, "it ends within its grace: SIGKILL reaches it"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
