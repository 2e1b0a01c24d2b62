"""What the streams of a router have in common: one timer, and faults that cost one stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.errors import LocalProtocolError
from actors.messages import End
from actors.router.relay import Relay
from actors.router.sockets import SocketRelay
from tests.router import test_gateway
from tests.router.foreign_rig import begun, collected, rig
from tests.router.rig import RouterRig
from tests.router.standin_mux import connect, number
from tests.waiting import DEADLINE, TICK, wait_until
from transport.wire.framing import frame
from transport.wire.plain import final


def ticks(here: RouterRig) -> bool:
    """Whether the router's coarse timer runs."""
    return here.actor.runtime._ticking is not None


async def test_the_timer_rests_when_nothing_is_open(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        assert (await (await worker.next()).answer(1)) is not None
        assert await task == [1]
        await wait_until(lambda: not ticks(here), what="a timer that rests")
        async with begun(here, worker) as (items, _, half):
            await wait_until(lambda: not ticks(here), what="nothing is due while items flow")
            half.item(2)
            assert await anext(items) == 2
            half.end()
            assert [each async for each in items] == []


async def test_a_worker_that_stays_behind_its_end_is_waited_for_though_the_timer_rested(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as (here, worker), begun(here, worker) as (items, _, half):
        await wait_until(lambda: not ticks(here))
        half.send(frame(b"", final("msgpack")))
        assert [each async for each in items] == []


async def test_the_timer_rests_when_the_connection_with_a_node_is_gone(tmp_path: Path) -> None:
    async with test_gateway.rig(tmp_path) as (here, worker):
        task = test_gateway.start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await task == []
        due = here.actor.runtime._ticking
        await wait_until(lambda: here.actor.runtime._ticking is not due, what="the timer has run")
        assert ticks(here), "pings go on"
        end.half.close()
        await wait_until(lambda: not ticks(here), what="a timer that rests")
        assert here.actor._ways.standard.remote.ways() == []


async def test_a_stranger_that_says_nothing_is_closed_though_the_timer_rested(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        call = await worker.next()
        await call.answer(1)
        assert await task == [1]
        await wait_until(lambda: not ticks(here))
        here.actor._plane.reception._handshake = TICK
        host, _, port = call.envelope.connection.text("address").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(DEADLINE):
                await reader.read()
        writer.close()
        await wait_until(lambda: not ticks(here))


@pytest.mark.parametrize("where", ["collect", "overdue"])
async def test_a_fault_of_ours_costs_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real = getattr(SocketRelay, where)

    def fails(relay: Relay) -> None:
        if relay is broken:
            monkeypatch.undo()
            raise ZeroDivisionError("oh")
        real(relay)

    async with (
        rig(tmp_path) as (here, worker),
        begun(here, worker) as (items, _, half),
        begun(here, worker) as (other, _, well),
    ):
        broken = next(iter(here.actor._plane.relays.values()))
        monkeypatch.setattr(SocketRelay, where, fails)
        if where == "overdue":
            broken.await_until(0.0)
        half.item(2)
        well.item(2)
        with pytest.raises(LocalProtocolError, match="oh"):
            [each async for each in items]
        assert await anext(other) == 2
        well.end()
        half.close()
        assert [each async for each in other] == []
