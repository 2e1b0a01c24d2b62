"""Values on their way through a real engine: what it yields is what arrives, or a typed error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import Client, NodeSpec
from actors.errors import DecodeError, EncodeError, EngineError
from actors.kernel.opened import Limits, Opened
from tests.e2e.engines import ECHO, LETTERS, MORE_LETTERS, PART, UNARY
from tests.e2e.standing import ROADS, Standing, inspect, standing, wait_idle
from tests.waiting import LONG
from transport.context import Context
from transport.payload import Encoded

GO = "t.part.go"
MIB = 1 << 20
both = pytest.mark.parametrize("codec", ["msgpack", "json"])


@pytest.fixture(scope="module", params=ROADS)
def node(request: pytest.FixtureRequest) -> Iterator[Standing]:
    with standing(
        NodeSpec(engines=[PART, UNARY, ECHO, LETTERS, MORE_LETTERS]), request.param
    ) as found:
        yield found


async def echo(client: Client, value: Any, codec: str = "msgpack") -> Any:
    return await client.call(GO, {"do": "echo", "value": value}, timeout=LONG, codec=codec)


async def raw(client: Client, endpoint: str, payload: bytes, codec: str = "msgpack") -> Opened:
    """A stream whose request is ``payload`` as it stands, once it has ended."""
    stream = client.runtime.home.open(
        client.route(endpoint), endpoint, Encoded(payload, [], len(payload)), many=False,
        codec=codec, native=False, limits=Limits(LONG, None, None),
        context=Context("raw", None, time.monotonic() + LONG), named=False,
    )  # fmt: skip
    await stream.wait_ended()
    return stream


# ---------------------------------------------------------------------------------- field reports


@both
async def test_b97_numpy_scalars_become_plain_numbers(node: Standing, codec: str) -> None:
    value = {"lp": np.float32(-1.5), "id": np.int64(3), "ok": np.bool_(True), "f": np.float64(2)}
    async with node.client() as client:
        found = await echo(client, value, codec)
    assert found == {"lp": -1.5, "id": 3, "ok": True, "f": 2.0}
    assert [type(each) for each in found.values()] == [float, int, bool, float]


@both
async def test_b98_bytes_survive_either_codec(node: Standing, codec: str) -> None:
    looks_like_ours = {"$callhome": "bytes", "v": "AP8="}
    async with node.client() as client:
        value = {"a": [b"\x00\xff", {"b": b""}], "tag": looks_like_ours}
        assert await echo(client, value, codec) == value


@both
async def test_b100_large_integers_arrive_or_are_refused_before_anything(
    node: Standing, codec: str
) -> None:
    value = [2**64 - 1, 2**64, -(2**63) - 1, [2**200]]
    async with node.client() as client:
        assert await echo(client, value, codec) == value
        before = await inspect(client.ref("part"))
        sent = client.runtime.port.statistics().messages_out
        with pytest.raises(EncodeError, match=r'request\["value"\]\[0\]\[1\].*8192'):
            await echo(client, [[1, 2**9000]], codec)
        assert client.runtime.port.statistics().messages_out == sent
        assert not client.runtime.home.streams
        after = await inspect(client.ref("part"))
        assert after["counters"]["requests"] == before["counters"]["requests"]
        await wait_idle(client)
        assert await echo(client, 1, codec) == 1


@both
async def test_b103_a_lone_surrogate_ends_its_stream_in_order(node: Standing, codec: str) -> None:
    got = []
    async with node.client() as client:
        request = {"do": "values", "of": "surrogate"}
        async with client.stream(GO, request, timeout=LONG, codec=codec) as items:
            got.append(await anext(items))
            with pytest.raises(EncodeError, match="surrogate"):
                await anext(items)
        assert got == ["ok"]
        assert await echo(client, "ok2", codec) == "ok2"


POISON = {
    "msgpack": [
        b"\xc1", b"\x92\x01", b"\x01\x01", b"", b"\x91" * 100_000 + b"\x01",
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    ],
    "json": [b"{", b"[1,", b"1 1", b"", b"[" * 100_000, b"\xff", b'{"$callhome":"bytes"}'],
}  # fmt: skip


@both
async def test_b106_poison_is_refused_and_kills_nobody(node: Standing, codec: str) -> None:
    pid = node.pids["part"]
    async with node.client() as client:
        await echo(client, 1)
        base = rss_of(pid)
        for payload in POISON[codec]:
            stream = await raw(client, GO, payload, codec)  # and no end of its time
            assert isinstance(stream.error, DecodeError), payload[:8]
            for number in range(10):
                assert await echo(client, number, codec) == number
        assert rss_of(pid) - base < 20 * MIB
        assert await client.call(GO, {"do": "pid"}, timeout=LONG) == pid
        await wait_idle(client)


def rss_of(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


# ------------------------------------------------------------------------------- what must be true


@both
@pytest.mark.parametrize("size", [1, 40_000])
async def test_one_mutated_dict_is_100_different_items(
    node: Standing, codec: str, size: int
) -> None:
    async with node.client() as client:
        request = {"do": "mutated", "n": 100, "size": size}
        async with client.stream(GO, request, timeout=LONG, codec=codec) as items:
            found = [item async for item in items]
    assert [item["deep"][0] for item in found] == list(range(100))
    for number, item in enumerate(found):
        assert item["array"].shape == (size,)
        assert (item["array"] == number).all()


@both
async def test_an_item_that_cannot_be_encoded_is_no_clean_end(node: Standing, codec: str) -> None:
    async with node.client() as client:
        request = {"do": "values", "of": "unencodable"}
        async with client.stream(GO, request, timeout=LONG, codec=codec) as items:
            assert await anext(items) == 1
            with pytest.raises(EncodeError, match=r'item\["a"\]\[1\]: .*object'):
                await anext(items)
        counters = (await inspect(client.ref("part")))["counters"]
        assert counters["errors.serialization"] >= 1
        request["of"] = "huge integer"
        async with client.stream(GO, request, timeout=LONG, codec=codec) as items:
            assert await anext(items) == 2**200
            with pytest.raises(EncodeError):
                await anext(items)
        await wait_idle(client)


@pytest.mark.timeout(300)
async def test_thousands_of_calls_in_sequence_to_a_worker_of_capacity_1(node: Standing) -> None:
    calls = 4_000 if node.road == "node" else 1_500  # between nodes a call takes twice as long
    asyncio.get_running_loop().set_debug(False)  # it makes a call three times as long
    async with node.client() as client:
        for number in range(calls):
            answer = await client.call("t.unary.go", {"n": number}, timeout=LONG)
            assert answer["n"] == number
        counters = (await inspect(client.ref("unary")))["counters"]
        assert counters["refused"] == 0
        await wait_idle(client)


async def test_requests_of_a_stream_are_of_the_domain_too(node: Standing) -> None:
    async with node.client() as client, client.open("t.echo.go", timeout=LONG) as chat:
        await chat.send({"a": 1})
        with pytest.raises(EncodeError, match=r"request\[0\]"):
            await chat.send([object()])
        await chat.send((1, 2))  # the stream goes on
        await chat.end()
        assert [item async for item in chat] == [{"a": 1}, (1, 2), {"count": 2}]


# -------------------------------------------------------------------------------- payload adapters


async def test_an_adapter_speaks_the_payloads_of_others(node: Standing) -> None:
    async with node.client() as client:
        stream = await raw(client, "t.letters.go", b"<abc>")
        assert (list(stream.queue), stream.error) == ([b"<a>", b"<b>", b"<c>"], None)
        stream = await raw(client, "t.letters.go", b"<ab.cd>")
        assert (list(stream.queue), stream.error) == ([b"<a>", b"<b>", b"<.>"], None)
        stream = await raw(client, "t.letters.go", b"<a!b>")
        assert list(stream.queue) == [b"<a>", b"<!>"]
        assert isinstance(stream.error, EngineError)
        stream = await raw(client, "t.letters.go", b"abc")
        assert list(stream.queue) == []
        assert isinstance(stream.error, EngineError)
        assert "no brackets" in str(stream.error)
        await wait_idle(client)


async def test_an_adapter_speaks_for_a_generator_in_a_thread(node: Standing) -> None:
    async with node.client() as client:
        stream = await raw(client, "t.letters.sync", b"<ab.cd>")
        assert list(stream.queue) == [b"<['a']>", b"<['b']>", b"<.>"]
        assert stream.error is None
        stream = await raw(client, "t.letters.sync", b"<a!b>")
        assert list(stream.queue) == [b"<['a']>", b"<!>"]
        assert isinstance(stream.error, EngineError)
        await wait_idle(client)


# ------------------------------------------------------------------------- engines that call others


async def test_an_engine_calls_streams_and_opens_other_endpoints(node: Standing) -> None:
    async with node.client() as client:
        request: dict[str, Any] = {"do": "call", "endpoint": "t.unary.go", "request": {"n": 4}}
        assert (await client.call(GO, request, timeout=LONG))["n"] == 4
        request = {"do": "stream", "endpoint": GO, "request": {"do": "numbers", "n": 3}}
        async with client.stream(GO, request, timeout=LONG) as items:
            assert [item async for item in items] == [0, 1, 2]
        async with client.stream(GO, request, timeout=LONG, annotated=True) as items:
            found = [(item.data, item.comment) async for item in items]
        assert found == [(0, ["through"]), (1, ["through"]), (2, ["through"])]
        request = {"do": "open", "endpoint": "t.echo.go", "items": [1, "two"]}
        async with client.stream(GO, request, timeout=LONG) as items:
            assert [item async for item in items] == [1, "two", {"count": 2}]
        await wait_idle(client)


async def test_a_child_stream_has_what_is_left_of_the_deadline(node: Standing) -> None:
    async with node.client() as client:
        request = {"do": "call", "endpoint": GO, "request": {"do": "context"}}
        found = await client.call(GO, request, timeout=LONG, metadata={"who": "me"})
        assert 0 < found["remaining"] < LONG
        assert found["metadata"] == {"who": "me"}


async def test_a_child_stream_ends_with_its_parent(node: Standing) -> None:
    child = {"do": "hang_after", "n": 2, "id": "child"}
    request = {"do": "stream", "endpoint": GO, "request": child, "id": "parent"}
    async with node.client() as client:
        async with client.stream(GO, request, timeout=LONG) as items:
            assert [await anext(items), await anext(items)] == [0, 1]
        await wait_idle(client)
        for name in ("child", "parent"):
            assert (await client.call(GO, {"do": "look", "of": name}, timeout=LONG))["ended"]


async def test_the_failure_of_a_child_is_the_failure_of_its_parent(node: Standing) -> None:
    async with node.client() as client:
        request: dict[str, Any] = {"do": "call", "endpoint": "t.nobody.go", "request": None}
        with pytest.raises(EngineError, match=r"t\.nobody\.go") as failed:
            await client.call(GO, request, timeout=LONG)
        assert failed.value.remote_type == "actors.errors.NoWorkers"
        request = {"do": "call", "endpoint": GO, "request": {"do": "values", "of": "unencodable"}}
        with pytest.raises(EncodeError, match="object"):
            await client.call(GO, request, timeout=LONG)
        await wait_idle(client)
