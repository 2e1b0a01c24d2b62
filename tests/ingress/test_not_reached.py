"""Requesters that cannot be called home, for whatever reason: places come back, nobody waits."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import actors.ingress.connections as connections
import actors.ingress.foreign as foreign
from actors.discovery.record import RESERVED
from actors.ingress.relay import RelayedStream
from actors.messages import Accept, Kill
from tests.clock import Clock
from tests.clock import clock as clock
from tests.ingress.engines import Chat, Held, echo
from tests.ingress.test_relay import both
from tests.waiting import LONG, wait_until
from transport.errors import CallHomeError
from transport.wire.message import Message

HOSTS = ["a" * 70 + ".x", "a\x00b", "\ud800", "ä.example", "1.2.3.4\u0661"]


async def breaks(*args: Any, **keywords: Any) -> Any:
    raise UnicodeError("label too long")


async def hangs(*args: Any, **keywords: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("host", HOSTS)
async def test_a_host_that_cannot_be_looked_up_takes_no_place(tmp_path: Path, host: str) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        at.requester.address, kept = f"{host}:80", at.requester.address
        asked = await at.requester.ask(path, {"n": 1})
        assert asked.reply == b""
        at.requester.address = kept
        info = {"address": f"{host}:80", "subject": "s"}
        await home.ask(path, {"n": 1}, info=info, reply=b"Server unavailable: address ")
        assert at.errors == {"invalid_message": 2}
        assert len(at.ingress.connections) == 0
        await at.idle()


@pytest.mark.parametrize("many", [False, True])
async def test_whatever_a_dial_raises_the_place_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with both(tmp_path, ingress_pool=2) as (at, home):
        path = await at.engine(Chat if many else Held)
        with monkeypatch.context() as broken:
            broken.setattr(foreign, "dial", breaks)
            broken.setattr(connections, "dial", breaks)
            for _ in range(3):
                await at.requester.ask(path, {}, many=many)
                await home.ask(path, {}, many=many)
                await at.idle()
        assert at.errors == {"response_stream": 6}
        assert len(at.ingress.connections) == 0
        assert "failed" in caplog.records[0].getMessage()
        stream = await home.ask(path, {"before": 1}, many=many)
        await home.until(Accept, stream)  # it had a place
        home.cut()
        await at.idle()


async def test_a_deadline_ends_a_stream_whose_dial_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(foreign, "dial", hangs)
    monkeypatch.setattr(connections, "dial", hangs)
    monkeypatch.setattr("actors.ingress.streams.DIAL", LONG)
    async with both(tmp_path, call_timeout=LONG, connect_timeout=LONG) as (at, home):
        path = await at.engine(Held)
        await at.requester.ask(path, {})
        await home.ask(path, {})
        assert at.carried() == 4  # two streams, two places
        clock.turn(LONG)
        await wait_until(lambda: at.ingress.counters.errors.get("generate") == 2)
        clock.turn(2 * LONG)  # for those who have no way to be told of it
        await at.idle()
        assert at.ingress.counters.errors["generate"] == 2


async def test_a_relay_that_fails_as_its_connection_comes_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        first = await home.ask(path, {"n": 1, "text": ""})
        connection = at.ingress.connections.find_subject(home.subject)
        assert connection is not None
        broken = Broken()
        connection.enter(77, broken)
        second = await home.ask(path, {"n": 1, "text": ""})
        for stream in (first, second):
            assert (await home.ended(stream)).error is None
        told = (await home.ended(77)).error
        assert told is not None
        assert "by its own fault" in told[1]
        assert broken.cuts == 1
        home.cut()
        await wait_until(lambda: broken.cuts == 2)
        await at.idle()


class Broken:
    """A relay that raises whatever it is asked."""

    def __init__(self) -> None:
        self.cuts = 0

    def ready(self) -> None:
        raise ValueError("by its own fault")

    def heard(self, message: Message) -> None:
        raise ValueError("by its own fault")

    def cut(self, error: CallHomeError) -> None:
        self.cuts += 1
        raise ValueError("by its own fault")


@pytest.mark.parametrize("ends", [True, False])
async def test_a_stream_that_fails_as_it_gets_its_place_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with both(tmp_path, ingress_pool=1) as (at, home):
        path = await at.engine(Held)
        first, second, third = [await home.ask(path, {"before": 1}) for _ in range(3)]
        await home.until(Accept, first)
        honest, count = RelayedStream._go, 0

        def begin(stream: RelayedStream, error: Any = None) -> None:
            nonlocal count
            count += 1
            if count <= 2 - ends:
                raise KeyError("by its own fault")
            honest(stream)

        monkeypatch.setattr(RelayedStream, "_go", begin)
        if not ends:
            monkeypatch.setattr(RelayedStream, "_refuse", begin)
        home.send(Kill(home.incarnation, first, "enough"))
        await home.until(Accept, third)
        if ends:
            assert (await home.ended(second)).error is not None
        home.send(Kill(home.incarnation, third, "enough"))
        await at.idle()


async def test_who_only_asks_for_records_and_cannot_be_called_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with both(tmp_path) as (at, home):
        await home.ask(RESERVED, {}, info={"address": "127.0.0.1:1", "subject": "wrong"})
        await wait_until(lambda: "cannot call home at 127.0.0.1:1, 0 streams end" in caplog.text)
        assert "ECONNREFUSED" in caplog.text
        await at.idle()
