"""References that are used in ``on_start``, to actors that start beside, behind, or in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from actors import Actor, ActorSpec, Cluster, NodeSpec, Ref, Settings, handles
from actors.errors import SpawnError
from tests.waiting import LONG


class Add(NamedTuple):
    amount: int


class Sum(NamedTuple):
    pass


class Count(NamedTuple):
    to: int


class Slow(Actor):
    """Is there behind all who want something of it."""

    async def on_start(self) -> None:
        self.total = 0
        await asyncio.sleep(0.5)

    @handles(Add)
    async def add(self, message: Add) -> None:
        self.total += message.amount

    @handles(Sum)
    async def sum(self, message: Sum) -> int:
        return self.total

    @handles(Count)
    async def count(self, message: Count) -> AsyncIterator[int]:
        for number in range(message.to):
            yield number


class Eager(Actor):
    """Wants something of another as it starts, in one of three ways."""

    def __init__(self, way: str, of: Ref) -> None:
        self._way = way
        self._of = of
        self._got: Any = None

    async def on_start(self) -> None:
        if self._way == "tell":
            await self._of.tell(Add(5))
        elif self._way == "ask":
            self._got = await self._of.ask(Sum())
        else:
            self._got = [each async for each in self.ref(self._of.name).stream(Count(3))]

    @handles(Sum)
    async def sum(self, message: Sum) -> Any:
        return self._got


async def test_a_reference_in_on_start_waits_for_an_actor_that_is_still_starting() -> None:
    actors = [
        ActorSpec(way, actor=Eager, args={"way": way, "of": Ref("slow")})
        for way in ("tell", "ask", "stream")
    ]
    async with Cluster(NodeSpec(actors=[*actors, ActorSpec("slow", actor=Slow)])) as cluster:
        assert await cluster.ref("ask").ask(Sum(), timeout=LONG) in (0, 5)
        assert await cluster.ref("stream").ask(Sum(), timeout=LONG) == [0, 1, 2]
        assert await cluster.ref("slow").ask(Sum(), timeout=LONG) == 5


def eager(name: str, of: str) -> ActorSpec:
    return ActorSpec(name, actor=Eager, args={"way": "ask", "of": Ref(of)})


@pytest.mark.parametrize(
    ("actors", "limit", "words"),
    [
        # On_start may wait for others for four fifths of it.
        ([eager("a", "b"), eager("b", "a")], 8.0, "in turn, neither can start"),
        ([eager("a", "a")], LONG, "on_start calls its methods"),
        (
            [eager("a", "near"), ActorSpec("near", actor=Slow, place="here")],
            LONG,
            "starts after 'a'",
        ),
        ([eager("a", "nobody")], LONG, "no actor 'nobody' is alive"),
    ],
)
async def test_what_cannot_come_is_said(actors: list[ActorSpec], limit: float, words: str) -> None:
    settings = Settings(start_timeout=limit)
    with pytest.raises(SpawnError, match=words):
        async with Cluster(NodeSpec(actors=actors, settings=settings)):
            pass
