"""What callers see while a piece of the road to another node is started again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec
from actors.errors import CallHomeError, ConnectionLost, NoWorkers, PeerLost
from tests.e2e.watching import inspect, kill
from tests.ports import free_address
from tests.waiting import LONG, wait_until

GO = "t.brisk.go"
ENGINE = EngineSpec(GO, "tests.e2e.cancel_engines:Brisk")


@asynccontextmanager
async def nodes(directory: str) -> AsyncIterator[tuple[Cluster, Client]]:
    """A client on node ``a`` of the engines on ``b`` and ``c``."""
    doors = free_address(), free_address()
    specs = [
        NodeSpec("a", peers=doors, directory=directory),
        *(
            NodeSpec(name, engines=[ENGINE], listen=door, directory=directory)
            for name, door in zip("bc", doors, strict=True)
        ),
    ]
    async with Cluster(specs) as cluster, cluster.client() as client:

        async def both() -> bool:
            return len([each for each in await workers(client) if each]) == 2

        await wait_until(both, what="both engines are known")
        yield cluster, client


async def workers(client: Client) -> list[str]:
    found = await inspect(client, "router")
    return [each["worker"] for each in found["workers"]]


async def failures(client: Client, back: Callable[[], bool]) -> list[tuple[float, CallHomeError]]:
    """What comes of calls, one after the other, until ``back`` is true and 100 more have gone well:
    when each that failed had begun, and how it failed.
    """
    found: list[tuple[float, CallHomeError]] = []
    begun, well = time.monotonic(), 0
    while well < 100:
        now = time.monotonic()
        assert now - begun < 2 * LONG, found
        try:
            await client.call(GO, {"items": 1}, timeout=LONG)
        except CallHomeError as error:
            found.append((now, error))
        else:
            well += back()
        await asyncio.sleep(0)
    return found


async def served(client: Client, instance: int) -> None:
    """Wait until this worker, and no other, has answered."""

    async def answered() -> bool:
        with contextlib.suppress(CallHomeError):
            await client.call(GO, {"items": 1}, timeout=LONG, instance=instance)
            return True
        return False

    await wait_until(answered, what="its worker answers")


async def quarantined(client: Client, instance: int) -> bool:
    """Whether this worker, and no other, is left alone, and has no stream of the router's."""
    found = (await inspect(client, "router"))["workers"]
    left = [each for each in found if each["state"] == "quarantined"]
    return [(each["instance"], each["permits"]) for each in left] == [(instance, 0)]


def pid(cluster: Cluster, node: int, name: str) -> int:
    return next(child.pid for child in cluster.nodes[node].children if child.name == name)


@pytest.mark.parametrize("directory", [False, True])
async def test_conformance_14_an_ingress_that_starts_again_costs_a_few_calls_at_once(
    tmp_path: Path, directory: bool
) -> None:
    """A stream through it is one error, which puts its worker into quarantine beside the other."""
    async with nodes(str(tmp_path / "records") if directory else "") as (cluster, client):
        door = cluster.nodes[1].listen
        (behind,) = (each.instance for each in await client.workers(GO) if each.where == door)
        many = {"items": 1_000_000, "size": 1}
        back = asyncio.Event()
        async with client.stream(GO, many, instance=behind) as items:
            await anext(items)
            kill(pid(cluster, 1, "ingress"))
            calls = asyncio.create_task(failures(client, back.is_set))
            with pytest.raises(ConnectionLost):
                async for _ in items:
                    pass
        await wait_until(lambda: quarantined(client, behind), what="its worker is left alone")
        alone = time.monotonic()
        await served(client, behind)
        back.set()
        failed = await calls
        assert len(failed) < 20
        assert [each for each in failed if each[0] > alone] == []


async def test_a_router_that_starts_again_does_not_say_that_nothing_is_served(
    tmp_path: Path,
) -> None:
    async with nodes("") as (cluster, client):
        old = client.ref("router").address
        async with client.stream(GO, {"items": 1_000_000, "size": 1}) as items:
            await anext(items)
            kill(pid(cluster, 0, "router"))
            calls = asyncio.create_task(
                failures(client, lambda: client.ref("router").address != old)
            )
            with pytest.raises(PeerLost):
                async for _ in items:
                    pass
        failed = await calls
        told = [str(error) for _, error in failed if isinstance(error, NoWorkers)]
        assert [each for each in told if "no router is alive on this node" not in each] == []
