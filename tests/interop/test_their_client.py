"""A client of Dynamo's wheel before our ingress."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Client, EngineSpec, NodeSpec, Settings
from tests.e2e.standing import Standing, inspect, standing, wait_idle
from tests.interop.engines import HERE
from tests.interop.wheel import (
    VALUES,
    Fields,
    Meeting,
    Program,
    meeting,
    needs_wheel,
    program,
)
from tests.waiting import LONG, wait_until

pytestmark = [needs_wheel, pytest.mark.timeout(300)]

GENERATE = "interop.ours.generate"
MIB = 1 << 20
CODECS = ["msgpack", "json"]

Pair = tuple[Standing, Program]


def node_spec(place: Meeting, codec: str, **settings: Any) -> NodeSpec:
    """A node with a door, whose records say that it takes ``codec``."""
    engine = EngineSpec(endpoint=GENERATE, engine=HERE + "Answers", capacity=600)
    return NodeSpec(
        engines=[engine],
        listen="127.0.0.1:0",
        **place.spec(),
        settings=Settings.load(codec=codec, **settings),
    )


@pytest.fixture(scope="module", params=[("msgpack", "etcd"), ("json", "file")], ids="-".join)
def ours(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A node of ours and a client of theirs; the record's codec varies, and where they meet."""
    codec, backend = request.param
    place = meeting(request, backend)
    spec = node_spec(place, codec)
    with standing(spec) as node, program("client", place, codec, GENERATE) as client:
        yield node, client


def clean(done: Fields) -> list[Any]:
    """The items of a stream that has ended well."""
    assert done["error"] == "", done
    items: list[Any] = done["items"]
    return items


async def ended(client: Client, of: str) -> Fields:
    """How the handler of that request has ended, once it has."""
    found: Fields = {}

    async def over() -> bool:
        found.update(await client.call(GENERATE, {"do": "ended", "of": of}, timeout=LONG))
        return bool(found["ended"])

    await wait_until(over, LONG, f"the handler of {of} has ended")
    return found


async def test_values_come_back(ours: Pair) -> None:
    for value in VALUES[1:]:
        assert clean(await ours[1].do({"do": "echo", "value": value})) == [value]
    # The wheel's client passes over items without data unless it is asked for all of each.
    (item,) = clean(await ours[1].do({"do": "echo", "value": None}, annotated=True))
    assert item["data"] is None


async def test_items_come_in_order_and_once(ours: Pair) -> None:
    items = clean(await ours[1].do({"do": "count", "n": 1000}))
    assert items == [{"number": number} for number in range(1000)]


async def test_a_stream_of_nothing_is_a_clean_end(ours: Pair) -> None:
    assert clean(await ours[1].do({"do": "count", "n": 0})) == []


async def test_annotated_items(ours: Pair) -> None:
    first, note, last = clean(await ours[1].do({"do": "annotated"}, annotated=True))
    assert first["data"] == {"number": 0}
    assert (first["id"], first["event"], first["comments"]) == ("7", "progress", ["one", "two"])
    assert (note["data"], note["event"], note["comments"]) == (None, "note", ["no data"])
    assert last == {"data": {"number": 1}, "id": None, "event": None, "comments": None}


async def test_metadata_and_context_id_reach_the_handler(ours: Pair) -> None:
    name = f"context-{ours[1].codec}"
    done = await ours[1].do({"do": "metadata"}, context=name, metadata={"who": "dynamo"})
    assert clean(done) == [{"id": name, "metadata": {"who": "dynamo"}}]


async def test_an_error_before_the_first_item(ours: Pair) -> None:
    done = await ours[1].do({"do": "fail", "n": 0})
    assert done["items"] == []
    assert "ValueError: boom" in done["error"]


async def test_an_error_in_mid_stream_comes_after_the_items_before_it(ours: Pair) -> None:
    done = await ours[1].do({"do": "fail", "n": 3})
    assert done["items"] == [{"number": number} for number in range(3)]
    assert "ValueError: boom" in done["error"]
    assert done["kind"] == "ValueError"  # the wheel's client knows no other inside a stream


async def test_an_item_that_cannot_be_written_is_an_error(ours: Pair) -> None:
    done = await ours[1].do({"do": "unserialisable", "n": 2})
    assert done["items"] == [{"number": 0}, {"number": 1}]
    assert "set" in done["error"]


async def test_bytes_travel_as_their_codec_can(ours: Pair) -> None:
    client = ours[1]
    done = await client.do({"do": "fill", "n": 3})
    if client.codec == "msgpack":
        assert clean(done)[0]["length"] == 3
    else:
        assert "bytes" in done["error"]


# ------------------------------------------------------------------------------------ early ends


async def test_a_stop_reaches_the_handler_and_ends_the_stream_cleanly(ours: Pair) -> None:
    node, client = ours
    name = f"stop-{client.codec}"
    items = clean(await client.do({"do": "slow", "n": 10_000}, context=name, stop=3))
    assert 3 <= len(items) < 2000, "long before it would have ended by itself"
    assert items == [{"number": number} for number in range(len(items))]
    async with node.client() as own:
        found = await ended(own, name)
        assert found["stopped"]
        assert not found["killed"]
        await wait_idle(own)


