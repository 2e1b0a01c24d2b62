"""Permits and counts come back however a stream ends: here and between nodes, exactly once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, connect
from actors.discovery.files import file_name, instances_folder
from actors.errors import (
    CallHomeError,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    EngineError,
    NoWorkers,
    Overloaded,
    PeerLost,
)
from tests.e2e.routing_engines import ENDS, HERE
from tests.e2e.standing import cluster_on
from tests.e2e.watching import inspect, kill, program, wait_idle
from tests.ports import free_address
from tests.waiting import DEADLINE, LONG, TICK, wait_until

EACH = 20
#: An endpoint of two workers.
PAIR = "t.pair.go"
#: How soon all is back at the latest, in seconds.
BACK = LONG
SPEC = NodeSpec(
    engines=[
        EngineSpec(ENDS, HERE + "Ends", capacity=2 * EACH, name="ends"),
        EngineSpec(PAIR, HERE + "Ends", replicas=2, capacity=2 * EACH, name="pair"),
    ]
)

Part = Callable[[Client], Awaitable[None]]


async def outcomes(*calls: Awaitable[object]) -> list[object]:
    """How each ends, as the class of its error, or as what it gave."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each for each in found]


async def _calls(client: Client, expected: type | None, **request: object) -> None:
    calls = [client.call(ENDS, request, timeout=LONG) for _ in range(EACH)]
    found = await outcomes(*calls)
    if expected is None:
        assert len(set(found)) == 1
        assert isinstance(found[0], int)
    else:
        assert found == [expected] * EACH


async def success(client: Client) -> None:
    await _calls(client, None, do="ok")


async def handler_error(client: Client) -> None:
    await _calls(client, EngineError, do="raise")
    await _calls(client, EngineError, do="connection")


async def encode_error(client: Client) -> None:
    await _calls(client, EncodeError, do="unencodable")


