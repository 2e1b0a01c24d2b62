"""What an actor's class may look like, and an actor on this loop: mailbox, full inbox, looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actors import Actor, Settings, handles
from actors.cluster.entry import running
from actors.errors import (
    ActorDead,
    Cancelled,
    LocalProtocolError,
    OutboxFull,
    Overloaded,
    Unsupported,
)
from actors.kernel.ref import Ref
from actors.kernel.runtime import Runtime
from actors.messages import Inspect
from tests.kernel.players import Add, Counter, CountTo, Go, Louder, Seen, Unknown, Wait
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address


def test_only_async_methods_handle() -> None:
    with pytest.raises(LocalProtocolError, match=r"late handles Add and must be 'async def'"):

        class Wrong(Actor):
            @handles(Add)
            def late(self, message: Add) -> int:
                return 1


@pytest.mark.parametrize("message", [int, dict, tuple, "Add", Add(1), None])
def test_only_named_tuples_are_handled(message: Any) -> None:
    with pytest.raises(LocalProtocolError, match="NamedTuple class"):
        handles(message)


def test_no_message_may_be_called_like_one_of_every_actor() -> None:
    class Inspect(NamedTuple):
        """Stands for a user's message."""

    with pytest.raises(LocalProtocolError, match=r"test_no.*Inspect .* actors\.messages\.Inspect"):
        handles(Inspect)


def test_two_messages_of_one_name_are_refused() -> None:
    class Add(NamedTuple):
        """Not the other Add."""

    with pytest.raises(LocalProtocolError, match=r"players\.Add and .*test_two.*Add;"):

        class Torn(Counter):
            @handles(Add)
            async def also(self, message: Add) -> int:
                return 1


class Meter(Actor):
    """Takes messages of the kinds below; ``overridden`` is bound again under another name."""

    @handles(Add)
    async def first(self, message: Add) -> int:
        return 1


class Finer(Meter):
    @handles(Add)
    async def second(self, message: Add) -> int:
        return 2


