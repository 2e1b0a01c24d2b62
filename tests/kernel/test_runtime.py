"""What a runtime does with values before they are packed."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from actors.config import Settings
from actors.errors import EncodeError, LocalProtocolError
from actors.kernel.runtime import TICK, Runtime, least_size
from tests.waiting import LONG, wait_until
from transport.bus.address import Address


@pytest.mark.parametrize(
    ("value", "native", "other"),
    [
        ("abc", 3, 3),
        (b"abcd", 0, 4),
        ({"a": "12", "b": b"345", "c": [1, "678"]}, 2, 5),
        (("12", b"345"), 2, 5),
        (["x"] * 65, 0, 0),
        (bytearray(9), 0, 0),
        (7, 0, 0),
        (None, 0, 0),
    ],
)
def test_what_a_value_takes_at_least(value: Any, native: int, other: int) -> None:
    assert least_size(value, native=True) == native
    assert least_size(value, native=False) == other


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_a_value_beyond_the_limit_is_refused_before_its_frames_are_handed_on(
    tmp_path: Path, codec: str
) -> None:
    runtime = Runtime(run=str(tmp_path), name="a", settings=Settings(payload_limit=65_536))
    try:
        frame = runtime.memory.frames.new(4, "uint8")
        with pytest.raises(EncodeError, match=r"request: at least 70000 bytes.*65536 are allowed"):
            runtime.encode({"text": "x" * 70_000, "f": frame}, codec, True, "request")
        frame.array[:] = 1  # still ours
        frame.release()
        with pytest.raises(EncodeError, match=r"item: 70\d\d\d bytes when encoded, 65536"):
            runtime.encode([[["x" * 70_000]]], codec, True, "item")
        big = runtime.encode({"blob": bytes(70_000)}, codec, True, "item")
        assert len(big.handles) == 1  # beside the data, so it does not count
        runtime.memory.unexport(big.handles[0])
    finally:
        runtime.close()


def test_a_runtime_is_used_where_its_loop_runs_now_and_not_where_it_was_made(
    tmp_path: Path,
) -> None:
    async def made() -> Runtime:
        return Runtime(run=str(tmp_path), name="a")

    async def use(runtime: Runtime) -> None:
        runtime.check_open()
        runtime.check_loop()

    async def close(runtime: Runtime) -> None:
        runtime.close()

    loop = asyncio.new_event_loop()
    runtime = loop.run_until_complete(made())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(use(runtime), loop).result(LONG)
        for check in (runtime.check_open, runtime.check_loop, lambda: asyncio.run(use(runtime))):
            with pytest.raises(LocalProtocolError, match="another event loop"):
                check()
        asyncio.run_coroutine_threadsafe(close(runtime), loop).result(LONG)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LONG)
        loop.close()


async def test_timers_keep_the_coarse_timer_going_while_one_of_them_is_busy(tmp_path: Path) -> None:
    runtime = Runtime(run=str(tmp_path), name="a")
    calls: list[str] = []

    def busy(now: float) -> bool:
        calls.append("busy")
        return len(calls) < 5

    def idle(now: float) -> bool:
        calls.append("idle")
        return False

    runtime.timers += [busy, idle]
    try:
        runtime.plan_tick()
        await wait_until(lambda: len(calls) == 6)
        await asyncio.sleep(3 * TICK)  # were it still going, it would have called by now
        assert calls == ["busy", "idle"] * 3
    finally:
        runtime.close()


async def test_a_timer_that_fails_costs_only_itself_and_is_not_logged_at_each_tick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(run=str(tmp_path), name="a")
    calls: list[str] = []

    def failing(now: float) -> bool:
        calls.append("failing")
        if len(calls) < 6:
            raise ValueError("its own fault")
        return False

    def other(now: float) -> bool:
        calls.append("other")
        return False

    runtime.timers += [failing, other]
    try:
        runtime.plan_tick()
        await wait_until(lambda: len(calls) == 8)
        assert calls == ["failing", "other"] * 4
        assert caplog.text.count("ValueError: its own fault") == 1
        assert "failing failed; the others go on" in caplog.text
    finally:
        runtime.close()


async def test_who_fails_to_hear_of_a_death_keeps_it_from_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(run=str(tmp_path), name="a")
    told: list[str] = []

    def failing(address: Address, reason: str) -> None:
        raise ValueError("its own fault")

    dead = Address("dead", 0x99, os.getpid(), runtime.address.started)
    runtime.when_down += [failing, lambda address, reason: told.append(reason)]
    runtime.home.down = failing  # type: ignore[method-assign]
    try:
        runtime.peers.lost(dead, "gone")
        await wait_until(lambda: told)  # behind all that it may have sent
        assert told == ["gone"]
        assert "its own fault" in caplog.text
    finally:
        runtime.close()