async def test_a_dropped_stream_is_killed(ours: Pair) -> None:
    node, client = ours
    name = f"drop-{client.codec}"
    assert len(clean(await client.do({"do": "slow", "n": 10_000}, context=name, drop=2))) == 2
    async with node.client() as own:
        assert (await ended(own, name))["killed"]
        await wait_idle(own)


@pytest.fixture(params=CODECS)
def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """As ``ours``, for a test that breaks it."""
    place, codec = Meeting(str(tmp_path)), request.param
    spec = node_spec(place, codec)
    with standing(spec) as node, program("client", place, codec, GENERATE) as client:
        yield node, client


async def hanging(client: Program, streams: int, **more: Any) -> list[int]:
    """Orders of that many streams, each of which has read its three items."""
    request = {"do": "hang", "n": 3}
    numbers = [client.order(request=request, tell=3, **more) for _ in range(streams)]
    for number in numbers:
        await client.hear(event="reached", order=number)
    return numbers


async def check_truncated(client: Program, numbers: list[int]) -> None:
    """Each of these streams ends soon, as a cut one, after the items that came."""
    for number in numbers:
        done = await client.answer(number)
        assert "ended before generation completed" in done["error"]
        assert done["items"] == [{"number": number} for number in range(3)]


async def test_an_engine_that_is_killed_in_mid_stream(breakable: Pair) -> None:
    _, client = breakable
    numbers = await hanging(client, 50)
    (pid,) = clean(await client.do({"do": "pid"}))
    os.kill(pid, signal.SIGKILL)
    await check_truncated(client, numbers)


async def test_an_ingress_that_is_killed_in_mid_stream(breakable: Pair) -> None:
    node, client = breakable
    numbers = await hanging(client, 50)
    os.kill(node.pids["ingress"], signal.SIGKILL)
    await check_truncated(client, numbers)
    async with node.client() as own:
        await wait_idle(own)


async def test_a_requester_that_is_killed_takes_its_streams_with_it(ours: Pair) -> None:
    """The kill of a whole requester: nothing is sent any more, its sockets close."""
    node, client = ours
    name = f"orphan-{client.codec}"
    async with node.client() as own:
        with program("client", client.place, client.codec, GENERATE) as orphaned:
            await hanging(orphaned, 20)
            await hanging(orphaned, 1, context=name)
            os.kill(orphaned.process.pid, signal.SIGKILL)
            assert (await ended(own, name))["killed"]
        await wait_idle(own)


# --------------------------------------------------------------------------------- sizes, numbers


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
async def test_large_bodies_both_ways(ours: Pair, size: int) -> None:
    client = ours[1]
    text = client.codec == "json"
    up = clean(await client.do({"do": "digest"}, fill=size, text=text))
    assert up[0]["length"] == size
    down = clean(await client.do({"do": "fill", "n": size, "text": text}))
    assert down[0]["length"] == size


async def test_a_body_over_the_limit_hurts_nothing(ours: Pair) -> None:
    client = ours[1]
    done = await client.do({"do": "digest"}, fill=33 * MIB, text=client.codec == "json")
    assert done["items"] == []
    assert done["error"]
    assert clean(await client.do({"do": "echo", "value": 1})) == [1]


async def test_a_body_over_our_limit_ends_one_connection(tmp_path: Path) -> None:
    """Their client does not know our limit: it is told, and only that connection is cut."""
    place = Meeting(str(tmp_path))
    spec = node_spec(place, "msgpack", max_message=2 * MIB)
    with standing(spec) as node, program("client", place, "msgpack", GENERATE) as client:
        (other,) = await hanging(client, 1)
        done = await client.do({"do": "digest"}, fill=3 * MIB)
        assert done["items"] == []
        assert "over the limit of 2097152 bytes" in done["error"]
        assert clean(await client.do({"do": "digest"}, fill=MIB))[0]["length"] == MIB
        assert client.find(event="done", order=other) is None
        async with node.client() as own:

            async def one_is_left() -> bool:
                return bool((await inspect(own.ref("ingress")))["in_flight"] == 1)

            await wait_until(one_is_left, what="the other stream goes on")


async def test_512_streams_at_once(ours: Pair) -> None:
    node, client = ours
    numbers = [client.order(request={"do": "count", "n": 20}) for _ in range(512)]
    want = [{"number": number} for number in range(20)]
    for number in numbers:
        assert clean(await client.answer(number, 2 * LONG)) == want
    async with node.client() as own:
        await wait_idle(own)


async def test_an_endpoint_that_is_gone_is_told(tmp_path: Path) -> None:
    """The record goes when the node stops, and their client sees it go."""
    with standing(node_spec(Meeting(str(tmp_path)), "msgpack")):
        records = list((tmp_path / "v1" / "instances").iterdir())
        assert len(records) == 1
        name = records[0].name
        assert name.startswith("interop%2Fours%2Fgenerate%2F")
    assert not list((tmp_path / "v1" / "instances").iterdir())
