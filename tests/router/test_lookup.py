"""Workers whose host is a name: nobody waits for the lookup but their own streams."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.record import SPEAKS
from actors.errors import ConnectionLost, DeadlineExceeded
from actors.messages import Accept, End, Items
from tests.router.rig import RouterRig, far_record, router_rig
from tests.router.standin import StandIn, standin
from tests.router.standin_mux import OWN, connect, number
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address
from transport.wire.codec import encode

GO, NEAR = "t.far.go", "t.near.go"
NAME = "worker.example"


@dataclasses.dataclass
class Resolver:
    """Knows one name, as soon as it may say so."""

    may: threading.Event
    trouble: Exception | None = None
    asked: int = 0


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    real, found = socket.getaddrinfo, Resolver(threading.Event())

    def look(host: Any, *arguments: Any, **more: Any) -> Any:
        if host != NAME:
            return real(host, *arguments, **more)
        assert threading.current_thread() is not threading.main_thread()
        found.asked += 1
        assert found.may.wait(LONG)
        if found.trouble is not None:
            raise found.trouble
        return real("127.0.0.1", *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    yield found
    found.may.set()


@asynccontextmanager
async def named(
    tmp_path: Path, resolver: Resolver, **fields: Any
) -> AsyncIterator[tuple[RouterRig, StandIn]]:
    """A router, and a worker that it knows by name (``GO``) and by address (``NEAR``)."""
    async with standin() as worker:
        far = far_record(worker.via.replace("127.0.0.1", NAME), **fields)
        near = far_record(worker.via, NEAR, 0xDEF)
        async with router_rig(tmp_path, far, near, connect_timeout=LONG) as here:
            yield here, worker
            worker.hang_up()
            await here.idle()
            resolver.may.set()
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_stream_waits_for_its_worker_s_name_and_others_do_not(
    tmp_path: Path, resolver: Resolver
) -> None:
    async with named(tmp_path, resolver) as (here, worker):
        calls = [asyncio.ensure_future(here.client.call(GO, {"n": n})) for n in range(2)]
        await wait_until(lambda: here.relays == 2 and resolver.asked == 1)
        near = asyncio.ensure_future(here.client.call(NEAR, {"n": 7}))
        await (await worker.next()).answer("near")
        assert await near == "near"
        assert here.permits == 2
        resolver.may.set()
        for _ in calls:
            await (await worker.next()).answer("far")
        assert await asyncio.gather(*calls) == ["far", "far"]
        again = asyncio.ensure_future(here.client.call(GO, {}))
        await (await worker.next()).answer("known")
        assert await again == "known"
        assert resolver.asked == 1


async def test_a_node_of_ours_may_have_a_name_too(tmp_path: Path, resolver: Resolver) -> None:
    resolver.may.set()
    async with named(tmp_path, resolver, speaks=SPEAKS) as (here, worker):
        task = asyncio.ensure_future(here.client.call(GO, {"n": 1}))
        call, mux = await connect(worker)
        stream, item = number(call), encode("far", codec="msgpack")
        mux.send(Accept(stream, Address("far", OWN, 1, 1), 0, 0), Items(stream, 0, [item]))
        mux.send(End(stream, 1, None))
        assert await task == "far"


@pytest.mark.parametrize("trouble", [socket.gaierror(-2, "unknown"), UnicodeError("too long")])
async def test_a_name_that_is_not_found_ends_the_stream(
    tmp_path: Path, resolver: Resolver, trouble: Exception
) -> None:
    resolver.trouble = trouble
    resolver.may.set()
    async with named(tmp_path, resolver) as (here, worker):
        with pytest.raises(Exception, match=f"{GO}: {NAME}.*cannot be looked up") as caught:
            await here.client.call(GO, {})
        assert caught.value.details["sent"] == "no"  # type: ignore[attr-defined]
        assert worker.calls == []


async def test_what_is_cancelled_meanwhile_is_never_sent(
    tmp_path: Path, resolver: Resolver
) -> None:
    async with named(tmp_path, resolver) as (here, worker):
        with pytest.raises(DeadlineExceeded):
            await here.client.call(GO, {}, timeout=2 * TICK)
        async with here.client.stream(GO, {}) as items:
            taking = asyncio.ensure_future(anext(items, "nothing"))
            await wait_until(lambda: here.relays == 1)
            items.stop()
            assert await taking == "nothing"
        await here.idle()
        resolver.may.set()
        near = asyncio.ensure_future(here.client.call(NEAR, {}))
        await (await worker.next()).answer("near")
        assert await near == "near"
        assert len(worker.calls) == 1


async def test_a_worker_that_is_removed_meanwhile_gets_nothing(
    tmp_path: Path, resolver: Resolver
) -> None:
    async with named(tmp_path, resolver) as (here, worker):
        task = asyncio.ensure_future(here.client.call(GO, {}))
        await wait_until(lambda: here.relays == 1)
        here.told.remove(here.told.records[0])
        resolver.may.set()
        with pytest.raises(ConnectionLost, match="removed"):
            await task
        assert worker.calls == []
