"""B67: five of ten items and a cut, in every way a connection can end, on both roads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.record import SPEAKS
from actors.errors import CallHomeError, ConnectionLost, RemoteProtocolError
from actors.kernel.responses import ResponseStream
from actors.messages import Accept, End, ItemBody, Items
from tests.router.foreign_rig import GO
from tests.router.rig import RouterRig, far_record, router_rig
from tests.router.standin import item_frame, standin
from tests.router.standin_mux import OWN, connect, number
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.wire.codec import encode
from transport.wire.control import SENTINEL
from transport.wire.message import BatchWriter, Message
from transport.wire.mux import BATCH, BODY, pack_mux

SELF = Address("far", OWN, 1, 1)
CUTS = ["reset", "end in a frame", "end between frames"]


async def five(stream: ResponseStream) -> list[Any]:
    return [await anext(stream) for _ in range(5)]


async def broken(here: RouterRig, stream: ResponseStream) -> CallHomeError:
    """The error that ends the stream, which shows no sixth item."""
    with pytest.raises(CallHomeError) as caught:
        await anext(stream)
    assert stream.received == 5
    await here.idle()
    return caught.value


@pytest.mark.parametrize("cut", [*CUTS, "sentinel alone"])
async def test_b67_five_items_from_a_dynamo_worker(tmp_path: Path, cut: str) -> None:
    async with standin() as worker, router_rig(tmp_path, far_record(worker.via, GO)) as here:
        async with here.client.stream(GO) as stream:
            reading = asyncio.ensure_future(five(stream))
            call = await worker.next()
            call.reply()
            half = await call.dial()
            half.prologue()
            for value in range(5):
                half.item(value)
            assert await reading == [0, 1, 2, 3, 4]
            if cut == "end in a frame":
                half.send(item_frame(5)[:-1])
            if cut == "sentinel alone":  # without the terminal wrapper before it
                half.send(SENTINEL)
            if cut == "reset":
                half.abort()
            else:
                half.close()
            error = await broken(here, stream)
            assert isinstance(error, ConnectionLost | RemoteProtocolError)
            assert "5 items" in str(error) or cut == "sentinel alone"
        worker.hang_up()


def batch(*messages: Message) -> bytes:
    """The bytes of one batch."""
    packed = BatchWriter(OWN).pack(messages)
    return pack_mux(BATCH, len(packed)) + packed


def some(stream: int, first: int, *values: Any) -> Items:
    return Items(stream, first, [encode(each, codec="msgpack") for each in values])


@pytest.mark.parametrize("cut", [*CUTS, "in a body", "an end that counts ten", "a gap"])
async def test_b67_five_items_from_a_node_of_ours(tmp_path: Path, cut: str) -> None:
    async with standin() as worker:
        record = far_record(worker.via, GO, speaks=SPEAKS)
        async with router_rig(tmp_path, record) as here, here.client.stream(GO) as stream:
            reading = asyncio.ensure_future(five(stream))
            call, end = await connect(worker)
            n = number(call)
            end.send(Accept(n, SELF, 0, 0), some(n, 0, 0, 1, 2, 3, 4))
            assert await reading == [0, 1, 2, 3, 4]
            if cut == "end in a frame":
                end.half.send(batch(some(n, 5, 5))[:-1])
            elif cut == "in a body":
                end.send(ItemBody(n, 5, 300_000, [], 300_000, 1), End(n, 6, None))
                end.half.send(pack_mux(BODY, 200_000, 1) + bytes(200_000))
                # It has come when the router has taken memory for it.
                await wait_until(lambda: here.actor._plane.net.bytes_in > 200_000)
            elif cut == "an end that counts ten":
                end.send(End(n, 10, None))
            elif cut == "a gap":
                end.send(some(n, 6, 6), End(n, 7, None))
            if cut == "reset":
                end.half.abort()
            elif cut in CUTS or cut == "in a body":
                end.half.close()
            error = await broken(here, stream)
            assert isinstance(error, ConnectionLost | RemoteProtocolError)
            memory = here.actor.runtime.memory
            await wait_until(lambda: not memory.statistics().slots)
        worker.hang_up()


async def test_b67_a_batch_cut_at_every_byte_delivers_none_of_it(tmp_path: Path) -> None:
    size = len(batch(some(1, 5, 5)))
    async with standin() as worker:
        record = far_record(worker.via, GO, speaks=SPEAKS)
        async with router_rig(tmp_path, record) as here:
            for cut in range(size):
                async with here.client.stream(GO) as stream:
                    reading = asyncio.ensure_future(five(stream))
                    call, end = await connect(worker)
                    n = number(call)
                    end.send(Accept(n, SELF, 0, 0), some(n, 0, 0, 1, 2, 3, 4))
                    assert await reading == [0, 1, 2, 3, 4]
                    end.half.send(batch(some(n, 5, 5))[:cut])
                    end.half.close()
                    error = await broken(here, stream)
                    assert isinstance(error, ConnectionLost)
        worker.hang_up()
