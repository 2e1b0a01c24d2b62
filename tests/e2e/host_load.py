"""Load from and to every host, and what became of each request: for ``tests.e2e.hosts``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from actors import Client
from actors.errors import CallHomeError, ConnectionLost
from tests.hosts.fleet import BACK, THERE, Fleet
from tests.waiting import LONG, wait_until

#: Limit of one request, in seconds: longer than it takes to see that a cable is cut.
LIMIT: Final = LONG
MIB: Final = 1 << 20


class Broken(Exception):
    """A stream that is not what was sent, or ended as if it were whole and is not."""


async def where(client: Client, endpoint: str = THERE) -> dict[str, int]:
    """The instances of an endpoint that a client's router knows, by their node's address; those of
    its own node are at "".
    """
    found = await client.workers(endpoint)
    if len({each.where for each in found}) != len(found):
        raise Broken(f"somebody is known twice: {found}")
    return {each.where.partition(":")[0]: each.instance for each in found}


async def wait_known(fleet: Fleet, names: Sequence[str], within: float, what: str) -> float:
    """Wait until each of the named hosts knows all of them and nobody else; how long it took."""
    began = time.monotonic()
    wanted = {fleet[name].host.address for name in names}

    async def known() -> bool:
        for name in names:
            own = fleet[name].host.address
            async with fleet[name].client() as client:
                for endpoint in (THERE, BACK):
                    found = set(await where(client, endpoint))
                    if found - {""} != wanted - {own} or "" not in found:
                        return False
        return True

    await wait_until(known, within, what)
    return time.monotonic() - began


async def counted(client: Client, request: dict[str, Any], instance: int = 0) -> int:
    """The items of a stream of ``There``, all that there should be and in order."""
    due = 0
    async with client.stream(THERE, request, instance=instance, timeout=None) as items:
        async for number, value in items:
            if number == "end":
                if value != due:
                    raise Broken(f"{due} items came of {value}")
                return due
            if number != due or not (value == number % 251).all():
                raise Broken(f"item {number} came where {due} was due, or is not whole")
            due += 1
    raise Broken(f"it ended as if it were whole after {due} items")


async def exchanged(client: Client, count: int, size: int, instance: int) -> None:
    """``count`` arrays of ``size`` bytes there and back."""
    async with client.open(BACK, instance=instance, timeout=LIMIT) as chat:

        async def say() -> None:
            for number in range(count):
                await chat.send(np.full(size, number % 251, "u1"))
            await chat.end()

        saying = asyncio.create_task(say())
        found = [item async for item in chat]
        await saying
    if not found or not isinstance(found[-1], list):
        raise Broken(f"a stream each way ended as if it were whole after {len(found)} items")
    if found.pop() != ["end", count] or len(found) != count:
        raise Broken(f"{count} items went there, {len(found)} came back")
    for number, item in enumerate(found):
        if item.shape != (size,) or not (item == number % 251).all():
            raise Broken(f"item {number} of a stream each way is not the one that was sent")


async def reached(client: Client, instance: int) -> Any:
    """What the instance answers. A dial that had begun while a cable was cut may still fail after
    the mend, and with it whoever waits for it by then, of whom nothing was sent: they ask again.
    """
    until = time.monotonic() + LIMIT
    while True:
        try:
            return await client.call(THERE, {"n": 0}, instance=instance, timeout=LIMIT)
        except ConnectionLost as error:
            if error.details.get("sent") != "no" or time.monotonic() > until:
                raise


async def each_to_each(fleet: Fleet, names: Sequence[str], *, items: int, frames: int) -> int:
    """Streams of all shapes from every host to every other one, at once, whole and in order; how
    many there were.
    """

    async def talk(source: str, target: str) -> None:
        address = fleet[target].host.address
        async with fleet[source].client() as client:
            there, back = [(await where(client, each))[address] for each in (THERE, BACK)]
            served = await reached(client, there)
            if served[0] != target:
                raise Broken(f"{target} was asked, and {served} has answered")
            await asyncio.gather(
                counted(client, {"n": items}, there),
                counted(client, {"n": frames, "size": MIB}, there),
                exchanged(client, items, 1, back),
                exchanged(client, frames, MIB, back),
            )

    pairs = [(one, other) for one in names for other in names if one != other]
    await asyncio.gather(*(talk(*pair) for pair in pairs))
    return 5 * len(pairs)


@dataclass
class Call:
    """One request of the load: when, from which host, and who answered or why not."""

    began: float
    ended: float
    source: str
    by: str
    error: str


@dataclass
class Load:
    """Calls at a steady pace from each of some hosts, to whomever their routers choose.

    A call that a cut leaves open is sent elsewhere, for nothing is done by it twice that matters.
    """

    fleet: Fleet
    names: Sequence[str]
    rate: float
    migrations: int = 3
    calls: list[Call] = field(default_factory=list)

    async def __aenter__(self) -> Load:
        self._stopping = asyncio.Event()
        self._sources = [asyncio.create_task(self._source(name)) for name in self.names]
        return self

    async def __aexit__(self, *_: object) -> None:
        """The last calls end, in time."""
        self._stopping.set()
        await asyncio.gather(*self._sources)

    async def _source(self, name: str) -> None:
        open_calls = set()
        async with self.fleet[name].client() as client:
            due = time.monotonic()
            while not self._stopping.is_set():
                call = asyncio.create_task(self._call(client, name))
                open_calls.add(call)
                call.add_done_callback(open_calls.discard)
                due = max(due + 1 / self.rate, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
            await asyncio.gather(*open_calls)

    async def _call(self, client: Client, name: str) -> None:
        began, by, error = time.monotonic(), "", ""
        try:
            by, _ = await client.call(
                THERE, {"n": 0}, timeout=LIMIT, migration_limit=self.migrations
            )
        except CallHomeError as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.calls.append(Call(began, time.monotonic(), name, by, error))

    def failed(self, since: float = 0.0) -> list[Call]:
        """Calls that have failed, of those that began ``since``."""
        return [each for each in self.calls if each.error and each.began >= since]

    def slow(self, limit: float, since: float = 0.0) -> list[Call]:
        """Calls that took longer than ``limit``, of those that began ``since``."""
        return [
            each for each in self.calls if each.ended - each.began > limit and each.began >= since
        ]

    def answers(self, since: float = 0.0) -> Counter[tuple[str, str]]:
        """How many were answered, by source and who has answered."""
        return Counter(
            (each.source, each.by) for each in self.calls if each.by and each.began >= since
        )


@dataclass
class Talks:
    """Long streams between hosts, ``count`` of each pair: how they have ended tells ``ends``."""

    fleet: Fleet
    pairs: Sequence[tuple[str, str]]
    items: int
    pause: float
    count: int = 2

    async def __aenter__(self) -> Talks:
        self.begun: Counter[tuple[str, str]] = Counter()
        self._talks = {
            asyncio.create_task(self._talk(*pair)): pair
            for pair in self.pairs
            for _ in range(self.count)
        }
        await wait_until(lambda: sum(self.begun.values()) == len(self._talks), LIMIT, "all talk")
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._talks:
            each.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, source: str, target: str) -> str:
        async with self.fleet[source].client() as client:
            instance = (await where(client))[self.fleet[target].host.address]
            self.begun[source, target] += 1
            try:
                await counted(client, {"n": self.items, "pause": self.pause}, instance)
            except CallHomeError as error:
                return f"{type(error).__name__}: {error}"
            return ""

    def waiting(self) -> list[tuple[str, str]]:
        """The pairs of the streams that have not ended yet."""
        return [pair for task, pair in self._talks.items() if not task.done()]

    async def ends(self, within: float) -> Iterator[tuple[tuple[str, str], str]]:
        """Each pair and how its stream has ended: "" whole, else with which error. Raises Broken
        for one that was neither.
        """
        async with asyncio.timeout(within):
            await asyncio.gather(*self._talks)
        return iter([(pair, task.result()) for task, pair in self._talks.items()])
