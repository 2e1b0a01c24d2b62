"""Attempts after the first one, played by hand: what the next worker hears, what the caller is
told, and whom a cancel reaches in between.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Settings
from actors.errors import Overloaded
from actors.kernel.calls import Caller
from actors.kernel.peers import start_time
from actors.kernel.responses import DuplexStream
from actors.kernel.runtime import Runtime
from actors.messages import Accept, End, Feed, FeedEnd, Items, Open
from tests.e2e.raw import RawHome, raw_home
from tests.waiting import LONG, wait_until
from transport.bus.address import Address
from transport.errors import (
    AttachFailed,
    CallHomeError,
    Cancelled,
    ConnectionLost,
    EngineError,
    LocalProtocolError,
    PeerLost,
    to_wire,
)
from transport.wire.codec import decode, encode

TALK = "t.talk.go"
LOST = PeerLost("killed", instance="7")


@contextmanager
def played(run: Path, *dead: Address, **settings: Any) -> Iterator[tuple[Caller, RawHome]]:
    """A caller, and a worker made by hand; routers that are ``dead`` stand before it in turn."""
    with raw_home(str(run)) as worker:
        runtime = Runtime(run=str(run), name="caller", settings=Settings.load(**settings))
        routers = itertools.cycle([*dead, worker.address])
        try:
            yield Caller(runtime, lambda target: next(routers)), worker
        finally:
            runtime.close()  # before the worker, for whom it would linger


async def opened(worker: RawHome, number: int) -> Open:
    """The Open of that attempt, counted from 1."""
    await wait_until(lambda: len(worker.got(Open)) >= number, what=f"attempt {number}")
    assert len(worker.got(Open)) == number
    return worker.got(Open)[-1]


async def accepted(worker: RawHome, number: int) -> Open:
    """That attempt's Open, with much credit for request items."""
    open_ = await opened(worker, number)
    worker.send(open_.home, Accept(open_.stream, worker.address, 1000, 1 << 24))
    return open_


def refuse(worker: RawHome, open_: Open, error: CallHomeError, items: int = 0) -> None:
    """End an attempt badly."""
    worker.send(open_.home, End(open_.stream, items, to_wire(error)))


def heard(worker: RawHome, open_: Open) -> list[Any]:
    """The request items of one attempt."""
    return [decode(p) for m in worker.got(Feed, open_.stream) for p in m.payloads]


async def said(worker: RawHome, talk: DuplexStream, *lines: str) -> Open:
    """The first attempt, at which these have arrived."""
    await talk.__aenter__()
    first = await accepted(worker, 1)
    for line in lines:
        await talk.send(line)
    await wait_until(lambda: heard(worker, first) == list(lines), what="all has arrived")
    return first


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_stream_each_way_whose_request_is_over_migration_bytes_is_not_continued(
    tmp_path: Path, answered: int
) -> None:
    def replay(sent: list[Any], received: list[Any]) -> list[Any]:
        raise AssertionError(f"it is asked to begin with {len(sent)} items")

    with played(tmp_path, migration_bytes=65_536) as (caller, worker):
        talk = caller.open(TALK, migration_limit=2, replay=replay, timeout=LONG)
        first = await said(worker, talk, *["x" * 10_000] * 7)
        if answered:
            worker.send(first.home, Items(first.stream, 0, [encode("fine")]))
            assert await talk.recv() == "fine"
        refuse(worker, first, LOST, answered)
        with pytest.raises(PeerLost, match=r"over migration_bytes \(65536\)"):
            await talk.recv()
        with pytest.raises(PeerLost, match="over migration_bytes"):
            await talk.send("more")
        assert len(worker.got(Open)) == 1


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("full", instance="8"),
        ConnectionLost("refused", instance="8", sent="no"),
        ConnectionLost("cut", instance="8"),
        PeerLost("killed", instance="8"),
    ],
    ids=["full", "refused", "cut", "killed"],
)
async def test_who_comes_after_a_worker_that_did_not_begin_hears_all_from_the_start(
    tmp_path: Path, error: CallHomeError
) -> None:
    told: list[tuple[list[Any], list[Any]]] = []

    def replay(sent: list[Any], received: list[Any]) -> list[Any]:
        told.append((sent, received))
        return sent

    with played(tmp_path) as (caller, worker):
        talk = caller.open(TALK, migration_limit=3, replay=replay, timeout=LONG)
        first = await said(worker, talk, "a", "b")
        reading = asyncio.create_task(talk.recv())
        refuse(worker, first, LOST)
        refuse(worker, await opened(worker, 2), error)
        third = await accepted(worker, 3)
        await wait_until(lambda: heard(worker, third) == ["a", "b"], what="it has heard it")
        await talk.send("c")
        await wait_until(lambda: heard(worker, third) == ["a", "b", "c"], what="the rest")
        worker.send(third.home, End(third.stream, 1, None, last=[encode("fine")]))
        assert await reading == "fine"
        assert told == [(["a", "b"], [])]  # once for a break
        # Counted once each: whoever has not taken it was tried again, whoever has is followed.
        untaken = int(isinstance(error, Overloaded) or error.details.get("sent") == "no")
        assert caller.runtime.home.between.statistics() == {
            "retried": untaken, "migrated.new_request": 0, "migrated.ongoing_request": 2 - untaken,
        }  # fmt: skip


