"""Streams that are continued at another worker: no item twice, none missing; what cannot go on.

Most of what this costs is the starting of processes: checks that can share a cluster do, and all
their workers die at one moment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, Settings
from actors.errors import (
    Cancelled,
    EngineError,
    LocalProtocolError,
    PeerLost,
)
from tests.e2e.killer import Killer, killed_streams
from tests.e2e.standing import cluster_on
from tests.e2e.test_retry import victim
from tests.e2e.watching import inspect, kill
from tests.waiting import LONG, wait_until

ENGINES = "tests.e2e.moving_engines"
TOKENS, PLAIN, TALK, VIA = "t.tokens.go", "t.plain.go", "t.talk.go", "t.via.go"


def node(shut: Path | None = None, **replicas: int) -> NodeSpec:
    """So many workers of each class; ``shut``: of those that give tokens none starts meanwhile."""
    engines = [
        EngineSpec(
            f"t.{name.lower()}.go",
            f"{ENGINES}:{name}",
            replicas=count,
            args={"shut": str(shut)} if shut else {},
        )
        for name, count in replicas.items()
    ]
    return NodeSpec(name="a", engines=engines)


async def ready(client: Client, endpoint: str, count: int = 2) -> None:
    """Wait until the router knows so many workers (again)."""

    async def known() -> bool:
        return len(await client.workers(endpoint)) == count

    await wait_until(known, LONG, f"{count} workers")


class Fall:
    """The moment at which all workers are killed: when so many streams hold at one. While there is
    a file ``shut`` none comes back: it is there from then on.
    """

    def __init__(self, streams: int, shut: Path | None = None) -> None:
        self._missing = streams
        self.shut = shut
        self._pids: set[int] = set()
        self._fallen = asyncio.Event()

    async def at(self, place: Path) -> None:
        """A stream holds there; wait for the others, and until the workers are dead."""
        self._pids.add(await victim(place))
        self._missing -= 1
        if not self._missing:
            if self.shut:
                self.shut.touch()
            for pid in self._pids:
                kill(pid)
            self._fallen.set()
        await asyncio.wait_for(self._fallen.wait(), LONG)


async def moved(client: Client, place: Path, request: dict[str, Any], fall: Fall) -> None:
    """One token stream whose worker dies in front of token 20."""
    request |= {"hold_at": 20, "hold": str(place), "pace": 0.001}
    pids, values = set(), []
    async with client.stream(TOKENS, request, timeout=60.0, migration_limit=9) as items:
        request["token_ids"] = "what the caller does with his request afterwards is his business"
        async for item in items:
            values += item.pop("token_ids")  # and so with the items
            pids.add(item.pop("pid"))
            if item:
                assert int(item["frame"][-1]) == values[-1]
            if values[-1] == 19:
                await fall.at(place)
        assert values == list(range(3, 43))
        assert 2 == len(pids) <= items.attempts
        assert items.received == 40


async def limited(cluster: Cluster, client: Client, folder: Path, fall: Fall) -> None:
    """Items over the bytes that are kept, a stream that is complete, a limit of none."""
    settings = Settings.load(migration_limit=3, migration_bytes=65_536)
    request = {"token_ids": [1], "max_tokens": 9, "frames": True, "hold_at": 4}
    ending = {"token_ids": [1], "max_tokens": 3, "hold_at": "end"}
    async with (
        cluster.client(settings=settings) as other,
        other.stream(TOKENS, request | {"hold": str(folder / "full")}) as full,
        # All its tokens have come when the worker dies: the stream is complete.
        client.stream(TOKENS, ending | {"hold": str(folder / "end")}, migration_limit=3) as whole,
        client.stream(TOKENS, ending | {"hold": str(folder / "none")}) as none,
    ):
        for items in (full, whole, none):
            assert [(await anext(items))["token_ids"] for _ in range(3)] == [[1], [2], [3]]
        await asyncio.gather(*(fall.at(folder / name) for name in ("full", "end", "none")))
        with pytest.raises(PeerLost, match="over migration_bytes"):
            await anext(full)
        assert [item async for item in whole] == []
        assert whole.attempts == 1
        with pytest.raises(PeerLost):
            await anext(none)


async def cancelled(cluster: Cluster, folder: Path, fall: Fall) -> None:
    """Conformance 40: a cancel in the middle of a migration."""
    async with cluster.client() as client:
        streams, readers = [], []
        for how in ("stop", "kill", "leave"):
            request = {"token_ids": [1], "max_tokens": 9, "hold_at": 3, "hold": str(folder / how)}
            items = client.stream(TOKENS, request, migration_limit=3)
            assert [(await anext(items))["token_ids"] for _ in range(2)] == [[1], [2]]
            streams.append(items)
            readers.append(asyncio.create_task(anext(items)))
        await asyncio.gather(*(fall.at(folder / how) for how in ("stop", "kill", "leave")))
        between = client.runtime.home.between
        await wait_until(lambda: len(between.contexts()) == 3, what="they pause")
        streams[0].stop("enough")
        streams[1].kill("enough")
        await streams[2].aclose()
        for items, reading in zip(streams, readers, strict=True):
            with pytest.raises(Cancelled):
                await reading
            # There was nobody at the second, or one whose death was not known yet.
            assert 2 <= items.attempts <= 3
            await items.aclose()
        assert not between.contexts()
        assert fall.shut is not None
        fall.shut.unlink()


async def test_conformance_39_and_40_token_streams_go_on_where_they_were(tmp_path: Path) -> None:
    """Lists, tuples and arrays of ids; limits at the top and nested; frames among the items."""
    kinds: dict[str, Any] = {
        "list": {"token_ids": [7, 8, 9], "max_tokens": 40, "min_tokens": 5},
        "array": {"token_ids": np.array([7, 8, 9], "int32"), "max_tokens": 40},
        "nested": {"token_ids": (7, 8, 9), "stop_conditions": {"max_tokens": 40}},
        "frames": {"token_ids": [7, 8, 9], "max_tokens": 40, "frames": True},
    }
    shut = tmp_path / "shut"
    async with Cluster(node(shut, Tokens=2)) as cluster, cluster.client() as client:
        await ready(client, TOKENS)
        fall = Fall(len(kinds) + 3 + 3, shut)
        async with asyncio.TaskGroup() as checks:
            for name, request in kinds.items():
                checks.create_task(moved(client, tmp_path / name, request, fall))
            checks.create_task(limited(cluster, client, tmp_path, fall))
            checks.create_task(cancelled(cluster, tmp_path, fall))
        assert client.statistics()["migrated.ongoing_request"] >= len(kinds)
        await wait_until(lambda: client.runtime.memory.statistics().slots == 0, what="no frame")

        await ready(client, TOKENS)
        async with cluster.client() as other:
            # The long form is ``python -m tests.e2e.killer``: 1,000 streams of 200 items.
            killer = Killer(other, 0.2, 2)
            result = await killed_streams(
                other, killer, streams=40, at_once=40, items=40, pace=0.02, hold=str(tmp_path)
            )
        assert result.wrong == result.spent == []
        assert result.kills >= 1
        assert result.migrated >= 4, "those that waited for it"


async def test_conformance_39_streams_from_another_node_outlive_worker_router_and_ingress(
    tmp_path: Path,
) -> None:
    async with cluster_on(node(Tokens=2), "nodes") as cluster, cluster.client() as client:
        await ready(client, TOKENS)
        fall = Fall(2)
        async with asyncio.TaskGroup() as checks:
            for name, frames in (("list", False), ("frames", True)):
                request = {"token_ids": [7, 8, 9], "max_tokens": 40, "frames": frames}
                checks.create_task(moved(client, tmp_path / name, request, fall))
        before = client.statistics()["migrated.ongoing_request"]
        assert before >= 2
        await wait_until(lambda: client.runtime.memory.statistics().slots == 0, what="no frame")

        await ready(client, TOKENS)
        # What has come while the test stands still is no stream that could be broken.
        holds = [[number, str(tmp_path / f"{number}")] for number in (21, 41)]
        request = {"token_ids": [1], "max_tokens": 60, "pace": 0.002, "holds": holds}
        values = []
        async with client.stream(TOKENS, request, timeout=60.0, migration_limit=3) as items:
            async for item in items:
                values += item["token_ids"]
                if len(values) in (20, 40):
                    # The router of our node, then the ingress of theirs.
                    kill(client.ref("router" if len(values) == 20 else "ingress").address.pid)
            assert values == list(range(1, 61))
        assert client.statistics()["migrated.ongoing_request"] == before + 2


async def users(client: Client, folder: Path, fall: Fall) -> None:
    """Resume functions, good ones and others."""

    def resume(request: dict[str, Any], delivered: list[int]) -> dict[str, Any] | None:
        assert request["first"] == 0
        assert delivered == list(range(len(delivered)))
        return {**request, "first": len(delivered)}

    def raises(request: Any, delivered: list[Any]) -> Any:
        raise KeyError("oh")

    def rubbish(request: Any, delivered: list[Any]) -> Any:
        return object()

    def complete(request: Any, delivered: list[Any]) -> Any:
        return None

    streams, holding = {}, []
    for function in (resume, complete, raises, rubbish):
        place = folder / function.__name__
        request = {"first": 0, "last": 9, "hold_at": 5, "hold": str(place)}
        items = client.stream(PLAIN, request, migration_limit=3, resume=function)
        assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
        streams[function.__name__] = items
        holding.append(place)
    await asyncio.gather(*map(fall.at, holding))  # nobody is there for a while
    assert [item async for item in streams["complete"]] == []
    with pytest.raises(LocalProtocolError, match=r"function .*raises failed: KeyError") as told:
        await anext(streams["raises"])
    assert "SIGKILL" in str(told.value)
    assert isinstance(told.value.__cause__, KeyError)
    with pytest.raises(LocalProtocolError, match="rubbish failed: EncodeError"):
        await anext(streams["rubbish"])
    assert [item async for item in streams["resume"]] == [5, 6, 7, 8]


async def handlers(client: Client, folder: Path, fall: Fall) -> None:
    """A handler's error at the second worker is the stream's; engines that call others may have
    their streams continued, too.
    """
    request = {"first": 0, "last": 9, "hold_at": 2}
    function = lambda request, delivered: {"first": "x"}  # noqa: E731
    async with (
        client.stream(
            PLAIN, request | {"hold": str(folder / "h")}, migration_limit=3, resume=function
        ) as failing,
        client.stream(VIA, request | {"hold": str(folder / "via")}) as called,
    ):
        for items in (failing, called):
            assert [await anext(items), await anext(items)] == [0, 1]
        await asyncio.gather(fall.at(folder / "h"), fall.at(folder / "via"))
        with pytest.raises(EngineError, match="last"):
            await anext(failing)
        assert failing.attempts >= 2
        *numbers, (attempts, seven) = [item async for item in called]
        assert numbers == [2, 3, 4, 5, 6, 7, 8]
        assert attempts >= 2
        assert seven == 7


async def hopeless(cluster: Cluster, folder: Path, fall: Fall) -> None:
    """What cannot be continued: told at once where it was asked for. What the settings say for all
    streams holds for those that can.
    """
    async with cluster.client(settings=Settings.load(migration_limit=2)) as client:
        with pytest.raises(LocalProtocolError, match="give resume="):
            client.stream(PLAIN, {"first": 0, "last": 9}, migration_limit=1)
        with pytest.raises(LocalProtocolError, match="give replay="):
            client.open(TALK, migration_limit=1)
        with pytest.raises(LocalProtocolError, match="functions"):
            client.stream(PLAIN, 1, migration_limit=1, resume="x")  # type: ignore[arg-type]
        request = {"first": 0, "last": 9, "hold_at": 5, "hold": str(folder / "hopeless")}
        async with client.stream(PLAIN, request) as items:
            assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
            await fall.at(folder / "hopeless")
            with pytest.raises(PeerLost, match="after 5 items"):
                await anext(items)
        async with client.open(TALK) as talk:
            await talk.send("a")
            assert await talk.recv() == [1, "a"]


async def test_what_users_say_about_their_streams_and_what_cannot_be_continued(
    tmp_path: Path,
) -> None:
    spec = node(Plain=2, Via=1, Talk=1)
    async with Cluster(spec) as cluster, cluster.client() as client:
        await ready(client, PLAIN)
        fall = Fall(4 + 2 + 1)
        async with asyncio.TaskGroup() as checks:
            checks.create_task(users(client, tmp_path, fall))
            checks.create_task(handlers(client, tmp_path, fall))
            checks.create_task(hopeless(cluster, tmp_path, fall))


async def test_a_stream_each_way_goes_on_with_what_its_replay_says(tmp_path: Path) -> None:
    told: list[tuple[list[Any], list[Any]]] = []

    def replay(sent: list[Any], received: list[Any]) -> Any:
        told.append((sent, received))
        return [{"hold": str(place), "hold_at": 3}, *sent[1:]]

    async with Cluster(node(Talk=3)) as cluster, cluster.client() as client:
        await ready(client, TALK, 3)
        place = tmp_path / "both"
        array = np.ones(50_000, "u1")
        async with client.open(TALK, migration_limit=2, replay=replay) as talk:
            await talk.send({"hold": str(place), "hold_at": 3})
            for number, line in enumerate(["a", array, "c"]):
                await talk.send(line)
                assert await talk.recv() == [number + 1, line if isinstance(line, str) else 50_000]
            await talk.send("d")
            pid = await victim(place)
            kill(pid)
            # The sender may be the first to meet the break, and says more meanwhile.
            for number in range(300):
                await talk.send(f"n{number}")
            await talk.end()
            with pytest.raises(LocalProtocolError, match="after end"):
                await talk.send("late")
            answers = [item async for item in talk]
            assert talk.attempts >= 2
        # The new worker has heard all from the start, and answers it all.
        assert [line for _, line in answers[:4]] == ["a", 50_000, "c", "d"]
        assert [line for _, line in answers[4:-1]] == [f"n{number}" for number in range(300)]
        assert answers[-1] == [304, "goodbye"]
        (sent, received) = told[0]
        assert received == [[1, "a"], [2, 50_000], [3, "c"]]
        assert [line for line in sent[1:] if isinstance(line, str)][:3] == ["a", "c", "d"]

        async with client.open(TALK) as talk:
            reading = asyncio.create_task(talk.recv())
            engines = [each for each in client.records() if each.endpoint == TALK]

            async def taken() -> int:
                loads = [(await inspect(client, each.address.name)) for each in engines]
                return sum(each.get("in_flight", 0) for each in loads)

            await wait_until(taken, what="a worker has it")
            for each in engines:
                if (await inspect(client, each.address.name)).get("in_flight"):
                    kill(each.address.pid)
            await wait_until(lambda: talk.attempts >= 2, what="it is at the other worker")
            await talk.send("a")
            assert await reading == [1, "a"]

        # Without replay: before anything was said it goes elsewhere, afterwards it does not.
        async with client.open(TALK) as talk:
            await talk.send({"hold": str(tmp_path / "two"), "hold_at": 0})
            await talk.send("a")
            kill(await victim(tmp_path / "two"))
            with pytest.raises(PeerLost):
                await talk.recv()
            with pytest.raises(PeerLost):
                await talk.send("b")
