"""Streams through a real router and real workers: what arrives, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec
from actors.cluster.folder import NodeInfo
from actors.errors import Cancelled, LocalProtocolError, PeerLost, SpawnError
from tests.e2e.engines import GENERATOR, HERE, PART, THREAD, TOTAL, check
from tests.e2e.standing import ROADS, Standing, inspect, standing, wait_idle
from tests.waiting import DEADLINE, LONG, TICK, wait_until

GO = "t.part.go"
MIB = 1 << 20


@pytest.fixture(scope="module", params=ROADS)
def node(request: pytest.FixtureRequest) -> Iterator[Standing]:
    with standing(NodeSpec(engines=[PART, THREAD, GENERATOR, TOTAL]), request.param) as found:
        yield found


async def collect(client: Client, endpoint: str, request: Any, **options: Any) -> list[Any]:
    async with client.stream(endpoint, request, timeout=LONG, **options) as items:
        return [item async for item in items]


def pid_of(info: NodeInfo, name: str) -> int:
    return next(child.pid for child in info.children if child.name == name)


def rss(pid: int) -> int:
    """Resident bytes of a process, shared memory included."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------------ how it ends


async def test_b67_a_stream_cut_by_sigkill_is_no_finished_one() -> None:
    async with Cluster(NodeSpec(engines=[PART])) as cluster, cluster.client() as client:
        (old,) = [each.instance for each in client.records() if each.endpoint == GO]
        async with client.stream(GO, {"do": "hang_after", "n": 5}, timeout=LONG) as items:
            assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
            os.kill(pid_of(cluster.nodes[0], "part"), signal.SIGKILL)
            with pytest.raises(PeerLost, match="SIGKILL") as lost:
                await anext(items)
        assert "after 5 items" in str(lost.value)

        async def back() -> bool:
            found = [each.instance for each in client.records() if each.endpoint == GO]
            return bool(found) and old not in found

        await wait_until(back)
        assert await collect(client, GO, {"do": "numbers", "n": 3}) == [0, 1, 2]


async def test_b71_items_that_were_delivered_are_never_repeated() -> None:
    spec = EngineSpec(endpoint=GO, engine=HERE + "Part", replicas=2, restart="never")
    async with Cluster(NodeSpec(engines=[spec])) as cluster, cluster.client() as client:
        async with client.stream(GO, {"do": "die_after", "n": 3}, timeout=LONG) as items:
            got = [await anext(items) for _ in range(3)]
            await let_die(client, got[0][0])
            with pytest.raises(PeerLost, match="exit code 9"):
                await anext(items)
        assert [number for _, number in got] == [0, 1, 2]
        assert len({pid for pid, _ in got}) == 1
        assert items.received == 3
        assert await collect(client, GO, {"do": "numbers", "n": 3}) == [0, 1, 2]


async def let_die(client: Client, pid: int) -> None:
    """Open the gate of the worker with this pid, past the router, which would choose the other."""
    name = next(each.address.name for each in client.records() if each.address.pid == pid)
    with suppress(PeerLost):  # it may die before it has answered
        await direct(client, name, {"do": "open_gate"})


async def direct(client: Client, engine: str, request: Any) -> Any:
    """Call one worker of the endpoint without a router."""
    return await client.ref(engine)._caller.call(GO, request, timeout=LONG)


async def test_b73_the_end_needs_no_room_in_a_full_window(node: Standing) -> None:
    async with node.client(window_items=1) as client, node.client() as other:
        async with client.stream(GO, {"do": "numbers", "n": 1, "id": "b73"}, timeout=LONG) as items:
            await wait_until(lambda: ended(other, "b73"), what="the handler has returned")
            await wait_until(lambda: items.received == 1)
            async with asyncio.timeout(DEADLINE):
                assert [item async for item in items] == [0]
        assert await collect(client, GO, {"do": "numbers", "n": 20}) == list(range(20))
        assert await client.call(GO, {"do": "echo", "value": 3}, timeout=LONG) == 3


async def ended(client: Client, name: str) -> bool:
    return bool((await client.call(GO, {"do": "look", "of": name}, timeout=LONG))["ended"])


