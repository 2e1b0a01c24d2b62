"""Streams to endpoints that nobody is known to serve yet: they wait until others have answered."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.errors import CallHomeError, NoWorkers
from tests.clock import Clock
from tests.clock import clock as clock
from tests.router import engines
from tests.router.nodes import node
from tests.router.rig import RouterRig, router_rig
from tests.waiting import LONG, TICK, wait_until

GO = "t.far.go"
ENGINE: tuple[str, type, dict[str, Any]] = (GO, engines.Count, {})
#: Nobody listens there.
GONE = "127.0.0.1:1"
#: For streams that shall not have waited in vain.
PATIENT: dict[str, Any] = {"connect_timeout": LONG}


@contextmanager
def silent() -> Iterator[str]:
    """Somebody who listens and says nothing."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        yield "{}:{}".format(*sock.getsockname())


def asked(here: RouterRig, endpoint: str = GO, **options: Any) -> asyncio.Task[list[Any]]:
    async def collect() -> list[Any]:
        async with here.client.stream(endpoint, {"n": 2}, **options) as items:
            return [item async for item in items]

    return asyncio.ensure_future(collect())


async def test_a_router_that_has_just_started_routes_at_once(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "b", ENGINE) as far,
        router_rig(tmp_path / "a", peers=(far.ingress.reached,), **PATIENT) as here,
    ):
        assert not here.actor.peers.connected
        tasks = [asked(here) for _ in range(20)]
        for task in tasks:
            assert await task == [0, 1]
        await wait_until(lambda: not here.permits)


async def test_what_no_peer_serves_is_told_when_all_have_answered(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "b", ENGINE) as far,
        router_rig(tmp_path / "a", peers=(far.ingress.reached, GONE), **PATIENT) as here,
    ):
        words = (
            r"unknown here; did you mean 't.far.go'\? \(served: t.far.go; peer 127.0.0.1:1 cannot"
        )
        with pytest.raises(NoWorkers, match=words):
            await asked(here, "t.far.goo")
        assert here.actor.peers.connected


async def test_a_peer_that_does_not_answer_is_waited_for_and_named(
    tmp_path: Path, clock: Clock
) -> None:
    with silent() as peer:
        late = dict.fromkeys(("ack_timeout", "dial_in_timeout", "prologue_timeout"), 10 * LONG)
        limits: dict[str, Any] = PATIENT | late
        async with router_rig(tmp_path, peers=(peer,), **limits) as here:
            here.actor.patience = TICK  # that peer reads no good-bye either
            task = asked(here)
            await wait_until(lambda: len(here.actor._held._held) == 1)
            clock.turn(LONG)
            words = rf"peers \({peer}\) have not answered yet; try again"
            with pytest.raises(NoWorkers, match=words) as failed:
                await task
            assert failed.value.retry
            with pytest.raises(NoWorkers, match=words):
                await asked(here)  # not held again
            assert here.actor.counters.refused == 2  # the one that has waited, too
            clock.turn(10 * LONG)  # that the router has asked itself ends, too
            await wait_until(lambda: not here.permits and not here.actor._held._held)


@pytest.mark.parametrize("how", ["stop", "kill", "drop"])
async def test_a_stream_that_waits_can_be_cancelled(tmp_path: Path, how: str) -> None:
    with silent() as peer:
        async with router_rig(tmp_path, peers=(peer,), **PATIENT) as here:
            here.actor.patience = TICK
            held = here.actor._held._held
            async with here.client.stream(GO, {"b": bytes(64 << 10)}) as items:
                first = asyncio.ensure_future(anext(items))
                await wait_until(lambda: len(held) == 1)
                if how == "stop":
                    items.stop()
                    with pytest.raises(StopAsyncIteration):
                        await first
                elif how == "kill":
                    items.kill()
                    with pytest.raises(CallHomeError):
                        await first
                else:
                    first.cancel()
            await wait_until(lambda: held[0].over)
            await wait_until(lambda: not here.runtime.memory.statistics().slots)


async def test_only_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.router.held._STREAMS", 2)
    with silent() as peer:
        async with router_rig(tmp_path, peers=(peer,), **PATIENT) as here:
            here.actor.patience = TICK
            tasks = [asked(here) for _ in range(2)]
            await wait_until(lambda: len(here.actor._held._held) == 2)
            with pytest.raises(NoWorkers, match="have not answered yet; try again"):
                await asked(here)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await wait_until(lambda: all(each.over for each in here.actor._held._held))
            another = asked(here)  # what has left makes room
            await wait_until(lambda: len(here.actor._held._held) == 1)
            another.cancel()
            await asyncio.wait([another])


async def test_a_peer_that_cannot_be_seen_is_logged_soon_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callhome")
    settings: dict[str, Any] = {"call_home_advertise": "127.9.9.9", "dial_in_timeout": 1.0}
    async with (
        node(tmp_path / "b", ENGINE) as far,
        router_rig(tmp_path / "a", peers=(far.ingress.reached,), **settings) as here,
    ):
        peer = far.ingress.reached
        await wait_until(lambda: here.actor.peers.failures)
        words = (
            f"peer {peer} cannot be seen: it took the request and did not call back to 127.9.9.9:"
        )
        with pytest.raises(NoWorkers, match=words):
            await asked(here)
        assert f"cannot see what {peer} serves, trying again: it took the request" in caplog.text
        assert here.actor.carries()["peers"][peer].startswith("it took the request and did not")
