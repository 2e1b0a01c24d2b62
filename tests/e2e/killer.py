"""Token streams under a killer that ends one worker after the other: every stream is complete.

``python -m tests.e2e.killer`` runs 1,000 streams of 200 items with one worker killed a second, and
says how often they moved; ``--help`` shows the rest. A stream that is hit once more than its
``migration_limit`` allows (where the machine is slow, so that streams last longer) ends as it must:
that is told apart from one that is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any, NamedTuple

from actors import Client, EngineSpec, NodeSpec
from actors.errors import CallHomeError, PeerLost
from tests.e2e.standing import ROADS, cluster_on
from tests.e2e.watching import kill
from tests.waiting import TICK, wait_until

TOKENS = "t.tokens.go"


class Result(NamedTuple):
    """What has come of all streams; ``wrong`` has a line for each that was not as it must be,
    ``spent`` one for each whose limit was used up, all items before that in order.
    """

    wrong: list[str]
    spent: list[str]
    kills: int
    migrated: int
    retried: int
    seconds: float


class Killer:
    """Kills the oldest of the workers again and again, but never the only one."""

    def __init__(self, client: Client, every: float, most: int) -> None:
        self.kills = 0
        self._client = client
        self._every = every
        self._most = most
        self._killed: set[int] = set()

    def workers(self) -> list[int]:
        """The processes that serve now, the oldest first."""
        records = [each for each in self._client.records() if each.endpoint == TOKENS]
        records.sort(key=lambda each: each.address.started)
        return [each.address.pid for each in records if each.address.pid not in self._killed]

    async def run(self) -> None:
        """Kill until that was often enough."""
        while self.kills < self._most:
            await asyncio.sleep(self._every)
            found = self.workers()
            if len(found) > 1:
                self._killed.add(found[0])
                kill(found[0])
                self.kills += 1


async def killed_streams(
    client: Client,
    killer: Killer,
    *,
    streams: int,
    at_once: int,
    items: int,
    pace: float,
    migrations: int = 3,
    hold: str = "",
) -> Result:
    """So many streams, ``at_once`` of them at a time, ``pace`` seconds between two items, while the
    killer is at work. Each tenth waits in its middle until its worker is killed, where there is a
    folder ``hold`` for files that tell.
    """
    begun, places = time.monotonic(), asyncio.Semaphore(at_once)

    wrong: list[str] = []
    spent: list[str] = []

    async def one(number: int) -> None:
        async with places:
            request = {"token_ids": list(range(number % 50)), "max_tokens": items, "pace": pace}
            if hold and not number % 10:
                request["holds"] = [[number % 50 + items // 2, f"{hold}/{number}"]]
            text, excused = await _stream(client, number, request, migrations)
        if text:
            (spent if excused else wrong).append(text)

    killing = asyncio.create_task(killer.run())
    await asyncio.gather(*map(one, range(streams)))
    seconds = time.monotonic() - begun
    killing.cancel()
    await asyncio.wait({killing})
    counts = client.statistics()
    migrated, retried = counts["migrated.ongoing_request"], counts["retried"]
    return Result(wrong, spent, killer.kills, migrated, retried, seconds)


async def _stream(
    client: Client, number: int, request: dict[str, Any], migrations: int
) -> tuple[str, bool]:
    """Read one stream; what was wrong with it, if anything, and whether it had used up its limit
    before: the worker that was one too many died, too.
    """
    prompt = len(request["token_ids"])
    due = list(range(prompt, prompt + request["max_tokens"]))
    seen: list[Any] = []
    answers = client.stream(TOKENS, request, migration_limit=migrations, timeout=120.0)
    try:
        async with answers:
            async for item in answers:
                seen += item["token_ids"]
    except CallHomeError as error:
        text = f"stream {number} ended after {len(seen)} items: {type(error).__name__}: {error}"
        died = isinstance(error, PeerLost) and answers.attempts > migrations
        return text, died and seen == due[: len(seen)]
    return "" if seen == due else f"stream {number} brought {len(seen)} items: {seen[:300]}", False


async def _run(given: argparse.Namespace) -> Result:
    """The long form, in a cluster of its own."""
    spec = EngineSpec(
        TOKENS, "tests.e2e.moving_engines:Tokens", replicas=given.workers, capacity=given.at_once
    )
    async with (
        cluster_on(NodeSpec(engines=[spec]), given.road) as cluster,
        cluster.client() as client,
    ):
        killer = Killer(client, given.every, 1 << 30)
        await wait_until(lambda: len(killer.workers()) == given.workers, 100 * TICK, "all workers")
        return await killed_streams(
            client, killer,
            streams=given.streams, at_once=given.at_once, items=given.items, pace=given.pace,
            migrations=given.migration_limit,
        )  # fmt: skip


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.killer", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.002, help="seconds between two items")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills")
    parser.add_argument("--migration-limit", type=int, default=3)
    parser.add_argument("--road", choices=ROADS, default="node", help="workers here or elsewhere")
    given = parser.parse_args()
    result = asyncio.run(_run(given))
    for line in [*result.wrong[:20], *result.spent[:3]]:
        print(line)  # noqa: T201
    print(  # noqa: T201
        f"{given.streams} streams of {given.items} items in {result.seconds:.1f} s: "
        f"{result.kills} workers killed, {result.migrated} times continued elsewhere, "
        f"{result.retried} times sent again; {len(result.spent)} streams had used up their "
        f"migration_limit ({given.migration_limit}) when their worker died; "
        f"{len(result.wrong)} are wrong"
    )
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