async def cancelled(client: Client) -> None:
    """In the middle of a stream, before its first item, and before it can have arrived."""
    for number in range(EACH):
        async with client.stream(ENDS, {"items": number % 2, "do": "wait"}) as items:
            if number % 2:
                assert await anext(items) == 0
    calls = [asyncio.create_task(client.call(ENDS, {"do": "wait"})) for _ in range(EACH)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    assert await outcomes(*calls) == [asyncio.CancelledError] * EACH


async def timed_out(client: Client) -> None:
    calls = [client.call(ENDS, {"do": "wait"}, timeout=TICK) for _ in range(EACH)]
    assert await outcomes(*calls) == [DeadlineExceeded] * EACH


async def worker_killed(client: Client) -> None:
    streams = []
    for _ in range(EACH):
        stream = await client.stream(ENDS, {"items": 1, "do": "wait"}).__aenter__()
        assert await anext(stream) == 0
        streams.append(stream)
    kill(client.ref("ends").address.pid)
    assert await outcomes(*map(anext, streams)) == [PeerLost] * EACH
    for stream in streams:
        await stream.aclose()

    async def serves() -> bool:
        try:
            return bool(await client.call(ENDS, {"do": "ok"}, timeout=DEADLINE))
        except CallHomeError:
            return False

    await wait_until(serves, LONG, "the worker is back")


async def one_of_two_killed(client: Client) -> None:
    """What the dead one had comes back, and what the other one has is still counted there."""
    streams = [await client.stream(PAIR, {"items": 1, "do": "wait"}).__aenter__() for _ in (0, 1)]
    assert [await anext(each) for each in streams] == [0, 0]
    loads = {each.instance: each.load for each in await client.workers(PAIR)}
    assert sorted(loads.values()) == [1, 1]
    dead, live = (each for each in client.records() if each.instance in loads)
    kill(dead.address.pid)
    ends = [asyncio.ensure_future(anext(each)) for each in streams]
    (broken,), (other,) = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(broken.exception(), PeerLost)

    async def one_is_left() -> bool:
        found = await inspect(client, "router")
        loads = {each["instance"]: each["load"] for each in found["workers"] if each["load"]}
        return found["in_flight"] == 1 and loads == {live.instance: 1}

    await wait_until(one_is_left, what="the other's load is what it was")
    assert (await inspect(client, live.address.name))["in_flight"] == 1
    other.cancel()
    for each in streams:
        await each.aclose()


async def client_killed(client: Client, folder: str) -> None:
    request = json.dumps({"items": 1, "do": "wait"})
    with program("tests.e2e.caller", folder, ENDS, str(EACH), request) as caller:
        assert caller.stdout is not None
        assert await asyncio.to_thread(caller.stdout.readline) == "open\n"
        assert (await inspect(client, "router"))["in_flight"] == EACH
        assert (await inspect(client, "ends"))["in_flight"] == EACH
        kill(caller.pid)
        await wait_idle(client, "ends", within=BACK)


async def test_b111_permits_and_gauges_are_back_after_every_end(road: str) -> None:
    parts: list[Part] = [
        success, handler_error, encode_error, cancelled, timed_out, one_of_two_killed,
        worker_killed,
    ]  # fmt: skip
    async with cluster_on(SPEC, road) as cluster, cluster.client() as client:
        for part in parts:
            await part(client)
            await wait_idle(client, "ends", within=BACK)
        await client_killed(client, cluster.nodes[0].folder)
        assert await client.call(ENDS, {"do": "ok"})
        if road == "nodes":
            await wait_idle(client, "ends", "ingress", within=BACK)


def offer(directory: Path, endpoint: str, instance: int, native: bool) -> None:
    """A record of a worker behind a door that is closed."""
    path = Path(instances_folder(str(directory)))
    path.mkdir(parents=True, exist_ok=True)
    namespace, component, name = endpoint.split(".")
    record = {
        "type": "Endpoint",
        "namespace": namespace,
        "component": component,
        "endpoint": name,
        "instance_id": instance,
        "transport": {"tcp": f"{free_address()}/{instance:x}/{name}"},
        "request_plane_codec": "msgpack",
    }
    if native:
        record["callhome"] = {"speaks": "callhome1", "ingress": "1", "many": False, "capacity": 8}
    (path / file_name(endpoint, instance)).write_text(json.dumps(record))


@asynccontextmanager
async def closed_doors(directory: Path) -> AsyncIterator[Client]:
    """A client of a node that knows workers of Dynamo's and of ours which nobody can reach."""
    offer(directory, "t.closed.dynamo", 0xD1, native=False)
    offer(directory, "t.closed.ours", 0xC1, native=True)
    offer(directory, PAIR, 0xD2, native=False)
    live = EngineSpec(PAIR, HERE + "Ends", name="live")
    spec = NodeSpec(directory=str(directory), engines=[live])
    async with Cluster(spec) as cluster, cluster.client() as client:
        yield client


async def test_b111_permits_are_back_when_nobody_can_be_reached(tmp_path: Path) -> None:
    async with closed_doors(tmp_path) as client:
        for endpoint in ("t.closed.dynamo", "t.closed.ours"):

            async def known(endpoint: str = endpoint) -> bool:
                workers = (await inspect(client, "router")).get("workers", ())
                return any(each["endpoint"] == endpoint for each in workers)

            await wait_until(known, what=f"{endpoint} is known")
            calls = [client.call(endpoint, 1, timeout=LONG) for _ in range(EACH)]
            for found in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(found, ConnectionLost), found
                assert not isinstance(found, NoWorkers)
            await wait_idle(client, within=BACK)
        # Beside a worker that lives a closed door is seen by nobody.
        assert len(await client.workers(PAIR)) == 2
        calls = [client.call(PAIR, {"do": "ok"}, timeout=LONG) for _ in range(EACH)]
        assert await outcomes(*calls) == [client.ref("live").address.pid] * EACH
        assert client.statistics()["retried"] > 0
        await wait_idle(client, "live", within=BACK)


async def carried(client: Client) -> bool:
    """Whether the router has one stream, and one worker a load of one."""
    found = await inspect(client, "router")
    loads = [each["load"] for each in found["workers"] if each["permits"]]
    return found["in_flight"] == 1 and loads == [1]


async def test_b113_a_place_is_taken_until_the_stream_has_ended(road: str, tmp_path: Path) -> None:
    one = EngineSpec(ENDS, HERE + "Ends", capacity=1, queue=0, name="ends")
    async with cluster_on(NodeSpec(engines=[one]), road) as cluster, cluster.client() as client:
        async with client.stream(ENDS, {"items": 3, "gate": str(tmp_path)}) as items:
            first = asyncio.ensure_future(anext(items))
            await wait_until(partial(carried, client), what="it has left, before any item has come")
            assert not first.done()
            for number in range(3):
                assert await carried(client)
                with pytest.raises(Overloaded):
                    await client.call(ENDS, {"do": "ok"})
                (tmp_path / f"{number}").touch()
                assert await (first if not number else anext(items)) == number
            assert await carried(client), "the answer is to come behind the three"
            (tmp_path / "3").touch()
            assert len([item async for item in items]) == 1
        await wait_idle(client, "ends")
        assert await client.call(ENDS, {"do": "ok"})


async def test_what_is_back_is_back_outside_every_node() -> None:
    door = free_address()
    spec = NodeSpec(engines=[EngineSpec(ENDS, HERE + "Ends", name="ends")], listen=door)
    async with (
        Cluster(spec) as cluster,
        cluster.client() as near,
        connect(f"tcp://{door}") as client,
    ):
        assert (await client.call(ENDS, {"do": "ok"})) != os.getpid()
        for part in (handler_error, timed_out, cancelled):
            await part(client)
        await wait_idle(near, "ends", "ingress", within=BACK)