class Found:
    """Stands in for the registry: everybody is at one address."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def actor(self, name: str) -> Address:
        if name != self.address.name:
            raise ActorDead(f"no actor {name!r} is alive")
        return self.address

    def router(self, target: str) -> Address:
        raise ActorDead("no router here")


@asynccontextmanager
async def alive(tmp_path: Path, actor: Actor, **settings: Any) -> AsyncIterator[Ref]:
    """The actor on this loop, and a reference from another runtime, over sockets."""
    spec = {
        "run": str(tmp_path),
        "name": "actor",
        "role": "actor",
        "settings": Settings(**settings).to_dict(),
    }
    async with running(spec, actor):
        runtime = Runtime(run=str(tmp_path), name="caller")
        try:
            yield Ref("actor", runtime, Found(actor.address))
        finally:
            runtime.close()


async def test_the_last_binding_of_a_message_handles_it(tmp_path: Path) -> None:
    async with alive(tmp_path, Finer()) as ref:
        assert await ref.ask(Add(0), timeout=LONG) == 2
    async with alive(tmp_path, Meter()) as ref:
        assert await ref.ask(Add(0), timeout=LONG) == 1
    async with alive(tmp_path, Louder(3)) as ref:
        assert await ref.ask(Add(1), timeout=LONG) == 40


async def test_an_actor_outside_a_node_knows_nobody(tmp_path: Path) -> None:
    actor = Counter()
    async with alive(tmp_path, actor):
        with pytest.raises(ActorDead, match="outside any node"):
            actor.ref("other")
        with pytest.raises(ActorDead, match="outside any node"):
            _ = actor.calls


async def test_a_look_and_streams_do_not_wait_behind_the_mailbox(tmp_path: Path) -> None:
    actor = Counter()
    async with alive(tmp_path, actor) as ref:
        waiting = asyncio.create_task(ref.ask(Wait(), timeout=LONG))
        behind = [asyncio.create_task(ref.ask(Add(1), timeout=LONG)) for _ in range(5)]
        await wait_until(lambda: actor.carries()["queued"] == 5)
        async with ref.stream(Inspect(), timeout=LONG) as looks:
            assert [look["queued"] async for look in looks] == [5]
        async with ref.stream(CountTo(3), timeout=LONG) as numbers:
            assert [number async for number in numbers] == [0, 1, 2]
        async with ref.stream(Go(), timeout=LONG) as go:
            assert [each async for each in go] == [True]
        assert await waiting == "went on"
        assert await asyncio.gather(*behind) == [1, 2, 3, 4, 5]


async def test_an_ask_that_is_cancelled_in_the_queue_never_runs(tmp_path: Path) -> None:
    actor = Counter()
    async with alive(tmp_path, actor) as ref:
        waiting = asyncio.create_task(ref.ask(Wait(), timeout=LONG))
        doomed = asyncio.create_task(ref.ask(Add(1000), timeout=LONG))
        await wait_until(lambda: actor.carries()["queued"] == 1)
        doomed.cancel()
        await wait_until(lambda: len(actor._serving.streams) == 1)
        async with ref.stream(Go(), timeout=LONG) as go:
            assert [each async for each in go] == [True]
        assert await waiting == "went on"
        assert await ref.ask(Add(1), timeout=LONG) == 1


async def test_beyond_the_bound_asks_are_refused_and_tells_wait_with_their_sender(
    tmp_path: Path,
) -> None:
    actor = Counter()
    async with alive(tmp_path, actor, mailbox=3) as ref:
        waiting = asyncio.create_task(ref.ask(Wait(), timeout=LONG))
        await wait_until(lambda: actor.happened == ["waiting"])
        asks = [asyncio.create_task(ref.ask(Add(1), timeout=LONG)) for _ in range(5)]
        await wait_until(lambda: sum(each.done() for each in asks) == 2)
        for each in asks[3:]:
            assert isinstance(each.exception(), Overloaded)
        for _ in range(5000):
            await ref.tell(Add(1))
        await asyncio.sleep(TICK)
        assert actor.carries()["queued"] == 3  # what was told stands before the door
        actor.gate.set()
        assert await waiting == "went on"
        assert await asyncio.gather(*asks[:3]) == [1, 2, 3]
        await wait_until(lambda: actor.total == 5003)


async def test_what_tells_carry_counts_towards_the_bytes_that_may_wait(tmp_path: Path) -> None:
    runtime = Runtime(run=str(tmp_path), name="caller", settings=Settings(outbox_bytes=1 << 20))
    try:
        (tmp_path / "deaf.1.d").touch()
        deaf = Ref("deaf", runtime, Found(runtime.address._replace(name="deaf", incarnation=1)))
        for _ in range(70):
            await deaf.tell(Add(1))
            runtime.port.flush()  # a batch each, so that ZeroMQ's own pipe is full
        for _ in range(10):
            await deaf.tell(Add(1, "x" * 100_000))
        await deaf.tell(Add(1, "x" * 100_000))
        with pytest.raises(OutboxFull, match="deaf"):
            await deaf.tell(Add(1))
    finally:
        runtime.close()


class Careless(Actor):
    """A handler that awaits what somebody else cancels."""

    @handles(Go)
    async def go(self, message: Go) -> str:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other
        return "never"

    @handles(Add)
    async def add(self, message: Add) -> int:
        return message.amount


async def test_a_cancelled_await_in_a_tell_is_a_failure_and_no_end(tmp_path: Path) -> None:
    actor = Careless()
    async with alive(tmp_path, actor) as ref:
        await ref.tell(Go())
        assert await ref.ask(Add(7), timeout=LONG) == 7
        with pytest.raises(Cancelled):
            await ref.ask(Go(), timeout=LONG)
        assert await ref.ask(Add(8), timeout=LONG) == 8


async def test_messages_taken_in_before_the_end_do_not_outlive_the_actor(tmp_path: Path) -> None:
    actor = Counter()
    async with alive(tmp_path, actor) as ref:
        asks = [asyncio.create_task(ref.ask(Wait(), timeout=LONG)) for _ in range(3)]
        await wait_until(lambda: actor.carries()["queued"] == 2 and actor.happened)
        actor.shut()
        for each in await asyncio.gather(*asks, return_exceptions=True):
            assert type(each).__name__ == "ConnectionLost"
            assert "actor stops" in str(each)
        assert actor.happened == ["waiting", "wait cancelled"]


class Peek(NamedTuple):
    """Handled by nobody here."""


async def test_what_it_handles_is_said_to_who_asks_for_something_else(tmp_path: Path) -> None:
    async with alive(tmp_path, Meter()) as ref:
        with pytest.raises(Unsupported, match=r"actor handles no 'Peek'; it handles Add, Inspect"):
            await ref.ask(Peek(), timeout=LONG)
        with pytest.raises(Unsupported, match="Seen"):
            async with ref.stream(Seen(), timeout=LONG) as items:
                await anext(items)


async def test_a_tell_that_nobody_handles_is_one_line_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    actor = Counter()
    async with alive(tmp_path, actor) as ref:
        await ref.tell(Unknown())
        await ref.tell(CountTo(3))  # a stream, which a tell cannot take
        await ref.tell(Add(1))
        assert await ref.ask(Add(1), timeout=LONG) == 2
        (first, second) = (each for each in caplog.records if each.levelname != "DEBUG")
        assert first.getMessage().startswith("actor: a tell of caller (pid ")
        assert "actor handles no 'Unknown' by tell; it handles Add, CountTo" in first.getMessage()
        assert "no 'CountTo' by tell" in second.getMessage()
        assert (first.levelname, first.exc_info) == ("WARNING", None)
        assert actor.counters.to_dict()["errors.unsupported"] == 2
