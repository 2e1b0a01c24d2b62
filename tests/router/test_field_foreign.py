"""Field reports on the road to Dynamo workers that other modules leave out."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from actors.errors import (
    CallBackFailed,
    CallHomeError,
    ConnectionLost,
    DecodeError,
    EncodeError,
    RemoteProtocolError,
)
from tests.clock import Clock, at_once, steady
from tests.clock import clock as clock
from tests.router.foreign_rig import GO, begun, collected, rig
from tests.router.rig import far_record, router_rig
from tests.router.standin import item_frame
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.wire.framing import frame
from transport.wire.plain import wrap

LIMITS = ("connect_timeout", "ack_timeout", "dial_in_timeout", "prologue_timeout")
both = pytest.mark.parametrize("codec", ["msgpack", "json"])


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


#: What no worker of another make can read; those of the second only where bytes are JSON.
NEVER: dict[str, Any] = {
    "b100 2**64": 2**64,
    "b100 -2**63-1": -(2**63) - 1,
    "b100 2**200": [2**200],
    "b101 int": {1: "a", "1": "b"},
    "b101 tuple": {(1, 2): "c"},
    "b101 none": {None: 0},
    "b101 float": {1.5: 0},
    "b103": "\ud800",
    "b107 naive": datetime(2020, 1, 1),
    "b107 aware": datetime(2020, 1, 1, tzinfo=UTC),
    "b107 uuid": UUID(int=1),
    "b107 enum": Colour.RED,
    "b107 dataclass": Point(1),
    "b107 decimal": Decimal("1.0"),
    "b109 depth": nested(2000),
    "b109 digits": 10**5000,
}
ONLY_JSON: dict[str, Any] = {
    "b98": b"\x00\xff",
    "b104 nan": math.nan,
    "b104 inf": math.inf,
    "b104 -inf": -math.inf,
}


@both
async def test_b98_b100_b101_b103_b104_b107_b109_what_a_worker_cannot_read_is_never_sent(
    tmp_path: Path, codec: str
) -> None:
    refused = NEVER | (ONLY_JSON if codec == "json" else {})
    async with rig(tmp_path, codec=codec) as (here, worker):
        for own in ("msgpack", "json"):
            for name, value in refused.items():
                with pytest.raises(EncodeError, match=r"request\[") as caught:
                    await here.client.call(GO, {"a": value}, codec=own)
                assert '"a"' in str(caught.value), name
                assert here.permits == 0, name
            task = asyncio.ensure_future(here.client.call(GO, {"a": 1}, codec=own))
            await (await worker.next()).answer(2, codec=codec)
            assert await task == 2  # the next is none the worse
        assert len(worker.calls) == 2


@both
async def test_b97_b100_b109_what_it_can_read_comes_as_plain_values(
    tmp_path: Path, codec: str
) -> None:
    numpy = pytest.importorskip("numpy")
    value = {
        "lp": numpy.float32(-1.5), "id": numpy.int64(3), "ok": numpy.bool_(True),
        "f": numpy.float64(2), "big": [2**64 - 1, -(2**63)], "deep": nested(100),
    }  # fmt: skip
    plain = value | {"lp": -1.5, "id": 3, "ok": True, "f": 2.0}
    async with rig(tmp_path, codec=codec) as (here, worker):
        task = asyncio.ensure_future(here.client.call(GO, value))
        call = await worker.next()
        got = call.value if codec == "msgpack" else json.loads(call.body)
        assert got == plain
        assert [type(got[key]) for key in ("lp", "id", "ok", "f")] == [float, int, bool, float]
        await call.answer(plain, codec=codec)
        assert await task == plain


async def test_b98_bytes_and_b104_infinities_pass_where_the_worker_has_messagepack(
    tmp_path: Path,
) -> None:
    value = {"a": [b"\x00\xff", {"b": b""}], "inf": [math.inf, -math.inf]}
    async with rig(tmp_path) as (here, worker):
        task = asyncio.ensure_future(here.client.call(GO, value))
        call = await worker.next()
        assert call.value == value
        await call.answer(value)
        assert await task == value


@pytest.mark.parametrize(
    ("codec", "poison"),
    [
        ("msgpack", [b"\xc1", b"\x92\x01", b"\x81\xa4data\x01\x01", b"\x91" * 100_000 + b"\x01",
                     b"\xdd\xff\xff\xff\xff"]),
        ("json", [b"{", b'{"data":1}x', b"[" * 100_000, b'{"data":NaN}', b"\xff"]),
    ],
)  # fmt: skip
async def test_b106_a_poisoned_item_ends_its_stream_only(
    tmp_path: Path, codec: str, poison: list[bytes]
) -> None:
    async with rig(tmp_path, codec=codec) as (here, worker):
        for each in poison:
            task = asyncio.ensure_future(collected(here))
            call = await worker.next()
            call.reply()
            half = await call.dial()
            half.prologue()
            half.send(item_frame("first", codec), frame(b"", wrap(each, codec)))
            await at_once(task.done, f"the end of {each[:8]!r}")
            with pytest.raises((DecodeError, RemoteProtocolError)):
                await task
            task = asyncio.ensure_future(collected(here))
            await (await worker.next()).answer(1, codec=codec)
            assert await task == [1]
        await here.idle()


# -------------------------------------------------------------------------------------- streaming


@both
async def test_b79_items_of_any_size(tmp_path: Path, codec: str) -> None:
    async with rig(tmp_path, codec=codec, window_bytes=128 << 20) as (here, worker):
        task = asyncio.ensure_future(collected(here))
        sizes = [65_535, 65_537, 1 << 20, 31 << 20]
        await (await worker.next()).answer(*("x" * size for size in sizes), codec=codec)
        assert [len(item) for item in await task] == sizes


async def test_b68_b80_a_client_that_pauses_holds_its_worker_back(
    tmp_path: Path, clock: Clock
) -> None:
    """The pause is five times what the limits allow a worker that is silent, by a clock that is
    turned; ten seconds of a user's are paused in tests/e2e/test_field_between_nodes.py.
    """
    size, count = 64 << 10, 2000
    limits: dict[str, Any] = dict.fromkeys(LIMITS, DEADLINE)
    async with rig(tmp_path, **limits) as (here, worker), begun(here, worker) as (items, _, half):
        sent = 0

        async def give() -> None:
            nonlocal sent
            for _ in range(count):
                half.item("x" * size)
                await half._writer.drain()
                sent += 1
            half.end()

        giving = asyncio.ensure_future(give())
        last = await steady(lambda: sent)
        await clock.pass_time(5 * DEADLINE)
        assert sent == last > 256  # it stands still, and has for a while
        assert sent * size < 64 << 20
        assert [len(item) async for item in items] == [size] * count
        await giving


# ---------------------------------------------------------------------------------- TCP call-home


async def test_b137_100_acknowledgements_that_are_cut_off(tmp_path: Path) -> None:
    async with rig(tmp_path) as (here, worker):
        for count in range(1, 101):
            task = asyncio.ensure_future(collected(here, count))
            call = await worker.next()
            call.cut()
            if count % 3 == 0:  # it runs, too
                with contextlib.suppress(OSError):
                    await call.dial()
            with pytest.raises(ConnectionLost) as caught:
                await task
            assert caught.value.details["sent"] == "maybe"
        await here.idle()
        assert [call.value for call in worker.calls] == list(range(1, 101))


@contextlib.contextmanager
def silent_worker() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process that acknowledges all requests and calls nobody back."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.router.silent"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip(), process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_b124_the_worker_goes_just_after_it_accepted(
    tmp_path: Path, number: signal.Signals
) -> None:
    with silent_worker() as (address, process):
        record = far_record(f"{address}/abc/t/far/go", GO)
        async with router_rig(tmp_path, record, dial_in_timeout=1.0, ack_timeout=1.0) as here:
            here.actor.patience = TICK  # the worker may read no good-bye
            calls = [asyncio.ensure_future(here.client.call(GO, {}))]
            relays = here.actor._plane.relays
            await wait_until(  # it is accepted: the limit of its call-back runs, or is over
                lambda: calls[0].done() or any(each.deadline < math.inf for each in relays.values())
            )
            for _ in range(20):  # the signal comes 0 to 20 ms behind a request
                calls.append(asyncio.ensure_future(here.client.call(GO, {})))
                await asyncio.sleep(0.001)
            os.kill(process.pid, number)
            async with asyncio.timeout(LONG):
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, CallHomeError) for each in results), results
            assert any(isinstance(each, CallBackFailed) for each in results), results
            await here.idle()
            assert here.awaited() == 0
