"""Streams that a connected node opens over its connection, at the ingress."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.record import RESERVED
from actors.messages import Accept, Credit, Feed, FeedEnd, ItemBody, Items, Kill, Stop
from tests.ingress.engines import Chat, Held, echo
from tests.ingress.test_relay import both
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.wire.codec import decode, encode


async def test_streams_of_both_shapes(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path, chat = await at.engine(echo), await at.engine(Chat, "t.chat.go")
        await home.ended(await home.ask(path, {"n": 0, "text": ""}))
        stream = home.open(path, {"n": 3, "text": "ho"}, metadata={"a": "b"})
        end = await home.ended(stream)
        assert (end.total, end.error) == (3, None)
        assert home.items(stream) == [{"i": index, "text": "ho"} for index in range(3)]
        duplex = home.open(chat, many=True)
        await home.until(Accept, duplex)
        home.send(Feed(duplex, 0, [encode("a")]))
        home.send(FeedEnd(duplex, 1))
        assert (await home.ended(duplex)).error is None
        assert home.items(duplex) == [{"echo": "a"}, {"bye": 0}]
        await at.idle()


async def test_a_large_request_comes_behind_its_open(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        await home.ended(await home.ask(path, {"n": 0, "text": ""}))
        request = encode({"n": 1, "text": "x" * 500_000})
        stream = home.open(path, payload=b"")
        mux = await home.connected()
        number = mux.new_body()
        message = ItemBody(stream, -1, len(request), [], len(request), number)
        mux.send_body(message, number, [memoryview(request)], lambda: None)
        assert (await home.ended(stream)).error is None
        await at.idle()


async def test_credit_stop_and_kill_find_it_at_once(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        stopped, killed = home.open(path, {"before": 1}), home.open(path, {"before": 1})
        home.send(Credit(stopped, 1, 1))
        home.send(Stop(home.incarnation, stopped, "enough"))
        home.send(Kill(home.incarnation, killed, "no more"))
        assert (await home.ended(stopped)).error is None
        await at.idle()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"target": "abc/t/no/such"}, "worker.unavailable"),
        ({"many": True, "payload": b""}, "unsupported"),
        ({"codec": "pickle"}, "protocol.remote"),
        ({"codec": "plain.json"}, "protocol.remote"),
        ({"handles": [[1, 2, 3]]}, "protocol.remote"),
        ({"segments": [[1]]}, "protocol.remote"),
        ({"window_items": 0}, "protocol.remote"),
        ({"window_bytes": -1}, "protocol.remote"),
        ({"remaining": math.nan}, "protocol.remote"),
        ({"remaining": -1.0}, "protocol.remote"),
        ({"metadata": {"a": 1}}, "protocol.remote"),
        ({"metadata": {1: "a"}}, "protocol.remote"),
        ({"remaining": 0.0}, "deadline"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        end = await home.ended(home.open(path, {"before": 0}, **fields))
        assert end.error is not None
        assert end.error[0] == code
        held = home.open(path, {"before": 1})
        await home.until(Items, held)
        home.send(Kill(home.incarnation, held, "done"))
        await at.idle()


async def test_an_open_for_somebody_else_or_twice_means_nothing(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        first = home.open(path, {"before": 1})
        await home.until(Items, first)
        home.open(path, {"before": 1}, stream=first)
        foreign = home.open(path, {"before": 1}, home=Address("x", 1, 0, 0))
        mux = at.ingress.connections._by_subject[home.subject].mux
        await wait_until(lambda: mux.unreadable == 2)  # type: ignore[union-attr]
        assert home.of(foreign) == []
        assert len(home.got(Items, first)) == 1
        home.send(Kill(home.incarnation, first, "done"))
        await at.idle()


async def test_a_full_node_refuses(tmp_path: Path) -> None:
    async with both(tmp_path, ingress_pool=1, ingress_queue=0) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        held = home.open(path, {"before": 1})
        await home.until(Items, held)
        end = await home.ended(home.open(path, {"before": 1}))
        assert end.error is not None
        assert end.error[0] == "overloaded"
        home.send(Kill(home.incarnation, held, "done"))
        await at.idle()


async def test_the_records_can_be_followed(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        stream = home.open(RESERVED)
        await home.until(Items, stream)
        first: Any = decode(home.got(Items, stream)[0].payloads[0])
        assert [each["endpoint"] for each in first["snapshot"]] == ["go"]
        home.send(Kill(home.incarnation, stream, "done"))
        await wait_until(lambda: not at.ingress.records.streams)