async def test_replay_is_asked_again_for_what_was_said_to_the_second_worker(
    tmp_path: Path,
) -> None:
    with played(tmp_path) as (caller, worker):
        replay = lambda sent, received: [*sent, len(received)]  # noqa: E731
        talk = caller.open(TALK, migration_limit=2, replay=replay, timeout=LONG)
        first = await said(worker, talk, "a")
        reading = asyncio.create_task(talk.recv())
        refuse(worker, first, LOST)
        second = await accepted(worker, 2)
        await wait_until(lambda: heard(worker, second) == ["a", 0], what="it has heard it")
        await talk.send("b")
        await talk.end()
        worker.send(second.home, Items(second.stream, 0, [encode("fine")]))
        assert await reading == "fine"
        refuse(worker, second, LOST, 1)
        reading = asyncio.create_task(talk.recv())
        third = await accepted(worker, 3)
        await wait_until(lambda: heard(worker, third) == ["a", "b", 1], what="it has heard it")
        await wait_until(lambda: worker.got(FeedEnd, third.stream), what="and its end")
        refuse(worker, third, LOST)
        with pytest.raises(PeerLost, match=r"migration_limit \(2\) is used up, after 1 items"):
            await reading


def broken(sent: list[Any], received: list[Any]) -> list[Any]:
    """What users do."""
    if sent == ["exit"]:
        sys.exit("done")
    return [object()] if sent == ["rubbish"] else items_that_fail(sent[0])


def items_that_fail(how: str) -> Any:
    """Replay items of a generator that ends the program, or fails."""
    yield "before"
    if how == "exit later":
        sys.exit("later")
    raise KeyError("oh")


@pytest.mark.parametrize("how", ["exit", "rubbish", "exit later", "fail later"])
async def test_a_replay_that_fails_is_named_with_what_it_was_for(tmp_path: Path, how: str) -> None:
    with played(tmp_path) as (caller, worker):
        talk = caller.open(TALK, migration_limit=2, replay=broken, timeout=LONG)
        refuse(worker, await said(worker, talk, how), LOST)
        reading = asyncio.create_task(talk.recv())
        if how != "exit":
            await accepted(worker, 2)
        with pytest.raises(LocalProtocolError, match="replay function broken failed: ") as told:
            await reading
        assert "the stream had ended with: killed" in str(told.value)
        assert type(told.value.__cause__).__name__ in str(told.value)


async def test_a_resume_that_ends_the_program_does_not(tmp_path: Path) -> None:
    def resume(request: Any, delivered: list[Any]) -> Any:
        sys.exit("done")

    with played(tmp_path) as (caller, worker):
        async with caller.stream(TALK, 1, migration_limit=2, resume=resume) as items:
            first = await accepted(worker, 1)
            worker.send(first.home, Items(first.stream, 0, [encode("one")]))
            assert await anext(items) == "one"
            refuse(worker, first, LOST, 1)
            with pytest.raises(LocalProtocolError, match="resume failed: SystemExit: done"):
                await anext(items)


