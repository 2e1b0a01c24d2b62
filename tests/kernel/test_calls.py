"""Callers of a node: what a closed client says, and what comes back when a caller goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from actors import EngineSpec, NodeSpec
from actors.errors import AttachFailed, Cancelled, DeadlineExceeded, LocalProtocolError
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import End, Kill, Open
from tests.e2e.raw import RawHome, raw_home
from tests.e2e.standing import Standing, inspect, standing
from tests.kernel.players import COUNTER, HERE, OTHER, Add, Give
from tests.waiting import LONG, TICK, wait_until
from transport.context import Context
from transport.errors import to_wire

DOUBLE = EngineSpec(endpoint="t.double.go", engine=HERE + "double", name="double")


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(actors=[COUNTER, OTHER], engines=[DOUBLE])) as found:
        yield found


async def test_a_closed_client_says_so_at_once(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        assert await client.call("t.double.go", 4, timeout=LONG) == 8
        frame = client.frames.new(100_000, "u1")
    async with asyncio.timeout(LONG):
        with pytest.raises(LocalProtocolError, match="is closed"):
            await client.call("t.double.go", 4)
        with pytest.raises(LocalProtocolError, match="is closed"):
            await client.call("t.double.go", frame)
        with pytest.raises(LocalProtocolError, match="is closed"):
            await anext(client.stream("t.double.go", 4))
        with pytest.raises(LocalProtocolError, match="is closed"):
            await counter.ask(Add(1))
        with pytest.raises(LocalProtocolError, match="is closed"):
            await counter.tell(Add(1))
    assert client.runtime.home.streams == {}


async def test_an_answer_that_comes_with_the_cancel_is_given_back(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        asked = asyncio.create_task(counter.ask(Give(np.ones(100_000)), timeout=LONG))
        await wait_until(lambda: client.runtime.home.streams)
        (stream,) = client.runtime.home.streams.values()
        while stream.state.response_open:  # noqa: ASYNC110 - the very tick is wanted
            await asyncio.sleep(0)
        assert not asked.done()  # it is all there, and the task has not had its turn
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled()

        async def free() -> bool:
            return not (await inspect(counter))["counters"]["memory.slots"]

        await wait_until(free, what="the answer's memory is back")


@contextmanager
def blind_worker(run: Path, parent: Context | None = None) -> Iterator[tuple[Caller, RawHome]]:
    """A caller, and a worker made by hand that is about to say it cannot attach our memory."""
    with raw_home(str(run)) as worker:
        runtime = Runtime(run=str(run), name="caller")
        try:
            yield Caller(runtime, lambda target: worker.address, parent), worker
        finally:
            runtime.close()  # before the worker, for whom it would linger


async def refuse(worker: RawHome) -> None:
    """Answer the newest Open as a worker does that cannot attach our memory."""
    await wait_until(lambda: worker.got(Open), what="an Open")
    newest = worker.got(Open)[-1]
    worker.send(newest.home, End(newest.stream, 0, to_wire(AttachFailed("not here"))))


@pytest.mark.parametrize("how", ["left", "dropped"])
async def test_a_refused_request_that_nobody_sends_again_gives_its_frames_back(
    tmp_path: Path, how: str
) -> None:
    with blind_worker(tmp_path) as (caller, worker):
        memory = caller.runtime.memory
        stream = caller.stream("t.blind.go", np.ones(100_000))
        await stream.__aenter__()
        await refuse(worker)
        await wait_until(lambda: not caller.runtime.home.streams)
        assert memory.statistics().slots == 1
        if how == "left":
            await stream.aclose()
        del stream
        await wait_until(lambda: not memory.statistics().slots)


async def test_a_request_that_is_sent_again_still_hears_of_its_parents_end(tmp_path: Path) -> None:
    parent = Context("parent")
    with blind_worker(tmp_path, parent) as (caller, worker):
        stream = caller.stream("t.blind.go", np.ones(100_000))
        reading = asyncio.create_task(anext(stream))
        await refuse(worker)
        await wait_until(lambda: len(worker.got(Open)) == 2)
        parent.kill("enough")
        with pytest.raises(Cancelled, match="enough"):
            await reading
        await wait_until(lambda: worker.got(Kill))
        assert not caller.runtime.memory.statistics().slots


@pytest.mark.parametrize("timeout", [None, LONG])
async def test_a_limit_that_comes_from_the_parent_is_named(
    tmp_path: Path, timeout: float | None
) -> None:
    parent = Context("parent", deadline=time.monotonic() + 2.5 * TICK)
    with blind_worker(tmp_path, parent) as (caller, _):
        with pytest.raises(DeadlineExceeded, match=r"no end within \d+\.\d+ s"):
            await anext(caller.stream("t.blind.go", 1, timeout=timeout))
        assert not caller.runtime.home.streams


async def test_ids_of_one_process_differ_whoever_calls(tmp_path: Path) -> None:
    with blind_worker(tmp_path) as (caller, _):
        other = Caller(caller.runtime, caller.route)
        ids = {each.stream("t.blind.go", 1).context.id for each in (caller, other, caller, other)}
        assert len(ids) == 4