async def test_b73_the_producer_ends_when_its_consumer_is_gone(node: Standing) -> None:
    async with node.client() as other:
        async with node.client(window_items=1) as client:
            request = {"do": "numbers", "n": 5, "id": "b73 gone"}
            async with client.stream(GO, request, timeout=LONG) as items:
                assert await anext(items) == 0
            await wait_until(lambda: ended(other, "b73 gone"))
        await wait_idle(other)


# --------------------------------------------------------------------------------- who runs ahead


@pytest.mark.parametrize("road", ["shared memory", "in line"])
async def test_b68_a_producer_does_not_run_ahead_of_its_reader(road: str) -> None:
    size = 64 << 10
    settings = {"arena_step": 32 * MIB, "inline_below": MIB if road == "in line" else 1024}
    spec = NodeSpec.from_dict({"settings": settings, "engines": [PART.to_dict()]})
    async with Cluster(spec) as cluster, cluster.client() as client:
        pid = pid_of(cluster.nodes[0], "part")
        request = {"do": "blocks", "kind": "bytes", "size": size, "id": "b68"}
        await collect(client, GO, request | {"n": 300})  # pages that stay are touched once
        base = rss(pid)
        async with client.stream(GO, request | {"n": 2000}, timeout=LONG) as items:
            for _ in range(5):
                assert len(await anext(items)) == size
                await asyncio.sleep(TICK)  # a slow reader is what this is about
                look = await client.call(GO, {"do": "look", "of": "b68"}, timeout=LONG)
                assert look["yielded"] <= 256 + 200
                assert rss(pid) - base < 50 * MIB
            rest = [len(item) async for item in items]
        assert rest == [size] * 1995


async def test_b74_the_window_counts_bytes_too(node: Standing) -> None:
    size, cap = 16 * MIB, 32 * MIB
    async with node.client(window_items=64, window_bytes=cap) as client, node.client() as other:
        request = {"do": "blocks", "kind": "array", "size": size, "n": 6, "id": "b74"}
        async with client.stream(GO, request, timeout=LONG) as items:
            await wait_until(lambda: items.received >= 2, what="the window is full")
            for _ in range(5):
                held = await other.call(GO, {"do": "memory"}, timeout=LONG)
                assert held["in_use"] <= cap + size + held["slots"] * 65_536
                await asyncio.sleep(TICK / 2)
            assert items.received == 2
            assert [item.nbytes async for item in items] == [size] * 6


async def test_b74_an_item_larger_than_the_window_passes_alone(node: Standing) -> None:
    async with node.client(window_bytes=MIB) as client:
        request = {"do": "sized", "kind": "array", "sizes": [4 * MIB, 5 * MIB]}
        for number, item in await collect(client, GO, request):
            check("array", number, request["sizes"][number], item)
        one = {"do": "blocks", "kind": "array", "size": 4 * MIB, "n": 1}
        assert (await client.call(GO, one, timeout=LONG)).nbytes == 4 * MIB
        one["kind"] = "text"
        assert len(await client.call(GO, one, timeout=LONG)) == 4 * MIB


async def test_b80_a_reader_that_paused_gets_every_item(node: Standing) -> None:
    async with node.client() as client, node.client() as other:
        got = []
        request = {"do": "numbers", "n": 5000, "id": "b80"}
        async with client.stream(GO, request, gap_timeout=LONG, timeout=3 * LONG) as items:
            (stream,) = client.runtime.home.streams.values()
            async for item in items:
                got.append(item)
                if item == 2000:
                    await wait_until(lambda: stream.window.items <= 0, what="all is sent that may")
                    # Longer than the gap limit, which does not run while the reader is what waits.
                    stream.progress -= 2 * LONG
                    await asyncio.sleep(5 * TICK)  # it is looked at twice a second
                    assert stream.error is None
                    look = await other.call(GO, {"do": "look", "of": "b80"}, timeout=LONG)
                    assert look["yielded"] < 2000 + 1024
        assert got == list(range(5000))


# ------------------------------------------------------------------------------------- early ends


