"""Streams that are continued at another worker: no item twice, none missing; what cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
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
from tests.e2e.killer import killed_streams
from tests.e2e.standing import ROADS, cluster_on
from tests.e2e.test_retry import victim
from tests.e2e.watching import inspect, kill
from tests.waiting import TICK, wait_until

ENGINES = "tests.e2e.moving_engines"
TOKENS, PLAIN, TALK = "t.tokens.go", "t.plain.go", "t.talk.go"


def node(*classes: str, replicas: int = 2) -> NodeSpec:
    """So many workers of each class."""
    engines = [
        EngineSpec(f"t.{name.lower()}.go", f"{ENGINES}:{name}", replicas=replicas)
        for name in classes
    ]
    return NodeSpec(name="a", engines=engines)


@pytest.mark.parametrize("road", ROADS)
async def test_conformance_39_a_token_stream_goes_on_where_it_was(
    tmp_path: Path, road: str
) -> None:
    """Lists, tuples and arrays of ids; limits at the top and nested; frames among the items."""
    async with cluster_on(node("Tokens"), road) as cluster, cluster.client() as client:
        kinds: dict[str, Any] = {
            "list": {"token_ids": [7, 8, 9], "max_tokens": 40, "min_tokens": 5},
            "array": {"token_ids": np.array([7, 8, 9], "int32"), "max_tokens": 40},
            "nested": {"token_ids": (7, 8, 9), "stop_conditions": {"max_tokens": 40}},
            "frames": {"token_ids": [7, 8, 9], "max_tokens": 40, "frames": True},
        }
        if road == "nodes":
            del kinds["nested"], kinds["array"]
        done = [moved(client, tmp_path / name, kinds[name]) for name in kinds]
        await asyncio.gather(*done)
        assert client.statistics()["migrated.ongoing_request"] >= len(kinds)
        await wait_until(lambda: client.runtime.memory.statistics().slots == 0, what="no frame")


async def moved(client: Client, place: Path, request: dict[str, Any]) -> None:
    """One stream whose worker dies in front of token 20, and perhaps once more beside another."""
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
                kill_all([await victim(place)])
        assert values == list(range(3, 43))
        assert 2 <= len(pids) <= items.attempts
        assert items.received == 40


def kill_all(pids: list[int]) -> None:
    """Kill those that live still."""
    for pid in set(pids):
        with contextlib.suppress(ProcessLookupError):
            kill(pid)


async def test_a_users_resume_and_what_is_wrong_with_it(tmp_path: Path) -> None:
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

    async with Cluster(node("Plain")) as cluster, cluster.client() as client:
        streams, holding = {}, []
        for function in (resume, complete, raises, rubbish):
            place = tmp_path / function.__name__
            request = {"first": 0, "last": 9, "hold_at": 5, "hold": str(place)}
            items = client.stream(PLAIN, request, migration_limit=3, resume=function)
            assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
            streams[function.__name__] = items
            holding.append(await victim(place))
        kill_all(holding)  # nobody is there for a while
        assert [item async for item in streams["complete"]] == []
        with pytest.raises(LocalProtocolError, match=r"function .*raises failed: KeyError") as told:
            await anext(streams["raises"])
        assert "SIGKILL" in str(told.value)
        assert isinstance(told.value.__cause__, KeyError)
        with pytest.raises(LocalProtocolError, match="rubbish failed: EncodeError"):
            await anext(streams["rubbish"])
        assert [item async for item in streams["resume"]] == [5, 6, 7, 8]


async def both(client: Client, endpoint: str) -> None:
    """Wait until two workers are there (again)."""
    await wait_until(
        lambda: sum(each.endpoint == endpoint for each in client.records()) == 2,
        100 * TICK,
        "two workers",
    )


async def test_what_cannot_be_continued_is_told_at_once(tmp_path: Path) -> None:
    async with Cluster(node("Plain", "Talk", replicas=1)) as cluster, cluster.client() as client:
        with pytest.raises(LocalProtocolError, match="give resume="):
            client.stream(PLAIN, {"first": 0, "last": 9}, migration_limit=1)
        with pytest.raises(LocalProtocolError, match="give replay="):
            client.open(TALK, migration_limit=1)
        with pytest.raises(LocalProtocolError, match="functions"):
            client.stream(PLAIN, 1, migration_limit=1, resume="x")  # type: ignore[arg-type]
        # What the settings say for all streams holds for those that can be continued.
        settings = Settings.load(migration_limit=2)
        async with Client(run=client._run, settings=settings) as other:
            request = {"first": 0, "last": 9, "hold_at": 5, "hold": str(tmp_path / "h")}
            async with other.stream(PLAIN, request) as items:
                assert [await anext(items) for _ in range(5)] == [0, 1, 2, 3, 4]
                kill(await victim(tmp_path / "h"))
                with pytest.raises(PeerLost, match="after 5 items"):
                    await anext(items)
            async with other.open(TALK) as talk:
                await talk.send("a")
                assert await talk.recv() == [1, "a"]


async def test_items_over_the_bytes_that_are_kept_and_limits_that_are_used_up(
    tmp_path: Path,
) -> None:
    async with Cluster(node("Tokens")) as cluster, cluster.client() as client:
        settings = Settings.load(migration_limit=3, migration_bytes=65_536)
        async with Client(run=client._run, settings=settings) as other:
            request = {"token_ids": [1], "max_tokens": 9, "frames": True, "hold_at": 4}
            place = tmp_path / "bytes"
            async with other.stream(TOKENS, {**request, "hold": str(place)}) as items:
                assert [(await anext(items))["token_ids"] for _ in range(3)] == [[1], [2], [3]]
                kill(await victim(place))
                with pytest.raises(PeerLost, match="over migration_bytes"):
                    await anext(items)
        # All tokens have come when the worker dies: the stream is complete.
        place = tmp_path / "end"
        request = {"token_ids": [1], "max_tokens": 3, "hold_at": "end", "hold": str(place)}
        async with client.stream(TOKENS, request, migration_limit=3) as items:
            assert [(await anext(items))["token_ids"] for _ in range(3)] == [[1], [2], [3]]
            kill(await victim(place))
            assert [item async for item in items] == []
            assert items.attempts == 1
        # A limit of none.
        place = tmp_path / "none"
        request = {"token_ids": [1], "max_tokens": 3, "hold_at": 2, "hold": str(place)}
        await both(client, TOKENS)
        async with client.stream(TOKENS, request) as items:
            await anext(items)
            kill(await victim(place))
            with pytest.raises(PeerLost):
                await anext(items)


async def test_a_stream_each_way_goes_on_with_what_its_replay_says(tmp_path: Path) -> None:
    told: list[tuple[list[Any], list[Any]]] = []

    def replay(sent: list[Any], received: list[Any]) -> Any:
        told.append((sent, received))
        return [{"hold": str(place), "hold_at": 3}, *sent[1:]]

    async with Cluster(node("Talk")) as cluster, cluster.client() as client:
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
            assert talk.attempts == 2
        # The new worker has heard all from the start, and answers it all.
        assert [line for _, line in answers[:4]] == ["a", 50_000, "c", "d"]
        assert [line for _, line in answers[4:-1]] == [f"n{number}" for number in range(300)]
        assert answers[-1] == [304, "goodbye"]
        (sent, received) = told[0]
        assert received == [[1, "a"], [2, 50_000], [3, "c"]]
        assert [line for line in sent[1:] if isinstance(line, str)][:3] == ["a", "c", "d"]

        await both(client, TALK)
        async with client.open(TALK) as talk:
            reading = asyncio.create_task(talk.recv())
            engines = [each for each in client.records() if each.endpoint == TALK]

            async def taken() -> int:
                loads = [(await inspect(client, each.address.name)) for each in engines]
                return sum(each["in_flight"] for each in loads)

            await wait_until(taken, what="a worker has it")
            for each in engines:
                if (await inspect(client, each.address.name))["in_flight"]:
                    kill(each.address.pid)
            await wait_until(lambda: talk.attempts == 2, what="it is at the other worker")
            await talk.send("a")
            assert await reading == [1, "a"]

        # Without replay: before anything was said it goes elsewhere, afterwards it does not.
        await both(client, TALK)
        async with client.open(TALK) as talk:
            await talk.send({"hold": str(tmp_path / "two"), "hold_at": 0})
            await talk.send("a")
            kill(await victim(tmp_path / "two"))
            with pytest.raises(PeerLost):
                await talk.recv()
            with pytest.raises(PeerLost):
                await talk.send("b")


async def test_conformance_40_a_cancel_in_the_middle_of_a_migration(tmp_path: Path) -> None:
    async with Cluster(node("Tokens", replicas=1)) as cluster, cluster.client() as client:
        streams, readers = [], []
        for how in ("stop", "kill", "leave"):
            place = tmp_path / how
            request = {"token_ids": [1], "max_tokens": 9, "hold_at": 3, "hold": str(place)}
            items = client.stream(TOKENS, request, migration_limit=3)
            assert [(await anext(items))["token_ids"] for _ in range(2)] == [[1], [2]]
            streams.append(items)
            readers.append(asyncio.create_task(anext(items)))
            pid = await victim(place)
        between = client.runtime.home.between
        kill(pid)
        await wait_until(lambda: len(between.contexts()) == 3, what="they pause")
        streams[0].stop("enough")
        streams[1].kill("enough")
        await streams[2].aclose()
        for items, reading in zip(streams, readers, strict=True):
            with pytest.raises(Cancelled):
                await reading
            assert items.attempts == 2  # there was nobody at the second
            await items.aclose()
        assert not between.contexts()


async def test_a_stream_outlives_the_router_and_the_ingress_on_its_way() -> None:
    async with cluster_on(node("Tokens"), "nodes") as cluster, cluster.client() as client:
        found = {child.name: child.pid for each in cluster.nodes for child in each.children}
        near = {each.node: each for each in cluster.nodes}["a"]
        router = next(child.pid for child in near.children if child.name == "router")
        request = {"token_ids": [1], "max_tokens": 60, "pace": 0.002}
        values = []
        async with client.stream(TOKENS, request, timeout=60.0, migration_limit=3) as items:
            async for item in items:
                values += item["token_ids"]
                if len(values) in (20, 40):
                    kill(router if len(values) == 20 else found["ingress"])
            assert values == list(range(1, 61))
        assert client.statistics()["migrated.ongoing_request"] == 2


async def test_a_handlers_error_at_the_second_worker_is_the_streams(tmp_path: Path) -> None:
    spec = replace(node("Plain"), engines=[
        *node("Plain").engines, EngineSpec("t.via.go", f"{ENGINES}:Via"),
    ])  # fmt: skip
    async with Cluster(spec) as cluster, cluster.client() as client:
        request = {"first": 0, "last": 9, "hold_at": 2, "hold": str(tmp_path / "h")}
        function = lambda request, delivered: {"first": "x"}  # noqa: E731
        async with client.stream(PLAIN, request, migration_limit=3, resume=function) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            kill(await victim(tmp_path / "h"))
            with pytest.raises(EngineError, match="last"):
                await anext(items)
            assert items.attempts == 2
        # Engines that call others may ask for the same.
        await both(client, PLAIN)
        request = {"first": 0, "last": 9, "hold_at": 2, "hold": str(tmp_path / "via")}
        async with client.stream("t.via.go", request) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
            kill(await victim(tmp_path / "via"))
            assert [item async for item in items] == [2, 3, 4, 5, 6, 7, 8, [2, 7]]


async def test_60_token_streams_under_a_killer_are_complete() -> None:
    """The long form is ``python -m tests.e2e.killer``: 1,000 streams of 200 items."""
    result = await killed_streams(
        streams=60, at_once=60, items=60, workers=3, pace=0.02, every=0.4, kills=2
    )
    assert result.wrong == []
    assert result.kills >= 1
    assert result.migrated > 0
