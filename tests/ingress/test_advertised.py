"""The address that an ingress tells others: chosen, and checked by dialling it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from actors import Settings
from actors.cluster.entry import running
from actors.discovery.sources import Sources
from actors.errors import SpecError
from actors.ingress import advertised
from actors.ingress.actor import IngressActor
from actors.ingress.advertised import chosen, loopback, members, told
from tests.clock import Clock
from tests.clock import clock as clock
from tests.e2e.test_two_nodes import Cable
from tests.e2e.test_two_nodes import cable as cable
from tests.ingress.rig import rig
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.callhome.net import Net
from transport.wire.request import pack_reply


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers has time for it."""
    monkeypatch.setattr(advertised, "_PATIENCE", LONG)


@asynccontextmanager
async def door(
    folder: Path, listen: str = "127.0.0.1:0", advertise: str = "", etcd: str = ""
) -> AsyncIterator[IngressActor]:
    """An ingress without a node; it publishes nothing."""
    actor = IngressActor(listen, advertise)
    actor.sources = Sources(etcd=etcd)
    os.makedirs(folder, exist_ok=True)
    spec = {
        "run": str(folder),
        "name": "ingress",
        "role": "actor",
        "settings": Settings(stop_grace=2.0).to_dict(),
    }
    async with running(spec, actor):
        yield actor


def warning(actor: IngressActor) -> str:
    found: str = actor.carries()["advertised"]
    return found


async def warned(actor: IngressActor) -> str:
    await wait_until(lambda: warning(actor), what="the ingress is warned")
    return warning(actor)


async def checked(actor: IngressActor) -> None:
    """Wait until it has found itself."""
    assert actor._checking is not None
    await asyncio.wait_for(asyncio.shield(actor._checking), DEADLINE)