async def test_b70_a_break_ends_the_generator(node: Standing) -> None:
    async with node.client() as client, node.client() as other:
        async with client.stream(GO, {"do": "forever", "id": "b70"}) as items:
            async for item in items:
                if item == 3:
                    break
        await wait_until(lambda: ended(other, "b70"))
        await wait_idle(other)


async def test_b70_a_dropped_iterator_ends_the_generator(node: Standing) -> None:
    async with node.client() as client, node.client() as other:
        async for item in client.stream(GO, {"do": "forever", "id": "b70 drop"}):
            if item == 3:
                break
        del item
        await wait_until(lambda: ended(other, "b70 drop"))
        await wait_idle(other)


async def test_b70_a_kept_iterator_does_not_keep_the_generator(node: Standing) -> None:
    async with node.client() as client, node.client() as other:
        async with client.stream(GO, {"do": "forever", "id": "b70 kept"}) as items:
            iterator = aiter(items)
            for _ in range(3):
                await anext(iterator)
        await wait_until(lambda: ended(other, "b70 kept"))
        with pytest.raises(Cancelled, match="left the stream"):
            await anext(iterator)
        await wait_idle(other)


async def test_b70_a_cancelled_task_ends_the_generator(node: Standing) -> None:
    async with node.client() as client, node.client() as other:
        seen = asyncio.Event()

        async def read() -> None:
            async with client.stream(GO, {"do": "forever", "id": "b70 task"}) as items:
                async for _ in items:
                    seen.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(LONG):
            await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: ended(other, "b70 task"))
        await wait_idle(other)


# ------------------------------------------------------------------------------------------ order


async def test_b76_replies_reach_their_own_callers(node: Standing) -> None:
    async with node.client() as one, node.client() as two:

        async def ask(client: Client, value: str, name: str | None) -> None:
            request = {"do": "echo", "value": value}
            answer = await client.call(
                GO, request, timeout=LONG, request_id=name, metadata={"user": "1"}
            )
            assert answer == value

        # 100 concurrent calls each; then 100 rounds in which both use the very same request id.
        await asyncio.gather(*[ask(c, f"{i} {n}", None) for n in range(100)
                               for i, c in enumerate((one, two))])  # fmt: skip
        for n in range(100):
            await asyncio.gather(ask(one, f"a{n}", "1"), ask(two, f"b{n}", "1"))


async def test_b76_an_id_in_flight_is_refused_and_its_stream_goes_on(node: Standing) -> None:
    async with node.client() as client:
        request = {"do": "hang_after", "n": 2}
        async with client.stream(GO, request, request_id="1") as items:
            assert await anext(items) == 0
            with pytest.raises(LocalProtocolError, match="'1' is in flight"):
                await client.call(GO, {"do": "pid"}, request_id="1", timeout=LONG)
            assert await anext(items) == 1
        again = await client.call(GO, {"do": "pid"}, request_id="1", timeout=LONG)
        assert again == node.pids["part"]


async def test_b77_small_items_do_not_overtake_large_ones(node: Standing) -> None:
    sizes = [8 * MIB if number % 2 else 10 for number in range(200)]

    async def read(client: Client) -> None:
        number = 0
        async with client.stream(
            GO, {"do": "sized", "kind": "bytes", "sizes": sizes}, timeout=2 * LONG
        ) as items:
            async for found, item in items:
                assert found == number
                assert len(item) == sizes[number]
                assert item[0] == item[-1] == number % 251
                number += 1
        assert number == len(sizes)

    async with node.client() as client:
        await asyncio.gather(*[read(client) for _ in range(3)])


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_b79_no_size_is_a_limit_of_lines(node: Standing, codec: str) -> None:
    sizes = [65_535, 65_537, MIB, 32 * MIB]
    async with node.client() as client:
        for kind in ("text", "bytes"):
            found = await collect(
                client, GO, {"do": "sized", "kind": kind, "sizes": sizes}, codec=codec
            )
            assert [number for number, _ in found] == [0, 1, 2, 3]
            for number, item in found:
                check(kind, number, sizes[number], item)
            del found