async def test_functions_that_would_have_to_be_awaited_are_refused_at_once(tmp_path: Path) -> None:
    async def later(first: Any, second: Any) -> Any:
        return first

    async def one_by_one(first: Any, second: Any) -> Any:
        yield first

    class Later:
        async def __call__(self, first: Any, second: Any) -> Any:
            return first

    with played(tmp_path) as (caller, _):
        functions: list[Any] = [later, one_by_one, Later()]
        for function in functions:
            with pytest.raises(LocalProtocolError, match="is async; resume and replay are plain"):
                caller.stream(TALK, 1, resume=function)
            with pytest.raises(LocalProtocolError, match="is async; resume and replay are plain"):
                caller.open(TALK, replay=function)


async def test_a_cancel_between_a_break_and_its_reader_reaches_the_request(tmp_path: Path) -> None:
    with played(tmp_path) as (caller, worker):
        for number, error in enumerate((LOST, AttachFailed("not here")), 1):
            streams = {}
            for kill in (True, False) if error is LOST else (True,):
                before = len(worker.got(Open))
                request_id = f"r{number}{kill}"
                streams[kill] = caller.stream(
                    TALK, np.ones(100_000), request_id=request_id, timeout=LONG,
                    migration_limit=1, resume=lambda request, delivered: request,
                )  # fmt: skip
                await streams[kill].__aenter__()
                open_ = await opened(worker, before + 1)
                if error is LOST:
                    worker.send(open_.home, Items(open_.stream, 0, [encode("one")]))
                refuse(worker, open_, error, int(error is LOST))
                await wait_until(lambda: not caller.runtime.home.streams, what="it is broken")
                with pytest.raises(LocalProtocolError, match="in flight"):
                    await caller.call(TALK, 1, request_id=request_id, timeout=LONG)
                assert caller.cancel(request_id, kill=kill, reason="enough")
            if error is LOST:
                assert await anext(streams[False]) == "one"  # a stop drops nothing
            for items in streams.values():
                with pytest.raises(Cancelled, match="enough"):
                    await anext(items)
                assert not caller.cancel(items.context.id)
        await wait_until(lambda: not caller.runtime.memory.statistics().slots, what="no frame")


@pytest.mark.parametrize("how", ["read", "left", "dropped", "final"])
async def test_the_id_of_a_request_that_has_ended_is_free(tmp_path: Path, how: str) -> None:
    with played(tmp_path, retry_limit=0) as (caller, worker):
        items = caller.stream(TALK, 1, request_id="mine", timeout=LONG)
        await items.__aenter__()
        refuse(worker, await opened(worker, 1), EngineError("boom") if how == "final" else LOST)
        await wait_until(lambda: not caller.runtime.home.streams, what="it is broken")
        if how == "read":
            with pytest.raises(PeerLost):
                await anext(items)
        elif how == "left":
            await items.aclose()
        elif how == "dropped":
            del items
            await wait_until(lambda: caller.runtime.home.find("mine") is None, what="it is dropped")
        assert not caller.cancel("mine")
        asking = asyncio.create_task(caller.call(TALK, 1, request_id="mine"))
        again = await opened(worker, 2)
        worker.send(again.home, End(again.stream, 1, None, last=[encode("fine")]))
        assert await asking == "fine"


def gone(incarnation: int) -> Address:
    """The address of a router that is no more."""
    return Address(f"r{incarnation}", incarnation, 2**22 - incarnation, start_time(1))


async def test_an_open_for_a_router_that_is_dead_goes_to_the_next_one(tmp_path: Path) -> None:
    with played(tmp_path, gone(1), gone(2), retry_limit=0) as (caller, worker):
        for number in range(1, 7):  # whoever's turn it is
            asking = asyncio.create_task(caller.call(TALK, np.ones(100_000)))
            open_ = await opened(worker, number)
            worker.send(open_.home, End(open_.stream, 1, None, last=[encode("fine")]))
            assert await asking == "fine"
        assert not caller.runtime.memory.statistics().slots
        # With none left it is told at once.
        routers = iter([gone(3), gone(4)] * 10)
        alone = Caller(caller.runtime, lambda target: next(routers))
        with pytest.raises(PeerLost, match=r"r3.* is dead") as told:
            await alone.call(TALK, np.ones(100_000))
        assert told.value.details["sent"] == "no"
        assert not caller.runtime.memory.statistics().slots
