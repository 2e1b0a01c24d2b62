"""A rolling restart under load, and what the callers notice of it:
``python -m tests.e2e.rolling [--rate 500] [--seconds 10] [--nodes 2] [--streams 10]``.

One node: four workers and two routers, called from that node. ``--nodes 2``: two workers, a router
and an ingress on each of two nodes, called from a third, which finds them as its peers; both are
restarted, one after the other. It prints the timeline, failures by kind and latencies, and ends
with 1 if a request has failed or a stream was not whole. ``tests.e2e.test_rolling`` does the same
at a lower rate.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.errors import CallHomeError
from actors.notices import RestartActors
from tests.e2e.process_engines import Counts
from tests.ports import free_address

ECHO: Final = "t.echo.go"
COUNTS: Final = "t.counts.go"
#: Items of a stream that runs beside the calls, and the pause between two.
ITEMS, PAUSE = 10, 0.05
#: Seconds for one call, and for streams when an actor is to end.
_LIMIT: Final = 60.0


@dataclass
class Seen:
    """What the callers have met."""

    times: list[float] = field(default_factory=list)
    streams: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def quantile(self, part: float) -> float:
        """Milliseconds below which so large a part of the calls stayed."""
        times = sorted(self.times) or [0.0]
        return round(1000 * times[min(len(times) - 1, int(part * len(times)))], 2)

    def told(self) -> str:
        """In two lines."""
        kinds = ", ".join(f"{count} x {kind}" for kind, count in self.failures.most_common())
        return (
            f"{len(self.times)} calls, {self.streams} streams of {ITEMS} items; "
            f"{sum(self.failures.values())} failures {kinds and f'({kinds})'}\n"
            f"calls took p50 {self.quantile(0.5)} ms, p99 {self.quantile(0.99)} ms, "
            f"at most {self.quantile(1.0)} ms"
        )


class Load:
    """Calls at a fixed rate, whether the ones before are answered or not, and streams beside."""

    def __init__(self, client: Client, rate: float, streams: int) -> None:
        self._client = client
        self._rate = rate
        self._streams = streams
        self._stopping = False
        self.seen = Seen()

    async def run(self) -> None:
        """Until ``stop``, and then to the end of what is under way."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._streams):
                tasks.create_task(self._read(number))
            began, sent = time.monotonic(), 0
            while not self._stopping:
                tasks.create_task(self._call(sent))
                sent += 1
                await asyncio.sleep(max(0.0, began + sent / self._rate - time.monotonic()))

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping = True

    async def _call(self, number: int) -> None:
        began = time.monotonic()
        try:
            answer = await self._client.call(ECHO, number, timeout=_LIMIT)
        except CallHomeError as error:
            self._failed(error)
        else:
            self.seen.times.append(time.monotonic() - began)
            if answer != number:
                self.seen.failures["another answer"] += 1

    async def _read(self, number: int) -> None:
        request = {"items": ITEMS, "pause": PAUSE}
        while not self._stopping:
            got = []
            try:
                async with self._client.stream(COUNTS, request, timeout=_LIMIT) as items:
                    async for item in items:
                        got.append(item)
            except CallHomeError as error:
                self._failed(error)
            else:
                self.seen.streams += 1
                if got != list(range(ITEMS)):
                    self.seen.failures["a stream that is not whole"] += 1

    def _failed(self, error: CallHomeError) -> None:
        self.seen.failures[f"{error.code}: {error.message[:200]}"] += 1


def nodes(count: int, settings: Settings) -> list[NodeSpec]:
    """The nodes; callers are on the first one."""
    replicas = 4 if count == 1 else 2
    engines = [
        EngineSpec(ECHO, "tests.e2e.bus_engines:echo", replicas=replicas, capacity=256),
        EngineSpec(COUNTS, f"{Counts.__module__}:Counts", capacity=256),
    ]
    if count == 1:
        routers = [RouterSpec(name="router-0"), RouterSpec(name="router-1")]
        return [NodeSpec(name="a", engines=engines, routers=routers, settings=settings)]
    doors = [free_address() for _ in range(count)]
    served = [
        NodeSpec(name=name, engines=engines, listen=door, settings=settings)
        for name, door in zip("abcdefgh", doors, strict=False)
    ]
    return [NodeSpec(name="callers", peers=doors, settings=settings), *served]


async def roll(
    cluster: Cluster, names: Sequence[str | None], actors: Sequence[str] = ()
) -> AsyncIterator[dict[str, Any]]:
    """Restart what is on these nodes, one after the other: each step, with its node."""
    for name in names:
        message = RestartActors(list(actors), rolling=True, limit=_LIMIT)
        async with cluster.ref("node", name).stream(message) as steps:
            async for step in steps:
                yield {"node": name or "a", **step}


async def run(
    say: Callable[[str], None], *, rate: float, seconds: float, count: int, streams: int
) -> Seen:
    """Load for ``seconds`` before and behind the restart of everything; what the callers met."""
    specs = nodes(count, Settings.load(start_timeout=60.0))
    names = [spec.name for spec in specs if spec.engines]
    async with Cluster(specs) as cluster, cluster.client() as client:
        load = Load(client, rate, streams)
        running = asyncio.create_task(load.run())
        try:
            await asyncio.sleep(seconds)
            say(f"before: {load.seen.told()}")
            load.seen, before = Seen(), load.seen
            began = time.monotonic()
            async for step in roll(cluster, names):
                at = time.monotonic() - began
                say(f"{at:9.3f} s  {step['node']}  {step['step']:9}  {step['text']}")
                if step["step"] == "done" and not step["ok"]:
                    load.seen.failures[step["error"]] += 1
            say(f"meanwhile: {load.seen.told()}")
            await asyncio.sleep(seconds)
        finally:
            load.stop()
            await running
    load.seen.failures += before.failures
    return load.seen


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="calls per second (500)")
    parser.add_argument("--seconds", type=float, default=3.0, help="before and behind (3)")
    parser.add_argument("--nodes", type=int, default=1, help="1, or several called from another")
    parser.add_argument("--streams", type=int, default=10, help="that run beside the calls (10)")
    options = parser.parse_args()
    work = run(
        _say,
        rate=options.rate,
        seconds=options.seconds,
        count=options.nodes,
        streams=options.streams,
    )
    seen = asyncio.run(work)
    _say(f"in all: {seen.told()}")
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
