"""Large values towards another node of ours, which a test plays byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.errors import RemoteProtocolError
from actors.messages import Accept, End, ItemBody, Kill, Open, Stop
from tests.router.standin_mux import MuxEnd, connect, number
from tests.router.test_gateway import GO, SELF, items, rig, start
from tests.waiting import wait_until
from transport.wire.codec import encode
from transport.wire.mux import BODY, CHUNK, pack_mux

LARGE = 3 << 20
HUGE = 96 << 20


async def test_a_large_request_follows_its_acknowledgement(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        task = start(here, b"x" * LARGE, request_id="r")
        call = await worker.next()
        assert call.body == b"\xc0"
        assert "x-callhome-body" in call.envelope.metadata
        end = MuxEnd(await call.dial())
        ways = here.actor._ways.standard.remote.ways
        await wait_until(lambda: [each["connected"] for each in ways()] == [True])
        assert len(end.half.reader._buffer) < LARGE // 100  # type: ignore[attr-defined]
        call.reply()
        body = await end.find(ItemBody)
        assert (body.stream, body.seq) == (number(call), -1)
        end.send(Accept(number(call), SELF, 0, 0))
        # Behind its bytes, since no other message is under way.
        here.client.cancel("r", kill=False)
        await end.find(Stop)
        await wait_until(lambda: end.bodies.get(body.body, 0) > 0)
        end.send(End(number(call), 0, None))
        assert await task == []


async def test_a_large_request_follows_its_open(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        first = start(here)
        call, end = await connect(worker)
        end.send(End(number(call), 0, None))
        assert await first == []
        task = start(here, b"x" * LARGE)
        sent = await end.find(Open)
        assert sent.payload == b""
        body = await end.find(ItemBody)
        assert (body.stream, body.seq) == (sent.stream, -1)
        end.send(End(sent.stream, 0, None))
        assert await task == []
        await here.idle()


async def test_a_killed_stream_sends_no_more_of_its_body(tmp_path: Path) -> None:
    async with rig(tmp_path, payload_limit=HUGE * 2) as (here, worker):
        async with here.client.stream(GO, b"x" * HUGE):
            call, end = await connect(worker)
            body = await end.find(ItemBody)
            assert body.seq == -1
        assert (await end.find(Kill)).stream == number(call)
        task = start(here)
        end.send(End((await end.find(Open)).stream, 0, None))
        assert await task == []
        here.actor._ways.standard.remote._gateways[worker.address].connection.close("done")  # type: ignore[union-attr]
        while await end.read() is not None:
            pass
        assert end.aborted == [body.body]
        assert end.bodies[body.body] < HUGE


async def test_a_stream_that_ends_there_sends_no_more_of_its_body(tmp_path: Path) -> None:
    async with rig(tmp_path, payload_limit=HUGE * 2) as (here, worker):
        task = start(here, b"x" * HUGE)
        call, end = await connect(worker)
        await end.find(ItemBody)
        end.send(End(number(call), 0, None))
        assert await task == []
        other = start(here)
        end.send(End((await end.find(Open)).stream, 0, None))
        assert await other == []
        here.actor._ways.standard.remote._gateways[worker.address].connection.close("done")  # type: ignore[union-attr]
        while await end.read() is not None:
            pass
        assert len(end.aborted) == 1


@pytest.mark.parametrize(("count", "fits"), [(599, True), (700, False)])
async def test_behind_a_body_waits_as_much_as_the_window_of_the_stream(
    tmp_path: Path, count: int, fits: bool
) -> None:
    settings: dict[str, Any] = {"window_items": 600, "outbox_messages": 256}
    async with rig(tmp_path, **settings) as (here, worker):
        task = start(here)
        call, end = await connect(worker)
        n = number(call)
        end.send(Accept(n, SELF, 0, 0), ItemBody(n, 0, LARGE, [], LARGE, 1))
        end.send(*(items(n, seq, seq) for seq in range(1, count + 1)))
        if not fits:
            with pytest.raises(RemoteProtocolError):
                await task
            return
        value = encode(b"x" * (LARGE - 5), codec="msgpack")
        assert len(value) == LARGE
        for at in range(0, LARGE, CHUNK):
            piece = value[at : at + CHUNK]
            end.half.send(pack_mux(BODY, len(piece), 1) + piece)
        end.send(End(n, count + 1, None))
        assert (await task)[1:] == list(range(1, count + 1))