async def test_b82_items_share_messages_and_batches(node: Standing) -> None:
    streams, tokens = 200, 100
    async with node.client() as client, node.client() as other:

        async def read() -> None:
            got = await collect(client, GO, {"do": "gated", "n": tokens})
            assert got == list(range(tokens))

        readers = [asyncio.create_task(read()) for _ in range(streams)]
        await wait_until(lambda: carried(other, streams), what="all streams wait at the gate")
        before = client.runtime.port.statistics()
        await direct(other, "part", {"do": "open_gate"})
        await asyncio.gather(*readers)
        after = client.runtime.port.statistics()
        messages = after.messages_in - before.messages_in
        batches = after.batches_in - before.batches_in
        assert messages <= streams * tokens / 4 + 2 * streams
        assert batches <= streams * tokens / 10


async def carried(client: Client, count: int) -> bool:
    return bool((await inspect(client.ref("part")))["in_flight"] == count)


async def test_b82_a_single_item_does_not_wait_for_company(node: Standing) -> None:
    async with node.client() as client:
        single = whole = 60.0
        for _ in range(200):  # until the machine has a quiet moment: a timer would show each time
            begun = time.perf_counter()
            await client.call(GO, {"do": "echo", "value": 0}, timeout=LONG)
            whole = min(whole, time.perf_counter() - begun)
            begun = time.perf_counter()
            async with client.stream(GO, {"do": "hang_after", "n": 1}, timeout=LONG) as items:
                assert await anext(items) == 0
                single = min(single, time.perf_counter() - begun)
            if single < 0.1 * TICK:
                break
        # Far below any timer of ours, or as soon as where the end of the stream comes behind it.
        assert single < max(0.1 * TICK, 2 * whole)


# ----------------------------------------------------------------------------------------- shapes


async def test_b83_every_accepted_shape_streams(node: Standing) -> None:
    async with node.client() as client:
        assert await collect(client, GO, {"do": "numbers", "n": 3}) == [0, 1, 2]
        threaded = await collect(client, "t.thread.go", {"n": 3, "pause": 0.0})
        assert threaded == [[0, False], [1, False], [2, False]]
        assert await collect(client, "t.generator.go", {"n": 3}) == [0, 1, 2]
        async with client.open("t.total.go", timeout=LONG) as numbers:
            for number in range(5):
                await numbers.send(number)
            await numbers.end()
            assert [answer async for answer in numbers] == [10]


async def test_b83_a_plain_function_is_refused_at_the_start_by_name() -> None:
    spec = EngineSpec(endpoint="t.list.go", engine="tests.e2e.engines:make")
    with pytest.raises(
        SpawnError, match=r"t\.list\.go.*constructor.*make.*plain function"
    ) as caught:
        async with asyncio.timeout(LONG), Cluster(NodeSpec(engines=[spec])):
            pytest.fail("the cluster came up")
    assert "fix the constructor" not in caught.value.message  # it has none


async def test_b83_a_sleeping_generator_blocks_nobody(node: Standing) -> None:
    async with node.client() as client:
        request = {"n": 100, "pause": 2 * TICK}
        async with client.stream("t.thread.go", request, timeout=LONG) as slow:
            assert await anext(slow) == [0, False]
            quick = [collect(client, "t.thread.go", {"n": 2, "pause": 0.0}) for _ in range(3)]
            assert await asyncio.gather(*quick) == [[[0, False], [1, False]]] * 3
            assert slow.received < 100


async def test_a_generator_in_a_thread_is_cancelled_between_items(node: Standing) -> None:
    async with node.client() as client:
        async with client.stream("t.thread.go", {"n": 10_000, "pause": TICK / 2}) as items:
            await anext(items)
        await wait_idle(client)


async def test_after_all_of_it_the_workers_hold_nothing(node: Standing) -> None:
    async with node.client() as client:
        await wait_idle(client)

        async def empty() -> bool:
            refs = map(client.ref, ("part", "thread", "generator", "total"))
            held = [(await inspect(ref))["counters"]["memory.slots"] for ref in refs]
            return not any([*held, (await client.call(GO, {"do": "memory"}, timeout=LONG))["lent"]])

        await wait_until(empty, what="nobody holds or lends anything")
