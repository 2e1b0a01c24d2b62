"""Streams on a connection that is up: opened over it, without an envelope."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.errors import ConnectionLost, WorkerLost, WorkerUnavailable
from actors.messages import End, Open
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router.standin_mux import connect, number
from tests.router.test_gateway import items, rig, start
from tests.waiting import LONG, wait_until
from transport.errors import to_wire
from transport.wire.codec import encode


async def test_streams_after_the_first_are_opened_over_the_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        first = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await first == []
        task = start(here, 7, request_id="r", metadata={"a": "b"}, timeout=1000.0)
        sent = await end.find(Open)
        settings = here.runtime.settings
        assert sent.home == here.actor.address
        assert (sent.target, sent.many, sent.native) == (call.path, False, True)
        assert (sent.codec, sent.payload) == ("msgpack", encode(7, codec="msgpack"))
        assert (sent.handles, sent.segments) == ([], [])
        assert (sent.window_items, sent.window_bytes) == (
            settings.window_items,
            settings.window_bytes,
        )
        assert (sent.metadata, sent.request_id) == ({"a": "b"}, "r")
        assert (sent.router, sent.reports) == (None, [])
        assert sent.remaining is not None
        assert 900 < sent.remaining <= 1000
        assert sent.stream != number(call)
        end.send(items(sent.stream, 0, 1), End(sent.stream, 1, None))
        assert await task == [1]
        refused = start(here)
        n = (await end.find(Open)).stream
        end.send(End(n, 0, to_wire(WorkerUnavailable("nothing is served there"))))
        with pytest.raises(WorkerUnavailable, match="nothing is served there"):
            await refused
        assert len(worker.calls) == 1
        await here.idle()


async def test_what_was_opened_over_a_lost_connection_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        first = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await first == []
        task = start(here)
        await end.find(Open)
        end.half.close()
        with pytest.raises(ConnectionLost, match="was lost after 0 items") as caught:
            await task
        assert caught.value.details["sent"] == "maybe"
        again = start(here)  # by an envelope, which asks to be called home by a new subject
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await again == []
        await here.idle()


async def test_b137_what_was_opened_over_the_connection_is_not_sent_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        for count in range(1, 6):
            first = start(here)
            call, end = await connect(worker)
            end.send(End(number(call), 0, None))
            assert await first == []
            task = start(here)
            await end.find(Open)
            end.half.abort()
            with pytest.raises(ConnectionLost) as caught:
                await task
            assert caught.value.details["sent"] == "maybe"
            assert len(worker.calls) == count
        record = here.told.records[0]
        task = start(here)
        call, end = await connect(worker)
        here.told.remove(record)
        with pytest.raises(ConnectionLost) as caught:
            await task
        assert caught.value.details["sent"] == "maybe"


async def test_a_worker_whose_death_is_told_before_its_streams_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Its record goes at once, what it has sent may still be on its way: the node has the last
    word, if it comes soon.
    """
    monkeypatch.setattr("actors.router.muxed._LAST_WORD", LONG)
    async with rig(tmp_path, prologue_timeout=10 * LONG) as (here, worker):
        first = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await first == []
        record = here.told.records[0]
        dead, alive, silent = start(here), start(here), start(here)
        numbers = [(await end.find(Open)).stream for _ in range(3)]
        here.told.remove(record, "killed by SIGKILL")
        died = WorkerLost("t.far.go: worker-0 died before it accepted the stream")
        end.send(End(numbers[0], 0, to_wire(died)))
        with pytest.raises(WorkerLost, match="worker-0 died") as caught:
            await dead
        assert caught.value.details["instance"] == str(record.instance)
        end.send(items(numbers[1], 0, 1))
        await wait_until(lambda: here.runtime.home.streams[3].seq == 1)
        clock.turn(LONG)
        with pytest.raises(ConnectionLost, match="killed by SIGKILL") as lost:
            await silent
        assert lost.value.details["sent"] == "maybe"
        end.send(End(numbers[1], 1, None))
        assert await alive == [1]
        await here.idle()
