"""Messages that break the rules of a stream, from a process that is not ours: they end their own
stream at most, and never a process.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from actors import Client, Cluster, NodeSpec, ResponseStream
from actors.errors import CallHomeError, ConnectionLost, EngineError, RemoteProtocolError
from actors.messages import (
    Accept,
    Credit,
    End,
    Feed,
    FeedEnd,
    FeedItem,
    Item,
    Items,
    Kill,
    Release,
    Report,
    Stop,
)
from tests.e2e.engines import ECHO
from tests.e2e.raw import RawHome, raw_home
from tests.e2e.slow import SLOW, node
from tests.e2e.watching import Trace, inspect, kill, stop, wait_idle
from tests.waiting import DEADLINE, wait_until
from transport.bus.address import Address
from transport.wire.message import Message

NIL = b"\xc0"


async def opened(client: Client, home: RawHome) -> tuple[ResponseStream, int]:
    """A stream of the client's whose number ``home`` knows, with no peer so far."""
    stream = client.stream(SLOW, {})
    await stream.__aenter__()
    (number,) = client.runtime.home.streams
    return stream, number


async def read(stream: ResponseStream) -> list[object]:
    return [item async for item in stream]


def wrong_ends(number: int, me: Address) -> list[tuple[list[Message], type[CallHomeError]]]:
    """What a false engine may say of a stream, and what its reader must hear."""
    accept = Accept(number, me, 0, 0)
    return [
        ([End(number, 3, None)], ConnectionLost),  # three items are missing
        ([End(number, 0, ["short"])], RemoteProtocolError),
        ([End(number, 0, [1, 2, 3])], RemoteProtocolError),
        ([End(number, 0, ["engine", "words", {1: [2]}])], EngineError),
        ([End(number, 0, [])], RemoteProtocolError),
        ([accept, End(number, 5, None, None, [NIL])], RemoteProtocolError),  # four are missing
        ([accept, End(number, 0, None, None, [NIL])], RemoteProtocolError),
        ([accept, End(number, 5000, None, None, [NIL] * 5000)], RemoteProtocolError),
        ([accept, Items(number, 5, [NIL])], RemoteProtocolError),  # not the next one
        ([accept, Items(number, 0, [NIL] * 5000)], RemoteProtocolError),  # beyond its credit
        ([accept, Items(number, 0, [b"\xc1"])], CallHomeError),
        ([accept, Item(number, 0, NIL, [["no", "handle"]], 10)], CallHomeError),
        ([accept, Item(number, 0, NIL, [1], -5)], CallHomeError),
    ]


async def test_a_false_engine_ends_its_stream_with_an_error(tmp_path: Path) -> None:
    async with Cluster(node(Trace(tmp_path))) as cluster, cluster.client() as client:
        router = client.ref("router").address
        with raw_home(cluster.nodes[0].folder) as home:
            for case in range(len(wrong_ends(0, home.address))):
                stop(router.pid)  # the true engine does not hear of it so far
                stream, number = await opened(client, home)
                messages, expected = wrong_ends(number, home.address)[case]
                for each in messages:
                    home.send(client.runtime.address, each)
                with pytest.raises(expected):
                    await asyncio.wait_for(read(stream), DEADLINE)
                await stream.aclose()
                kill(router.pid, signal.SIGCONT)
                assert client.runtime.home.streams == {}
                assert await client.call(SLOW, {"wait": 0.0}) == "late"
        await wait_idle(client, SLOW)


def nonsense(engine: Address, me: Address) -> list[tuple[Message, bool]]:
    """Messages that mean nothing to an engine, and whether they go by the control lane."""
    return [
        (Credit(99, 1, 1), True),
        (Credit(1, -5, -5), True),
        (Stop(0, 0, ""), True),
        (Kill(-1, -1, "x" * 100_000), True),
        (Feed(1, 0, [NIL]), False),  # its request is no stream
        (Feed(77, 0, [NIL]), False),
        (FeedEnd(1, 3), False),
        (FeedEnd(77, 0), False),
        (Release([[1, 2, 3]]), True),
        (Release([["a"], None, [1, 2]]), True),
        (Items(1, 0, [NIL]), False),  # an engine is no home
        (End(1, 0, None), False),
        (Accept(1, me, 1, 1), False),
        (Report(engine.incarnation, 1, 0, 0, 1, 0, 0, [[1]]), True),
    ]