async def test_who_is_reached_at_what_he_tells_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for listen in ("127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "localhost:0"):
        async with door(tmp_path, listen) as actor:
            await checked(actor)
            assert warning(actor) == ""
            assert "0.0.0.0" not in actor.reached
            assert actor.counters.requests == 0  # nobody's request
    assert [each for each in caplog.records if each.name != "asyncio"] == []  # a slow machine's


async def test_nobody_somebody_else_and_no_such_name_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callhome.ingress")
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(door(tmp_path / "other"))

        async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            writer.close()

        stranger = await asyncio.start_server(greets, "127.0.0.1", 0)
        stack.push_async_callback(stranger.wait_closed)
        stack.callback(stranger.close)
        host, port = stranger.sockets[0].getsockname()
        for told_, words in (
            ("127.0.0.1:1", "it cannot be dialled: Connection refused"),
            (other.reached, "somebody else answers there ('callhome "),
            (f"{host}:{port}", "it cannot be dialled: it speaks SSH"),
            ("no.such.host.invalid", "it cannot be dialled: host 'no.such.host.invalid' cannot be"),
        ):
            caplog.clear()
            async with door(tmp_path, advertise=told_) as actor:
                text = await warned(actor)
                assert words in text
                assert text.startswith(f"this node advertises {actor.reached}, and ")
                assert "(advertise=)" in text
                assert [each.getMessage() for each in caplog.records] == [text]


async def test_silence_is_told_in_time_and_delays_no_start(tmp_path: Path, clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with door(tmp_path, advertise=address) as actor:
            assert actor.facts() == {"via": address}  # it serves, and the check goes on
            await asyncio.sleep(TICK)
            assert warning(actor) == ""
            clock.turn(LONG)
            text = await warned(actor)
            assert f"nobody has answered there within {LONG:g} s" in text
            assert "no way back to this machine itself" in text


async def test_what_was_wrong_and_is_mended_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callhome.ingress")
    monkeypatch.setattr(advertised, "_AGAIN", TICK)
    with socket.socket() as held:  # nobody listens there, until this one does
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        listening = held.dup()
    async with door(tmp_path, advertise=f"127.0.0.1:{port}") as actor:
        await warned(actor)
        bound = actor._server.address if actor._server is not None else ""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(*bound.split(":"))
            there[1].write(await reader.read(4096))
            writer.write(await there[0].read(4096))
            for each in (there[1], writer):
                each.close()

        forward = await asyncio.start_server(carry, sock=listening)
        await checked(actor)
        assert warning(actor) == ""
        assert f"this node is reached at 127.0.0.1:{port}" in caplog.records[-1].getMessage()
        assert len(caplog.records) == 2
        forward.close()
        await forward.wait_closed()


async def test_others_find_only_themselves_at_a_loopback_address(tmp_path: Path) -> None:
    net = Net()
    try:
        check = advertised.Check(net, "127.0.0.1:7400", "callhome 1", "etcd://10.0.0.2:2379")
        text = await check._ask()
        assert "advertises 127.0.0.1:7400 in etcd://10.0.0.2:2379" in text
        assert "on other machines that is their own address" in text
        for near in ("etcd://localhost:2379", "etcd://10.0.0.2:1,127.0.0.1:2379"):
            check = advertised.Check(net, "127.0.0.1:1", "callhome 1", near)
            assert "their own address" not in await check._ask()
    finally:
        net.close()


async def test_the_address_toward_etcd_is_chosen(cable: Cable) -> None:
    net = Net()
    try:
        bound = "192.0.2.9:7400"
        assert await chosen(net, "0.0.0.0", bound, [cable.there]) == f"{cable.here}:7400"
        assert await chosen(net, "::", bound, ["no.such.invalid", cable.there]) == (
            f"{cable.here}:7400"
        )
        assert await chosen(net, "10.1.2.3", bound, [cable.there]) == bound
        # Others find an etcd of this machine by another address.
        assert await chosen(net, "0.0.0.0", bound, ["127.0.0.1", "localhost"]) == bound
        assert await chosen(net, "0.0.0.0", bound, []) == bound
    finally:
        net.close()


async def test_an_answer_may_come_in_pieces() -> None:
    answer = pack_reply(b"callhome 7")
    net = Net()

    async def halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer[:3])
        await writer.drain()
        await asyncio.sleep(TICK)  # so that it is two; one is no failure
        writer.write(answer[3:])
        writer.close()

    try:
        async with await asyncio.start_server(halves, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            check = advertised.Check(net, f"{host}:{port}", "callhome 7", "")
            assert await check._ask() == ""
    finally:
        net.close()


async def test_an_address_at_which_nobody_listens_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advertised, "local_address_toward", lambda address: "2001:db8::7")
    net, bound, far = Net(), "192.0.2.9:7400", ["192.0.2.1"]
    try:
        assert await chosen(net, "0.0.0.0", bound, far) == bound
        assert await chosen(net, "::", bound, far) == "[2001:db8::7]:7400"
    finally:
        net.close()


async def test_a_member_whose_name_nobody_answers_for_is_passed_over(
    cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    find = net.names.find

    async def hangs(host: str) -> str:
        if host == "hangs.invalid":
            raise TimeoutError  # as its limit would, in the end
        return await find(host)

    monkeypatch.setattr(net.names, "find", hangs)
    try:
        found = await chosen(net, "0.0.0.0", "192.0.2.9:7400", ["hangs.invalid", cable.there])
        assert found == f"{cable.here}:7400"
    finally:
        net.close()


async def test_another_ingress_of_the_same_node_is_the_node(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        await checked(at.ingress)
        at.ingress.runtime.node = 7
        check = advertised.Check(at.ingress.net, at.ingress.reached, "callhome 7", "")
        assert await check._ask() == ""
        at.ingress.runtime.node = 8
        assert "somebody else answers there ('callhome 8')" in await check._ask()
        at.ingress.runtime.node = 0


def test_what_is_told_can_be_dialled() -> None:
    assert told("10.0.0.7:7400", "") == "10.0.0.7:7400"
    assert told("10.0.0.7:7400", "door.example") == "door.example:7400"
    assert told("10.0.0.7:7400", "door.example:80") == "door.example:80"
    assert told("10.0.0.7:7400", "::1") == "[::1]:7400"
    with pytest.raises(SpecError, match="advertise"):
        told("10.0.0.7:7400", "0.0.0.0")
    assert members("etcd://a:1,[::1]:2379") == ["a", "::1"]
    assert members("") == []
    hosts = ("127.0.0.9", "::1", "localhost", "a.localhost", "10.0.0.7", "a.example")
    assert [*map(loopback, hosts)] == [
        True, True, True, True, False, False,
    ]  # fmt: skip
