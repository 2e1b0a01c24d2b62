"""Field reports on cancelling, B84 to B91, on real processes: every cancel reaches its handler."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec
from actors.cluster.spec import ActorSpec
from actors.errors import Cancelled, DeadlineExceeded, LocalProtocolError
from tests.e2e.cancel_engines import Work
from tests.e2e.slow import SLOW, node
from tests.e2e.standing import Standing, cluster_on
from tests.e2e.watching import Trace, inspect, kill, program, wait_idle
from tests.waiting import DEADLINE, LONG, wait_until


@pytest.mark.parametrize("kind", ["leave", "kill", "aclose", "task", "stop"])
async def test_b84_a_cancel_before_the_first_item_reaches_the_handler(
    cluster: Standing, trace: Trace, kind: str
) -> None:
    async with cluster.client() as client:
        got: list[object] = []
        before = (await inspect(client, SLOW))["counters"]

        async def read() -> None:
            async with stream:
                async for item in stream:
                    got.append(item)

        stream = client.stream(SLOW, {"polite": kind == "stop"})
        reading = asyncio.create_task(read())
        await trace.until("started")
        began = time.monotonic()
        if kind == "stop":
            stream.stop()
            await reading
            assert got == ["last"]
            seen = trace.events("stopped")
        else:
            if kind in ("leave", "task"):
                reading.cancel()
            elif kind == "kill":
                stream.kill()
            else:
                await stream.aclose()
            with pytest.raises((Cancelled, asyncio.CancelledError)):
                await reading
            assert got == []
            await trace.until("ended")
            seen = trace.events("cancelled")
        assert seen[0].time > began
        await wait_idle(client, SLOW)
        after = (await inspect(client, SLOW))["counters"]
        assert after["cancelled"] - before["cancelled"] == 1
        assert after["items"] - before["items"] == (1 if kind == "stop" else 0)
        assert trace.count("completed") == (1 if kind == "stop" else 0)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_b85_a_cancel_that_races_the_start_is_never_lost(
    cluster: Standing, trace: Trace, how: str
) -> None:
    asyncio.get_running_loop().set_debug(False)  # it makes each stream three times as long
    async with cluster.client() as client:
        for number in range(1000):
            stream = await client.stream(
                SLOW, {"tag": number, "polite": how == "stop"}
            ).__aenter__()
            if number % 3 == 1:
                await asyncio.sleep(0)  # the Open has left, the cancel has not
            elif number % 10 == 5:
                await asyncio.sleep(0.002)  # about the time that an Accept takes
            if how == "kill":
                stream.kill()
            else:
                stream.stop()
                async with stream:
                    with contextlib.suppress(Cancelled):
                        assert [item async for item in stream] in (["last"], [])
        await wait_idle(client, SLOW)
        # A handler whose cancel was lost would wait on, and not be idle before long.
        await trace.until("ended", trace.count("started"))
        if how == "kill":
            assert trace.count("completed") == 0
        assert await client.call(SLOW, {"wait": 0.0}) == "late"


async def test_b85_a_task_cancelled_at_once_leaves_nothing_running(
    cluster: Standing, trace: Trace
) -> None:
    async with cluster.client() as client:
        for number in range(500):
            call = asyncio.create_task(client.call(SLOW, {"tag": number}))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await wait_idle(client, SLOW)
        await trace.until("ended", trace.count("started"))
        assert trace.count("completed") == 0


async def test_b87_cancels_overtake_a_full_wait_queue(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    spec = node(trace, capacity=1, queue=1000)
    async with cluster_on(spec, road) as cluster, cluster.client() as client:
        calls = [
            asyncio.create_task(
                client.call(SLOW, {"tag": n, "wait": 300.0}, request_id=f"call-{n}")
            )
            for n in range(1001)
        ]
        await wait_until(lambda: queued(client, SLOW, 1000), LONG)
        assert client.cancel("call-500")
        assert client.cancel("call-0")
        done, _ = await asyncio.wait([calls[0], calls[500]], timeout=DEADLINE)
        assert len(done) == 2
        await trace.until("cancelled")
        await trace.until("started", 2)
        assert [event.tag for event in trace.events("started")] == ["0", "1"]
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await wait_idle(client, SLOW)
        assert "500" not in trace.tags("started")
        assert trace.count("completed") == 0


async def queued(client: Client, name: str, count: int) -> bool:
    """Whether so many wait at an actor."""
    return bool((await inspect(client, name)).get("queued") == count)


async def test_b87_cancels_overtake_a_full_mailbox(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    worker = ActorSpec("worker", "tests.e2e.cancel_engines:Worker", args={"trace": trace.path})
    async with Cluster(NodeSpec(name="a", actors=[worker])) as cluster, cluster.client() as client:
        ref = client.ref("worker")
        asks = [asyncio.create_task(ref.ask(Work(n, 300.0), timeout=None)) for n in range(1001)]
        await wait_until(lambda: queued(client, "worker", 1000), LONG)
        asks[500].cancel()
        asks[0].cancel()
        await trace.until("cancelled")
        for ask in asks:
            ask.cancel()
        await asyncio.wait(asks)

        async def empty() -> bool:
            found = await inspect(client, "worker")
            # 1: this very question
            return bool(found["in_flight"] == 1 and found["queued"] == 0)

        await wait_until(empty)
        assert await ref.ask(Work(2000, 0.0), timeout=DEADLINE) == 2000
        assert "500" not in trace.tags("started")


async def test_b88_a_unary_call_ends_with_its_client(cluster: Standing, trace: Trace) -> None:
    async with cluster.client() as watcher:
        async with cluster.client() as client:
            call = asyncio.create_task(client.call(SLOW, {"wait": 60.0}))
            await trace.until("started")
            client.close()
        with pytest.raises(Cancelled):
            await call
        await trace.until("cancelled")
        await wait_idle(watcher, SLOW)

        folder = cluster.folder
        with program("tests.e2e.caller", folder, SLOW, "5", '{"wait": 60.0}', "call") as caller:
            await trace.until("started", 6, within=LONG)
            kill(caller.pid)
            await trace.until("cancelled", 6)
        await wait_idle(watcher, SLOW)
        assert trace.count("completed") == 0


async def test_b90_a_deadline_reaches_calls_of_calls(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(nested(trace), road) as cluster, cluster.client() as client:
        for limit in (0.5, 4.0, 16.0):  # on a busy machine both engines may begin too late
            trace.clear()
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=rf"t\.outer\.go.*{limit:g} s"):
                await client.call("t.outer.go", {}, timeout=limit)
            assert limit - 0.01 < time.monotonic() - began < limit + DEADLINE
            await wait_idle(client, "t.outer.go", "t.inner.go")
            if trace.count("started") == 2:
                break
        await trace.until("ended", 2)
        (remaining,) = [each for each in trace.events() if each.what.startswith("remaining=")]
        assert 0 < float(remaining.what.partition("=")[2]) < limit
        await wait_idle(client, "t.outer.go", "t.inner.go")


def nested(trace: Trace, replicas: int = 1) -> NodeSpec:
    """An engine that calls other engines."""
    engines = "tests.e2e.cancel_engines"
    return NodeSpec(
        name="a",
        routers=[RouterSpec()],
        engines=[
            EngineSpec("t.outer.go", f"{engines}:Outer", args={"trace": trace.path}),
            EngineSpec(
                "t.inner.go", f"{engines}:Inner", args={"trace": trace.path}, replicas=replicas
            ),
        ],
    )


async def test_b91_an_abort_hits_exactly_the_request_it_names(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(node(trace, replicas=3), road) as cluster, cluster.client() as client:
        ids = ["req-1", "req-10", "req-100"]
        calls = {
            each: asyncio.create_task(client.call(SLOW, {"tag": each}, request_id=each))
            for each in ids
        }
        await trace.until("started", 3)
        with pytest.raises(LocalProtocolError, match="request id"):
            client.cancel("")
        assert not client.cancel("req")
        assert not client.cancel("req-1000")
        with pytest.raises(LocalProtocolError, match="in flight"):
            await client.call(SLOW, {}, request_id="req-1")
        assert client.cancel("req-1")
        assert not client.cancel("req-1")
        with pytest.raises(Cancelled):
            await calls["req-1"]
        await trace.until("ended")
        assert not client.cancel("req-1")
        assert trace.tags("ended") == {"req-1"}
        assert not calls["req-10"].done()
        assert not calls["req-100"].done()
        # Its id may be used again.
        assert await client.call(SLOW, {"wait": 0.0}, request_id="req-1") == "late"
        assert not client.cancel("req-1")
        for each in ids[1:]:
            assert client.cancel(each, reason="enough")
            with pytest.raises(Cancelled, match="enough"):
                await calls[each]
        await wait_idle(client, *(f"{SLOW}-{n}" for n in range(3)))
