"""Names of hosts: looked up beside the loop, once for all who ask, and never for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.callhome.sockets import a_net
from tests.waiting import LONG, TICK, wait_until
from transport.callhome import names as module
from transport.callhome.names import Names
from transport.errors import CallHomeError, ConnectionLost, OutboxFull, RemoteProtocolError

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::7", 0, 0, 0))


class Resolver:
    """Stands for the system's: the test says what it finds, and when."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.found: list[Any] = [V6, V4]
        self.may = threading.Event()
        self.may.set()

    def __call__(self, host: str, *arguments: Any, **more: Any) -> list[Any]:
        assert threading.current_thread() is not threading.main_thread()
        self.asked.append(host)
        assert self.may.wait(LONG)
        if self.found and isinstance(self.found[0], Exception):
            raise self.found[0]
        return list(self.found)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    found = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    yield found
    found.may.set()


class Told(list[CallHomeError | None]):
    """Collects what those who ask are told."""

    def __call__(self, error: CallHomeError | None) -> None:
        self.append(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "::1", "fe80::1"])
async def test_an_address_is_there_at_once(host: str) -> None:
    with a_net() as net:
        assert net.names.address(host) == host
        assert await net.names.find(host) == host
        told = Told()
        net.names.look_up(host, told, 1)
        assert told == []
        await wait_until(lambda: told == [None])


async def test_a_name_is_looked_up_once_for_all_who_ask(resolver: Resolver) -> None:
    with a_net() as net:
        told, names = Told(), net.names
        assert names.address("node.x") == ""
        for _ in range(3):
            names.look_up("node.x", told, LONG)
        assert await asyncio.gather(*[names.find("node.x") for _ in range(3)]) == ["10.1.2.3"] * 3
        assert told == [None] * 3
        assert names.address("node.x") == "10.1.2.3"
        assert resolver.asked == ["node.x"]
        resolver.found = [V6]
        assert await names.find("other.x") == "fe80::7"
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        ([], ConnectionLost, "has no address"),
        ([socket.gaierror(-2, "unknown")], ConnectionLost, "unknown"),
        ([UnicodeError("label too long")], RemoteProtocolError, "label too long"),
    ],
)
async def test_what_is_not_found_is_a_typed_error_and_is_asked_for_anew(
    resolver: Resolver, found: list[Any], kind: type[CallHomeError], words: str
) -> None:
    with a_net() as net:
        resolver.found = found
        told = Told()
        net.names.look_up("node.x", told, LONG)
        with pytest.raises(kind, match=words) as caught:
            await net.names.find("node.x")
        assert caught.value.details["sent"] == "no"
        assert [type(each) for each in told] == [kind]
        assert told[0] is not caught.value
        resolver.found = [V4]
        assert await net.names.find("node.x") == "10.1.2.3"
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_lookup_that_hangs_is_an_error_for_who_waits_and_the_loop_goes_on(
    resolver: Resolver,
) -> None:
    with a_net() as net:
        resolver.may.clear()
        told = Told()
        net.names.look_up("node.x", told, 2 * TICK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(TICK):
                await net.names.find("node.x")
        await wait_until(lambda: told != [])
        assert isinstance(told[0], ConnectionLost)
        assert "was not looked up within" in str(told[0])
        resolver.may.set()
        assert await net.names.find("node.x") == "10.1.2.3"
        assert len(told) == 1
        assert len(resolver.asked) == 1
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_who_fails_to_hear_it_costs_nobody_else(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(error: CallHomeError | None) -> None:
        raise ValueError("its own fault")

    with a_net() as net:
        told = Told()
        net.names.look_up("node.x", failing, LONG)
        net.names.look_up("node.x", told, LONG)
        await wait_until(lambda: told == [None])
        assert "its own fault" in caplog.text
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_what_is_known_for_a_while_is_looked_up_meanwhile(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_net() as net:
        assert await net.names.find("node.x") == "10.1.2.3"
        monkeypatch.setattr(module, "_FRESH", 0.0)
        resolver.found = [V6]
        assert net.names.address("node.x") == "10.1.2.3"
        await wait_until(lambda: net.names.address("node.x") == "fe80::7")
        resolver.found = [socket.gaierror(-2, "unknown")]
        net.names.address("node.x")
        await wait_until(lambda: not net.names._asked)
        assert net.names.address("node.x") == "fe80::7"  # a resolver that is away for a moment
        monkeypatch.setattr(module, "_STALE", 0.0)
        assert net.names.address("node.x") == ""
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_lookups_are_bounded(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    with a_net() as net:
        resolver.may.clear()
        told = Told()
        for host in ("a.x", "b.x", "c.x"):
            net.names.look_up(host, told, LONG)
        await wait_until(lambda: told != [])
        with pytest.raises(OutboxFull):
            await net.names.find("d.x")
        assert [type(each) for each in told] == [OutboxFull]
        resolver.may.set()
        await wait_until(lambda: len(told) == 3)
        assert told[1:] == [None, None]
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_after_the_end_nobody_is_called(resolver: Resolver) -> None:
    resolver.may.clear()
    told, names = Told(), Names(asyncio.get_running_loop())
    names.look_up("node.x", told, TICK)
    names.close()
    resolver.may.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(2 * TICK)
    assert told == []
