"""What etcd does in the midst of a write, or to a watch, and what then holds: a real etcd, in front
of which single requests are held, refused or lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.discovery import etcd_publisher
from actors.discovery.etcd_connection import Connection, Gone, Lost, Refused, Watch
from actors.messages import Added, Removed
from tests.discovery.etcd_rig import PATIENCE, ROOT, key, publisher, reader, standing
from tests.discovery.samples import engine
from tests.etcd import Etcd
from tests.waiting import LONG, TICK, wait_until

#: A lease, or a pause between looks, that is over in no test.
FOR_EVER = 20 * LONG

Fault = Callable[[str, Any], Awaitable[None]]


class Gate:
    """Whoever comes in the thread of etcd waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = self.open = False

    async def pass_through(self) -> None:
        self.reached = True
        await wait_until(lambda: self.open, FOR_EVER)


def before_each(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Have ``fault`` called before each request, with its name and itself."""
    call = Connection.call

    async def faulty(self: Connection, name: str, request: Any, limit: float) -> Any:
        await fault(name, request)
        return await call(self, name, request, limit)

    monkeypatch.setattr(Connection, "call", faulty)


def writes(name: str, request: Any, instance: int) -> bool:
    return name == "Put" and request.key.decode() == key(instance)


async def test_what_was_refused_is_written_once_etcd_takes_it(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_publisher, "_PAUSE", 0.05)
    caplog.set_level(logging.WARNING)
    allowed = Gate()

    async def fault(name: str, request: Any) -> None:
        if writes(name, request, 2) and not allowed.open:
            raise Refused("permission denied")

    async with publisher(etcd.address, 1, ttl=FOR_EVER) as writer:
        before_each(monkeypatch, fault)
        writer.changed(Added(engine(2)))
        await wait_until(lambda: "permission denied" in writer.state())
        assert not standing(etcd, 2)
        allowed.open = True
        await wait_until(lambda: writer.state() == "")
        assert standing(etcd, 2)
    assert "takes records of this node again" in caplog.text


async def test_who_waits_for_a_change_is_not_released_by_an_earlier_one_that_is_refused(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_publisher, "_PAUSE", 0.05)
    refusal, withdrawal = Gate(), Gate()

    async def fault(name: str, request: Any) -> None:
        if writes(name, request, 2):
            await refusal.pass_through()
            raise Refused("permission denied")
        if name == "Txn":
            await withdrawal.pass_through()

    async with publisher(etcd.address, 1, ttl=FOR_EVER) as writer:
        before_each(monkeypatch, fault)
        writer.changed(Added(engine(2)))
        await wait_until(lambda: refusal.reached)
        writer.changed(Removed(engine(1), "drains"))
        settling = asyncio.create_task(writer.settle(FOR_EVER))
        await asyncio.sleep(0)
        refusal.open = True
        await wait_until(lambda: withdrawal.reached)
        done, _ = await asyncio.wait({settling}, timeout=TICK)
        assert not done
        withdrawal.open = True
        await asyncio.wait_for(settling, PATIENCE)
        assert not standing(etcd, 1)


async def test_who_waits_is_released_when_the_connection_is_lost(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, again = Gate(), Gate()
    opened = Connection.open

    async def fault(name: str, request: Any) -> None:
        if writes(name, request, 2) and not again.open:
            await loss.pass_through()
            raise Lost("it was cut")

    async def held(self: Connection) -> None:
        await again.pass_through()
        await opened(self)

    async with publisher(etcd.address, 1, ttl=FOR_EVER) as writer:
        before_each(monkeypatch, fault)
        monkeypatch.setattr(Connection, "open", held)
        writer.changed(Added(engine(2)))
        await wait_until(lambda: loss.reached)
        settling = asyncio.create_task(writer.settle(FOR_EVER))
        await asyncio.sleep(0)
        loss.open = True
        await asyncio.wait_for(settling, PATIENCE)
        assert not standing(etcd, 2)
        again.open = True
        await wait_until(lambda: standing(etcd, 2), PATIENCE)


async def test_a_lease_that_ends_in_the_midst_of_a_write_is_followed_by_another(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is refused then: whoever waits gets what he waits for."""
    caplog.set_level(logging.WARNING)

    async def fault(name: str, request: Any) -> None:
        if writes(name, request, 2) and request.lease == lease:
            etcd.ctl("lease", "revoke", f"{lease:x}")

    async with publisher(etcd.address, 1, ttl=FOR_EVER) as writer:
        lease = etcd.get()[key(1)].lease
        before_each(monkeypatch, fault)
        writer.changed(Added(engine(2)))
        await writer.settle(PATIENCE)
        assert set(etcd.get(ROOT)) == {key(1), key(2)}
        assert lease not in {each.lease for each in etcd.get(ROOT).values()}
        assert writer.state() == ""
    assert "was lost" in caplog.text
    assert "refuses" not in caplog.text


async def test_who_was_withdrawn_and_comes_again_is_new(etcd: Etcd) -> None:
    """What is new is written over whatever stands there meanwhile."""
    async with publisher(etcd.address, 1, 2, ttl=FOR_EVER) as writer:
        own = etcd.get()[key(1)]
        writer.changed(Removed(engine(1), "is not well"))
        await writer.settle(PATIENCE)
        async with publisher(etcd.address, 1, ingress=10):
            assert etcd.get()[key(1)].value != own.value
            writer.changed(Added(engine(1)))
            await writer.settle(PATIENCE)
            assert etcd.get()[key(1)][:2] == own[:2]


async def test_what_stands_under_an_earlier_lease_of_ones_own_is_ones_own(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of etcd that has just begun to keep leases says of one that it is not there."""
    renew, forgotten = Connection.renew, list[int]()

    async def fault(name: str, request: Any) -> None:
        if writes(name, request, 2) and not forgotten:
            raise Gone("requested lease not found")

    async def forgetful(self: Connection, lease: int, limit: float) -> int:
        if forgotten:
            return await renew(self, lease, limit)
        forgotten.append(lease)
        return 0

    async with publisher(etcd.address, 1, ttl=FOR_EVER) as writer:
        before_each(monkeypatch, fault)
        monkeypatch.setattr(Connection, "renew", forgetful)
        writer.changed(Added(engine(2)))
        await writer.settle(PATIENCE)
        found = etcd.get(ROOT)
        assert set(found) == {key(1), key(2)}
        assert {each.lease for each in found.values()}.isdisjoint(forgotten)


async def test_a_watch_that_etcd_cancels_is_followed_by_a_list_at_once(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by the next look at how many keys there are, which may be long in coming."""
    caplog.set_level(logging.WARNING)
    read, cancelled = Watch.read, list[int]()

    async def cancelling(self: Watch) -> Any:
        answer = await read(self)
        if answer.created and not cancelled:
            cancelled.append(answer.watch_id)
            rpc = self._connection.rpc
            request = rpc.WatchCancelRequest(watch_id=answer.watch_id)
            await self._call.write(rpc.WatchRequest(cancel_request=request))
        return answer

    monkeypatch.setattr(Watch, "read", cancelling)
    async with reader(etcd.address, ttl=FOR_EVER) as (_, heard):
        await wait_until(lambda: "the watch was cancelled" in caplog.text)
        async with publisher(etcd.address, 1, ttl=FOR_EVER):
            await wait_until(lambda: heard.instances == {1}, PATIENCE)
