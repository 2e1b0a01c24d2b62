"""Field reports on cancelling, B85 on the wire and B93 to B96: how ends look from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors import Client, EngineSpec, NodeSpec
from actors.errors import (
    Cancelled,
    ConnectionLost,
    EncodeError,
    EngineError,
    PeerLost,
)
from actors.messages import End, Items, Kill, Stop
from tests.e2e.raw import raw_home
from tests.e2e.slow import SLOW, node
from tests.e2e.standing import Standing, cluster_on
from tests.e2e.test_cancel import nested, queued
from tests.e2e.watching import Trace, inspect, kill, wait_idle
from tests.waiting import DEADLINE, wait_until

#: What is done by hand is done on the engines' own node.
NEAR = pytest.mark.parametrize("slow", ["node"], indirect=True)


@pytest.mark.parametrize("kind", [Stop, Kill])
@NEAR
async def test_b85_a_cancel_that_comes_before_its_open_is_remembered(
    cluster: Standing, trace: Trace, kind: type[Stop | Kill]
) -> None:
    async with cluster.client() as client:
        engine = client.ref(SLOW).address
        with raw_home(cluster.folder) as home:
            home.send(engine, kind(home.address.incarnation, 7, "no more"), control=True)
            await home.settled(engine)
            home.open(engine, 7, SLOW, {"tag": "seven"})
            home.open(engine, 8, SLOW, {"tag": "eight", "wait": 0.0})
            await home.ended(8)
            ends = home.got(End, 7)
            if kind is Stop:
                assert [(each.total, each.error) for each in ends] == [(0, None)]
            else:
                assert ends == []  # who kills a stream has forgotten it
            # Only once: another stream of the same number is another stream.
            home.open(engine, 7, SLOW, {"tag": "again", "wait": 0.0})
            await trace.until("started", 2)
        assert trace.tags("started") == {"eight", "again"}
        await wait_idle(client, SLOW)


async def test_b93_who_waits_for_the_next_item_hears_of_the_cancel(
    cluster: Standing, trace: Trace
) -> None:
    async with cluster.client() as client:
        for items in (0, 1):
            stream = client.stream(SLOW, {"items": items}, request_id="it")
            async with stream:
                for number in range(items):
                    assert await anext(stream) == number
                waiting = asyncio.create_task(anext(stream))
                await trace.until("started", items + 1)
                assert client.cancel("it", reason="a change of mind")
                with pytest.raises(Cancelled, match="a change of mind"):
                    await asyncio.wait_for(waiting, DEADLINE)
                for _ in range(2):
                    with pytest.raises(Cancelled):
                        await asyncio.wait_for(anext(stream), DEADLINE)
        await wait_idle(client, SLOW)


async def test_b94_stop_kill_and_loss_end_a_stream_in_three_ways(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(node(trace), road) as cluster, cluster.client() as client:
        stopped = client.stream(SLOW, {"tag": "stop", "items": 2, "polite": True})
        async with stopped:
            await trace.until("sent")
            stopped.stop()
            assert [item async for item in stopped] == [0, 1, "last"]
            with pytest.raises(StopAsyncIteration):
                await anext(stopped)

        killed = client.stream(SLOW, {"tag": "kill", "items": 2, "polite": True})
        async with killed:
            await trace.until("sent", 2)
            assert await anext(killed) == 0
            killed.kill("enough")
            with pytest.raises(Cancelled, match="enough"):
                await anext(killed)
        await trace.until("cancelled")

        lost = client.stream(SLOW, {"tag": "loss", "items": 2})
        async with lost:
            await trace.until("sent", 3)
            kill(client.ref(SLOW).address.pid)
            assert [await anext(lost), await anext(lost)] == [0, 1]
            with pytest.raises(PeerLost, match="SIGKILL") as caught:
                await anext(lost)
            assert caught.value.code.startswith(ConnectionLost.code.partition(".")[0])
        # A handler that was asked went on, one that was dropped did not; each ended once.
        assert trace.tags("stopped") == trace.tags("completed") == {"stop"}
        assert [event.tag for event in trace.events("ended")] == ["stop", "kill"]


@NEAR
async def test_b94_each_trace_on_the_wire_has_one_end_at_most(
    cluster: Standing, trace: Trace
) -> None:
    async with cluster.client() as client:
        engine, router = client.ref(SLOW).address, client.ref("router").address
        with raw_home(cluster.folder) as home:
            me = home.address.incarnation
            for stream in (1, 2):
                home.open(router, stream, SLOW, {"tag": stream, "items": 3, "polite": True})
            await trace.until("sent", 2)
            home.send(engine, Stop(me, 1, "please"), control=True)
            await home.ended(1)
            home.send(engine, Kill(me, 2, "now"), control=True)
            await trace.until("cancelled")
            for kind in (Stop, Kill):  # for a finished stream: nothing happens
                home.send(engine, kind(me, 1, "late"), control=True)
            home.open(router, 3, SLOW, {"wait": 0.0})
            await home.ended(3)  # behind all that the engine had to say of the others
            assert [type(each) for each in home.of(1)] == [Items, End]
            assert home.got(End, 1)[0].error is None
            assert home.got(End, 1)[0].total == 4
            assert [type(each) for each in home.of(2)] == [Items]
        await wait_idle(client, SLOW)


@NEAR
async def test_b94_a_home_that_forgets_a_stream_has_it_killed(
    cluster: Standing, trace: Trace
) -> None:
    async with cluster.client() as client:
        engine = client.ref(SLOW).address
        stream = await client.stream(SLOW, {"items": 1}).__aenter__()
        assert await anext(stream) == 0
        opened = client.runtime.home.streams.popitem()[1]  # as a home that lost its memory
        client.runtime.home._by_id.clear()
        with raw_home(cluster.folder) as home:
            # Anything for the stream that comes now is answered with a Kill to whoever sends it.
            home.send(client.runtime.address, Items(opened.number, 1, [b"\xc0"]))
            await wait_until(lambda: home.got(Kill), what="a Kill")
            assert home.got(Kill)[0].stream == opened.number
            forgotten = Kill(client.runtime.address.incarnation, opened.number, "forgotten")
            client.runtime.port.send(engine, forgotten, control=True)  # none but the home may
            await trace.until("cancelled")
        await wait_idle(client, SLOW)


async def test_b96_siblings_of_a_failed_call_do_not_run_on(tmp_path: Path, road: str) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(nested(trace, replicas=3), road) as cluster, cluster.client() as client:
        fan = [{"tag": "bad", "fails": True, "after": 4}, {"tag": "one"}, {"tag": "two"}]
        with pytest.raises(EngineError, match="no luck"):
            await client.call("t.outer.go", {"fan": fan})
        await trace.until("ended", 4)
        assert trace.tags("ended") == {"outer", "bad", "one", "two"}
        await wait_idle(client, "t.outer.go", *(f"t.inner.go-{n}" for n in range(3)))


async def test_b96_a_request_that_cannot_be_encoded_leaves_nothing(
    cluster: Standing, trace: Trace
) -> None:
    async with cluster.client() as client:
        before = (await inspect(client, "router"))["counters"]["requests"]
        for _ in range(3):
            with pytest.raises(EncodeError, match=r'request\["wait"\]'):
                await client.call(SLOW, {"wait": object()}, request_id="it")
            with pytest.raises(EncodeError):
                async with client.stream(SLOW, {"wait": {1, 2}}, request_id="it"):
                    pass
        assert client.runtime.home.streams == {}
        found = await inspect(client, "router")
        assert found["in_flight"] == 0
        assert found["counters"]["requests"] == before
        assert await client.call(SLOW, {"wait": 0.0}, request_id="it") == "late"
        assert trace.count("started") == 1


async def test_what_is_stopped_before_it_began_ends_cleanly_without_an_item(
    tmp_path: Path, road: str
) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(node(trace, capacity=1), road) as cluster, cluster.client() as client:
        for when in ("before the open", "with the open", "in the queue"):
            trace.clear()
            await stopped_before_it_began(client, trace, when)
        counters = (await inspect(client, SLOW))["counters"]
        assert [name for name in counters if name.startswith("errors")] == []


async def stopped_before_it_began(client: Client, trace: Trace, when: str) -> None:
    async with client.stream(SLOW, {"tag": "first"}) as first:
        await trace.until("started")
        stream = client.stream(SLOW, {"tag": "never"})
        if when == "before the open":
            stream.stop("no more")
        async with stream:
            if when == "in the queue":
                await wait_until(lambda: queued(client, SLOW, 1))
            stream.stop("no more")
            assert [item async for item in stream] == []
        # A call has no answer then, and says why.
        call = asyncio.create_task(client.call(SLOW, {"tag": "never"}, request_id="it"))
        await asyncio.sleep(0)
        if when == "in the queue":
            await wait_until(lambda: queued(client, SLOW, 1))
        assert client.cancel("it", kill=False, reason="no more")
        with pytest.raises(Cancelled, match=r"t\.slow\.go: no more"):
            await call
        first.kill()
    await wait_idle(client, SLOW)
    assert trace.tags("started") == {"first"}


async def test_a_stop_that_ends_an_inner_call_is_no_error_of_the_outer_engine(
    tmp_path: Path, road: str
) -> None:
    trace = Trace(tmp_path)
    engines = "tests.e2e.cancel_engines"
    spec = NodeSpec(
        engines=[
            EngineSpec("t.through.go", f"{engines}:Through", args={"trace": trace.path}),
            EngineSpec(
                "t.inner.go", f"{engines}:Inner", args={"trace": trace.path}, capacity=1
            ),
        ]
    )  # fmt: skip
    async with cluster_on(spec, road) as cluster, cluster.client() as client:
        for number, how in enumerate(("call", "stream", "group")):
            trace.clear()
            await inner_call_is_stopped(client, trace, how)
            counters = (await inspect(client, "t.through.go"))["counters"]
            assert [name for name in counters if name.startswith("errors")] == []
            assert counters["cancelled"] == 2 * (number + 1)


async def inner_call_is_stopped(client: Client, trace: Trace, how: str) -> None:
    async with client.stream("t.inner.go", {}) as first:  # the others wait behind it
        await trace.until("started")
        stream = client.stream("t.through.go", {"how": how})
        async with stream:
            waiting = 2 if how == "group" else 1
            await wait_until(lambda: queued(client, "t.inner.go", waiting))
            stream.stop("enough")
            assert [item async for item in stream] == []
        call = asyncio.create_task(client.call("t.through.go", {"how": how}, request_id="it"))
        await trace.until("through", 2)
        client.cancel("it", kill=False, reason="enough")
        with pytest.raises(Cancelled, match=r"t\.through\.go: enough"):
            await call
        first.kill()
    await wait_idle(client, "t.through.go", "t.inner.go")
    assert trace.count("started") == 1
