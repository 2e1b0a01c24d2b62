"""Requests and request items that come to an ingress as bodies, and what may go wrong meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.discovery.record import routing_path
from actors.messages import Accept, End, ItemBody, Record
from tests.ingress.engines import Chat
from tests.ingress.muxhome import MuxHome
from tests.ingress.rig import Rig
from tests.ingress.test_relay import both
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.shm.segment import start_time
from transport.wire.mux import BODY, pack_mux

SIZE = 200_000
LATER = {"x-callhome-body": "{}"}


@contextmanager
def mute(at: Rig) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The path of an engine that is a process and nothing else."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            address = Address("mute", 0x1234567, process.pid, start_time(process.pid))
            record = Record(
                address.incarnation, address, "engine", "t.mute.go", False, 64, "msgpack"
            )
            at.known.registry.add(record)
            yield routing_path(record), process
        finally:
            process.kill()


async def announced(home: MuxHome, path: str, share: int) -> tuple[int, int]:
    """A request with a body, of which a share has been sent; numbers of stream and body."""
    stream = await home.ask(path, body=b"\xc0", metadata=LATER)
    mux = await home.connected()
    number = mux.new_body()
    home.send(ItemBody(stream, -1, SIZE, [], SIZE, number))
    mux.flush()
    more(home, number, share)
    return stream, number


def more(home: MuxHome, number: int, size: int) -> None:
    """Send some bytes of a body."""
    assert home.mux is not None
    if size:
        home.mux._out.write(pack_mux(BODY, size, number), bytes(size))
        home.mux.link.flush()


@pytest.mark.parametrize("share", [None, 0, SIZE // 2], ids=["unannounced", "none", "half"])
async def test_an_engine_dies_while_its_request_is_on_the_way(
    tmp_path: Path, share: int | None
) -> None:
    async with both(tmp_path) as (at, home):
        with mute(at) as (path, process):
            number = 0
            if share is None:
                stream = await home.ask(path, body=b"\xc0", metadata=LATER)
                await home.connected()
            else:
                stream, number = await announced(home, path, share)
                relay = at.ingress.streams.table[max(at.ingress.streams.table)]
                await wait_until(lambda: relay._lane is not None)  # type: ignore[attr-defined]
            process.kill()
            end = await home.ended(stream)
            assert end.error is not None
            assert end.error[0] == "worker.lost"
            await at.idle()
            more(home, number, SIZE - (share or 0) if number else 0)  # goes nowhere


async def test_an_engine_that_is_dead_when_its_request_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(tmp_path) as (at, home):
        with mute(at) as (path, _):
            stream, number = await announced(home, path, SIZE // 2)
            monkeypatch.setattr(at.ingress.runtime.peers, "watch", lambda address: False)
            more(home, number, SIZE // 2)
            end = await home.ended(stream)
            assert end.error is not None
            assert end.error[0] == "worker.lost"
            await at.idle()


async def test_bodies_count_as_announced_against_what_the_engine_takes(tmp_path: Path) -> None:
    async with both(tmp_path, window_bytes=1 << 20) as (at, home):
        path = await at.engine(Chat)
        stream = await home.ask(path, many=True)
        accept = (await home.until(Accept, stream))[0]
        assert accept.feed_bytes == 1 << 20
        for seq in range(20):
            home.send(ItemBody(stream, seq, 1 << 20, [], 1 << 20, 100 + seq))
        end = await home.ended(stream)
        assert end.error is not None
        assert end.error[0] == "protocol.remote"
        await at.idle()
        assert home.got(End, stream) == [end]