async def test_nonsense_ends_no_engine_and_no_other_stream(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        engine, router = client.ref(SLOW).address, client.ref("router").address
        async with client.stream(SLOW, {"tag": "good", "items": 1, "polite": True}) as good:
            assert await anext(good) == 0
            with raw_home(cluster.nodes[0].folder) as home:
                home.open(router, 1, SLOW, {"tag": "raw", "polite": True})
                # It goes a hop further than what follows, which must not overtake it.
                await wait_until(lambda: "raw" in trace.tags("started"), what="its start")
                for target in (engine, router, client.runtime.address):
                    for message, control in nonsense(engine, home.address):
                        home.send(target, message, control=control)
                home.open(engine, 1, SLOW, {"tag": "twice"})  # its number is taken
                home.open(router, 2, SLOW, {"wait": 0.0})
                await home.ended(2)
                assert home.got(End, 2)[0].error is None
                await home.settled(engine)
                assert home.got(End, 1) == []
                home.send(engine, Stop(home.address.incarnation, 1, "enough"), control=True)
                await home.ended(1)
            good.stop()
            assert [item async for item in good] == ["last"]
        assert "twice" not in trace.tags("started")
        assert client.ref(SLOW).address == engine
        assert client.ref("router").address == router
        assert await client.call(SLOW, {"wait": 0.0}) == "late"
        await wait_idle(client, SLOW)


async def test_items_of_a_stranger_do_not_mix_with_those_of_the_engine(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with Cluster(node(trace)) as cluster, cluster.client() as client:
        with raw_home(cluster.nodes[0].folder) as home:
            async with client.stream(SLOW, {"items": 3, "polite": True}) as stream:
                assert await anext(stream) == 0
                (number,) = client.runtime.home.streams
                for message in (
                    Items(number, 3, [NIL]),
                    End(number, 3, None),
                    End(number, 9, None),
                ):
                    home.send(client.runtime.address, message)
                await trace.until("sent")
                # Sent on the same lane as those of the stranger, and behind them.
                home.send(client.runtime.address, Items(10_000, 0, [NIL]))
                await wait_until(lambda: home.got(Kill, 10_000), what="a Kill")
                stream.stop()
                assert [item async for item in stream] == [1, 2, "last"]


async def test_an_open_with_odd_fields_is_answered(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"remaining": -5.0},
        {"remaining": 0.0},
        {"window_items": 0, "window_bytes": 0, "remaining": 0.3},
        {"window_items": -5, "remaining": 0.3},
        {"codec": ""},
        {"segments": [["what"]]},
        {"segments": [[1, 2, 3, 4, 5, 6, 7]]},
        {"handles": [1, 2]},
        {"handles": [[1, 2, 3, 4, 5, 6, 7, 8]]},
        {"metadata": {"k": [1]}},
        {"many": True},
        {"reports": [Report(1, 1, 1, 1, 1, 1, 1, [[1], [2, 3, 4, 5]])]},
    ]
    async with Cluster(node(Trace(tmp_path))) as cluster, cluster.client() as client:
        pid = client.ref(SLOW).address.pid
        with raw_home(cluster.nodes[0].folder) as home:
            for number, fields in enumerate(odd, 1):
                home.open(
                    client.ref("router").address, number, SLOW, {"items": 1, "wait": 0.0}, **fields
                )
            for number in range(1, len(odd) + 1):
                await home.ended(number)
        assert client.ref(SLOW).address.pid == pid
        assert (await inspect(client, SLOW))["in_flight"] == 0
        await wait_idle(client, SLOW)


async def test_a_request_item_with_false_handles_cuts_its_request() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client() as client:
        engine = client.ref(ECHO.name or "").address
        with raw_home(cluster.nodes[0].folder) as home:
            home.open(engine, 1, ECHO.endpoint, None, many=True)
            home.send(engine, FeedItem(1, 0, NIL, [[1, 2, 3, 4, 5, 6, 7, 8]], 1))
            home.send(engine, FeedEnd(1, 1))
            # Its number was taken, so the count of the end fits: it must not look whole.
            error = (await home.ended(1)).error
            assert error is not None
            assert error[0] == RemoteProtocolError.code
        async with client.open(ECHO.endpoint) as stream:
            await stream.send("next")
            assert await stream.recv() == "next"
