"""Streams that another node of ours goes on with though their home has forgotten them."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.messages import Accept, End, FeedCredit, ItemBody, Kill
from tests.router.standin_mux import connect, number
from tests.router.test_gateway import SELF, items, rig, start
from tests.waiting import wait_until
from transport.callhome.mux import MuxConnection


async def test_who_calls_home_for_a_forgotten_stream_is_told_to_stop(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        for message in (
            Accept(99, SELF, 0, 0),
            items(98, 0, 1),
            ItemBody(97, 0, b"", [], 0, 0),
        ):
            end.send(message)
            assert (await end.find(Kill)).stream == message.stream
        end.send(End(96, 0, None), FeedCredit(95, 1, 1), End(number(call), 0, None))
        assert await task == []


async def test_a_node_that_does_not_read_is_told_once_of_a_forgotten_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        await wait_until(lambda: here.actor._ways.standard.remote.ways()[0]["connected"])
        gateway = here.actor._ways.standard.remote._gateways[worker.address]
        mux = gateway.connection
        assert mux is not None
        with monkeypatch.context() as patch:
            patch.setattr(MuxConnection, "backlog", property(lambda self: 1))
            for _ in range(20):
                end.send(*(items(each, 0) for each in range(900, 1000)))
                end.send(*(items(each, 0) for each in range(10_000, 12_000)))
            end.send(Accept(number(call), SELF, 0, 0))
            await wait_until(lambda: here.runtime.home.streams[1].peer is not None)
            assert mux.statistics()["messages_out"] == 1024
        told = [(await end.find(Kill)).stream for _ in range(1024)]
        assert told == [*range(900, 1000), *range(10_000, 10_924)]
        await wait_until(lambda: not gateway._told, what="the next ones may be told")
        end.send(items(900, 1))
        assert (await end.find(Kill)).stream == 900
        end.send(End(number(call), 0, None))
        assert await task == []
