"""What an ingress does at its end, held against stand-ins: whom it sends on, whom it waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.errors import CallHomeError, ConnectionLost, Draining
from actors.ingress import parting
from actors.ingress.parting import SETTLE, Parting
from tests.clock import Clock
from tests.clock import clock as clock
from tests.waiting import LONG, TICK, wait_until

GRACE = 2 * TICK


class Reader:
    """Somebody who follows records or loads."""

    def __init__(self) -> None:
        self.failures: list[CallHomeError] = []

    def fail(self, error: CallHomeError) -> None:
        self.failures.append(error)


class Door:
    """The server of an ingress, with connections of Dynamo's kind."""

    def __init__(self, around: Around) -> None:
        self.leave, self.part = around.leave, around.part
        self._around = around

    @property
    def connections(self) -> int:
        return self._around.dynamos


class Around:
    """All that an ingress has around its end; what is asked of it stands in ``asked``."""

    def __init__(self, *, published: bool = True) -> None:
        self.asked: list[Any] = []
        self.active = published
        self.standing = True
        self.withdrawn = {"away/1"}
        self.connections = 1
        self.dynamos = 0
        self.table: dict[int, Any] = {}
        self.readers = [Reader(), Reader()]
        self.settings = SimpleNamespace(drain_grace=GRACE)

    def __len__(self) -> int:
        return self.connections

    def leave(self) -> None:
        self.asked.append("leave")

    def part(self) -> None:
        self.asked.append("part")

    def fail(self, stream: Any, error: CallHomeError) -> None:
        self.asked.append((stream, error))

    def serves(self, instances: list[int]) -> bool:
        return self.standing

    def was_withdrawn(self, path: str) -> bool:
        return path in self.withdrawn

    def close_withdrawn(self, instances: list[int] | None) -> None:
        self.asked.append(("closed", instances))

    async def settle(self, limit: float) -> None:
        self.asked.append(("settle", limit))

    def parting(self) -> Parting:
        it: Any = self
        records = SimpleNamespace(
            streams=self.readers[:1],
            serves=self.serves,
            was_withdrawn=self.was_withdrawn,
            close_withdrawn=self.close_withdrawn,
        )
        loads = SimpleNamespace(streams=self.readers[1:])
        found: Any = (it, Door(self), it, it, records, loads, it)
        return Parting(*found)


async def test_whoever_is_to_come_has_the_grace_behind_what_is_withdrawn_everywhere() -> None:
    around = Around()
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    waits = asyncio.create_task(around.parting().wait_forgotten([1, 2]))
    await asyncio.sleep(TICK / 2)
    assert around.asked == []  # the node's word of it has not come yet
    around.standing = False
    await wait_until(lambda: around.asked)
    assert around.asked == [("settle", SETTLE)]
    settled = loop.time()
    await waits
    assert around.asked[1:] == [("closed", [1, 2])]
    assert loop.time() - settled >= 0.9 * GRACE
    assert loop.time() - began >= GRACE


async def test_where_nobody_else_is_in_question_nothing_is_waited_for() -> None:
    unpublished, settling = Around(published=False), Around()
    await unpublished.parting().wait_forgotten([1])
    assert unpublished.asked == []
    settling.standing = False
    settling.settings.drain_grace = 3600.0
    await settling.parting().wait_forgotten([])  # of no engine in particular
    assert settling.asked == [("settle", SETTLE)]


async def test_who_follows_us_is_sent_to_the_successor_once_and_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(parting, "_WORD", LONG)
    monkeypatch.setattr(parting, "_GONE", 3 * LONG)
    around = Around()
    ends = around.parting()
    assert ends.under_way() == 0
    ends.refuse("", True)
    ends.refuse("", True)
    assert around.asked == ["leave", "leave"]  # the listener and the connections, once
    for reader in around.readers:
        (error,) = reader.failures
        assert isinstance(error, Draining)
    assert ends.succeeded
    assert ends.refusal("served/1") is None  # nothing is refused
    assert ends.under_way() == 1  # what they had asked for may be on its way still
    assert "part" not in around.asked
    clock.turn(LONG)
    assert ends.under_way() == 1  # one that does not go
    assert "part" in around.asked
    around.connections = 0
    assert ends.under_way() == 0
    around.dynamos = 1  # a connection of Dynamo's kind, which is no node of ours
    assert ends.under_way() == 1
    around.dynamos = 0
    around.connections = 1
    clock.turn(2 * LONG)
    assert ends.under_way() == 0  # it is waited for no longer


async def test_what_is_refused_and_what_is_cut_says_why() -> None:
    around = Around()
    ends = around.parting()
    assert "its engine is to stop" in str(ends.refusal("away/1"))
    assert ends.refusal("what/never/was") is None
    ends.refuse("it is drained", False)
    assert "it is drained" in str(ends.refusal("what/never/was"))
    assert around.asked == [("closed", None)]
    stream = SimpleNamespace(record=SimpleNamespace(endpoint="t.one.go"))
    around.table[1] = around.table[2] = stream
    assert ends.under_way() == 2
    ends.cut("the limit of 3 s is over")
    assert len(around.asked) == 3
    cut, error = around.asked[-1]
    assert cut is stream
    assert isinstance(error, ConnectionLost)
    assert "t.one.go: the limit of 3 s is over" in str(error)
    ends.refuse("", False)
    assert ends.refusal("what/never/was") is None
