"""Mistakes of users: a typed error each, at once, naming cause and next step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.spec import ActorSpec
from actors.errors import (
    ActorDead,
    CallHomeError,
    DecodeError,
    EncodeError,
    EngineError,
    LocalProtocolError,
    NameTaken,
    NoWorkers,
    OutboxFull,
    SpawnError,
    SpecError,
    Unsupported,
)
from actors.messages import End
from tests.e2e.cancel_engines import Work
from tests.e2e.raw import raw_home
from tests.e2e.standing import Standing, standing
from tests.e2e.watching import inspect, kill, stop, wait_idle
from tests.waiting import DEADLINE, LONG, wait_until

#: Far below the time that any of these calls may take, and far above what a busy machine costs.
AT_ONCE = DEADLINE
#: The same where processes start meanwhile; one that hangs has another error.
STARTED = LONG
BAD = "tests.e2e.bad_engines"
LENGTH = "t.length.go"
CHAT = "t.chat.go"


BIG = EngineSpec("t.many.go", f"{BAD}:big")
RAISES = EngineSpec("t.raises.go", f"{BAD}:raises")
STEADY = ActorSpec("steady", f"{BAD}:Steady")
MORTAL = ActorSpec("mortal", f"{BAD}:Steady", restart="never")


def good(*more: EngineSpec | ActorSpec, **settings: Any) -> NodeSpec:
    """A node that works, with what a test needs beside a unary engine and a chat."""
    engines = [EngineSpec(LENGTH, f"{BAD}:length"), EngineSpec(CHAT, "examples.engines:Chat")]
    return NodeSpec(
        name="a",
        routers=[RouterSpec()],
        engines=engines + [each for each in more if isinstance(each, EngineSpec)],
        actors=[each for each in more if isinstance(each, ActorSpec)],
        settings=Settings.load(**settings),
    )


@pytest.fixture(scope="module")
def here() -> Iterator[Standing]:
    """Such a node, for tests that break nothing in it: that is what they are about."""
    with standing(good(BIG, RAISES, STEADY)) as found:
        yield found


@contextlib.contextmanager
def at_once(within: float = AT_ONCE) -> Iterator[None]:
    """Fails when the block takes longer than a mistake may."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < within


@contextlib.asynccontextmanager
async def beside(client: Client) -> AsyncIterator[None]:
    """A stream that is open meanwhile goes on, and calls are answered afterwards."""
    async with client.open(CHAT) as chat:
        await chat.send("before")
        assert await chat.recv() == "you said before"
        yield
        await chat.send("after")
        assert await chat.recv() == "you said after"
        await chat.end()
        assert await chat.recv() == "goodbye"
    assert await client.call(LENGTH, {"text": "four"}) == 4
    await wait_idle(client, LENGTH, CHAT)


async def test_an_unknown_endpoint_is_named_with_its_nearest_neighbour(here: Standing) -> None:
    async with here.client() as client, beside(client):
        with (
            at_once(),
            pytest.raises(NoWorkers, match=r"'t\.lenght\.go' is unknown.*did you mean "),
        ):
            await client.call("t.lenght.go", {})
        with at_once(), pytest.raises(NoWorkers, match=r"served: t\.chat\.go, t\.length\.go"):
            async with client.stream("somewhere.else.entirely") as items:
                await anext(items)
        with at_once(), pytest.raises(NoWorkers):
            async with client.open("t.nobody.home") as chat:
                await chat.send("hello")
        for wrong in ("length", "", "Work"):  # an actor's message has no dots
            with (
                at_once(),
                pytest.raises(NoWorkers, match=r"endpoint .* is unknown.*served: t\.chat"),
            ):
                await client.call(wrong, {})


async def test_a_huge_name_does_not_come_back_whole(here: Standing) -> None:
    async with here.client() as client, beside(client):
        for huge in ("x." * 50_000, "x" * 100_000):
            with at_once(), pytest.raises(NoWorkers, match=r"'x[x.]{99}…' is unknown") as caught:
                await client.call(huge, {})
            assert len(str(caught.value)) < 400
        with at_once(), pytest.raises(ActorDead, match=r"'x{100}…' is alive") as dead:
            await client.ref("x" * 100_000).ask(Work(1, 0.0))
        assert len(str(dead.value)) < 400


async def test_the_wrong_way_to_call_an_endpoint_is_named(here: Standing) -> None:
    async with here.client() as client, beside(client):
        with at_once(), pytest.raises(Unsupported, match=r"stream of requests: use open\(\)"):
            await client.call(CHAT, "hello")
        with at_once(), pytest.raises(Unsupported, match=r"one request: use call\(\) or stream"):
            async with client.open(LENGTH) as chat:
                await chat.recv()
        with at_once(), pytest.raises(CallHomeError, match="codec 'yaml'"):
            await client.call(LENGTH, {}, codec="yaml")
        for wrong in (0, -1, True, "1"):
            with at_once(), pytest.raises(LocalProtocolError, match="seconds above 0"):
                await client.call(LENGTH, {}, timeout=wrong)  # type: ignore[arg-type]
        with at_once(), pytest.raises(LocalProtocolError, match="metadata"):
            await client.call(LENGTH, {}, metadata={"x": 1})  # type: ignore[dict-item]
        with at_once(), pytest.raises(LocalProtocolError, match="'X-Callhome-Window' another name"):
            await client.call(LENGTH, {}, metadata={"X-Callhome-Window": "1,1"})


async def test_an_actor_that_is_dead_or_was_never_born_is_named() -> None:
    async with Cluster(good(STEADY, MORTAL)) as cluster, cluster.client() as client, beside(client):
        with at_once(), pytest.raises(ActorDead, match=r"'nobody'.*alive:.*steady"):
            await client.ref("nobody").ask(Work(1, 0.0))
        with at_once(), pytest.raises(ActorDead, match="'nobody'"):
            await client.ref("nobody").tell(Work(1, 0.0))
        mortal = client.ref("mortal")
        assert await mortal.ask(Work(1, 0.0)) == 1
        kill(mortal.address.pid)

        async def dead() -> bool:
            try:
                await mortal.ask(Work(1, 0.0))
            except CallHomeError as error:
                return isinstance(error, ActorDead)
            return False

        await wait_until(dead, AT_ONCE)
        with at_once(), pytest.raises(ActorDead, match=r"'mortal'.*restart"):
            await mortal.ask(Work(1, 0.0))
        with at_once(), pytest.raises(ActorDead):
            await mortal.tell(Work(1, 0.0))
        assert await client.ref("steady").ask(Work(2, 0.0)) == 2


class Other(NamedTuple):
    """A message that nobody handles."""


async def test_a_message_that_an_actor_does_not_handle_is_named(here: Standing) -> None:
    async with here.client() as client, beside(client):
        steady = client.ref("steady")
        with at_once(), pytest.raises(Unsupported, match=r"'Other'; it handles Inspect, .*Work"):
            await steady.ask(Other())
        with at_once(), pytest.raises(LocalProtocolError, match="NamedTuple"):
            await steady.ask({"tag": 1})
        with at_once(), pytest.raises(CallHomeError, match="field 'tag'"):
            await steady.ask(Work("one", 0.0))  # type: ignore[arg-type]
        assert await steady.ask(Work(3, 0.0)) == 3


async def test_a_value_outside_the_domain_is_refused_where_it_stands(here: Standing) -> None:
    async with here.client() as client, beside(client):
        for codec in ("msgpack", "json"):
            with at_once(), pytest.raises(EncodeError, match=r'request\["a"\]\[1\]'):
                await client.call(LENGTH, {"a": [1, object()]}, codec=codec)
        async with client.open(CHAT) as chat:
            await chat.send("one")
            with pytest.raises(EncodeError):
                await chat.send({1, 2})
            await chat.end()  # nothing was sent, the stream goes on
            assert [line async for line in chat] == ["you said one", "goodbye"]
        with at_once(), pytest.raises(EngineError, match="text"):
            await client.call(LENGTH, {"no": "text"})


async def test_text_that_is_no_unicode_is_refused_and_harms_no_neighbour(here: Standing) -> None:
    async with here.client() as client, beside(client):
        for wrong in ({"metadata": {"k": "\ud800"}}, {"request_id": "\ud800"}):
            neighbour = asyncio.create_task(client.call(LENGTH, {"text": "near"}))
            await asyncio.sleep(0)
            with at_once(), pytest.raises(LocalProtocolError):
                await client.call(LENGTH, {"text": "x"}, **wrong)
            assert await asyncio.wait_for(neighbour, AT_ONCE) == 4
        with at_once(), pytest.raises(LocalProtocolError, match="endpoint"):
            await client.call("t.\ud800.go", {})
        # A reason is for people: it travels with question marks.
        stream = client.stream("t.many.go", {"size": 10})
        async with stream, client.open(CHAT) as chat:
            await chat.send("x")
            assert await chat.recv() == "you said x"
            chat.kill("\ud800")
            await chat.aclose()


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("surrogate", "ValueError", "broken . words"),
        ("unprintable", f"{BAD}.Unprintable", "Unprintable"),
        ("unplain", f"{BAD}.Unplain", "five"),
        ("beyond", f"{BAD}.Beyond", "far"),
    ],
)
async def test_whatever_a_handler_raises_reaches_its_caller(
    here: Standing, kind: str, name: str, text: str
) -> None:
    async with here.client() as client, beside(client):
        pid = client.ref("t.raises.go").address.pid
        with at_once():
            async with client.stream("t.raises.go", {"kind": kind}) as items:
                assert await anext(items) == "one"
                with pytest.raises(EngineError, match=text) as caught:
                    await anext(items)
        assert caught.value.remote_type == name
        assert client.ref("t.raises.go").address.pid == pid


async def test_bytes_that_are_no_payload_fail_their_own_stream_only(here: Standing) -> None:
    async with here.client() as client, beside(client):
        router = client.ref("router").address
        with raw_home(here.folder) as home:
            for number, payload in enumerate((b"", b"\xc1", b"\x91" * 100_000, b"\x01\x02")):
                home.open(router, number + 1, LENGTH, None, payload=payload)
                end = await home.ended(number + 1)
                assert end.error is not None
                assert end.error[0] == DecodeError.code
            home.open(router, 99, LENGTH, None, codec="yaml")
            assert (await home.ended(99)).error is not None
            assert home.got(End, 99)[0].total == 0


async def test_a_payload_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    spec = good(BIG, payload_limit=65_536)
    async with Cluster(spec) as cluster, cluster.client() as client, beside(client):
        with at_once(), pytest.raises(EncodeError, match=r"request: .*65536.*payload_limit"):
            await client.call(LENGTH, {"text": "x" * 70_000})
        with at_once():
            async with client.stream("t.many.go", {"size": 70_000}) as items:
                assert await anext(items) == "small"
                with pytest.raises(EncodeError, match=r"item: .*65536.*payload_limit"):
                    await anext(items)
        assert await client.call(LENGTH, {"text": "x" * 60_000}) == 60_000


async def test_what_a_peer_does_not_read_is_refused_at_the_bound() -> None:
    spec = good(outbox_bytes=1 << 20)
    async with Cluster(spec) as cluster, cluster.client() as client, beside(client):
        router = client.ref("router").address
        stop(router.pid)
        calls: list[asyncio.Task[int]] = []
        refused = 0
        began = time.monotonic()
        while not refused and len(calls) < 2000:
            calls.append(asyncio.create_task(client.call(LENGTH, {"text": "x" * 100_000})))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            refused = sum(call.done() for call in calls)
        assert time.monotonic() - began < LONG
        assert refused
        kill(router.pid, signal.SIGCONT)
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [each for each in results if isinstance(each, BaseException)]
        assert {type(each) for each in errors} == {OutboxFull}
        assert "does not read" in str(errors[0])
        assert [each for each in results if each not in errors] == [100_000] * (
            len(calls) - len(errors)
        )


async def test_a_second_node_of_one_name_is_refused(here: Standing) -> None:
    name = here.name
    async with here.client() as client, beside(client):
        pid = client.ref("node").address.pid
        with at_once(STARTED), pytest.raises(NameTaken, match=rf"'a'.*{name}.*pid {pid}.*stop"):
            async with Cluster(good(), cluster=name):
                pass
        with at_once(), pytest.raises(SpecError, match="'a' stands twice"):
            Cluster([good(), good()])
        with at_once(), pytest.raises(SpecError, match="steady"):
            NodeSpec(name="a", actors=[ActorSpec("steady", f"{BAD}:Steady")] * 2)


async def test_a_run_folder_whose_socket_paths_are_too_long_is_refused(
    here: Standing, tmp_path: Path
) -> None:
    run = str(tmp_path / ("d" * 120))
    async with here.client() as client, beside(client):
        with at_once(STARTED), pytest.raises(CallHomeError, match=r"107.*CALLHOME_RUN") as caught:
            async with Cluster(good(run=run)):
                pass
        assert run in str(caught.value)
        assert isinstance(caught.value, (SpawnError, SpecError, LocalProtocolError))


@pytest.mark.parametrize(
    ("target", "args", "stage", "text"),
    [
        (f"{BAD}:Unlucky", {}, "constructor", "ValueError: the model file is missing"),
        (f"{BAD}:Strict", {}, "constructor", "model"),
        (f"{BAD}:Strict", {"modle": "x"}, "constructor", "modle"),
        (f"{BAD}:Late", {}, "on_start", "the device is busy"),
        (f"{BAD}:plain", {}, "constructor", "async def"),
        (f"{BAD}:NoEngine", {}, "constructor", "no Engine"),
        (f"{BAD}:Absent", {}, "import", "Absent"),
        ("tests.e2e.nowhere:Engine", {}, "import", "tests.e2e.nowhere"),
        ("tests.kernel.unimportable:Thing", {}, "import", "this module refuses"),
    ],
)
async def test_an_engine_that_does_not_come_up_is_named_with_its_stage(
    target: str, args: dict[str, object], stage: str, text: str
) -> None:
    bad = NodeSpec(name="b", engines=[EngineSpec("t.bad.go", target, args=args)])
    with at_once(STARTED), pytest.raises(SpawnError, match=r"t\.bad\.go") as caught:
        async with Cluster(bad):
            pass
    assert caught.value.details["stage"] == stage
    assert text in str(caught.value)


async def test_an_engine_that_does_not_come_up_leaves_other_nodes_alone(here: Standing) -> None:
    async with here.client() as client, beside(client):
        before = (await inspect(client, "router"))["counters"]["refused"]
        with at_once(STARTED), pytest.raises(SpawnError):
            async with Cluster(NodeSpec("b", engines=[EngineSpec("t.bad.go", f"{BAD}:Unlucky")])):
                pass
        assert (await inspect(client, "router"))["counters"]["refused"] == before


def test_an_unknown_key_of_a_spec_is_named_with_its_path() -> None:
    table = {
        "name": "a",
        "engines": [{"endpoint": LENGTH, "engine": f"{BAD}:length", "capcity": 3}],
    }
    with (
        at_once(),
        pytest.raises(SpecError, match=r"engines\[0\]\.capcity.*did you mean 'capacity'"),
    ):
        NodeSpec.from_dict(table)
    with at_once(), pytest.raises(SpecError, match=r"windows_items.*window_items"):
        Settings.load(windows_items=3)


def test_cores_that_do_not_exist_are_named() -> None:
    most = max(os.sched_getaffinity(0))
    for cores in (f"0,{most + 90}", [most + 90], "0-x", ""):
        with at_once(), pytest.raises(SpecError, match="core"):
            Cluster(good(), cores=cores)
    with at_once(), pytest.raises(SpecError, match="cpus"):
        Cluster(
            NodeSpec("a", engines=[EngineSpec(LENGTH, f"{BAD}:length", cpus=[most + 90])]),
            cores=[most],
        )


async def test_a_message_from_nowhere_does_not_reach_a_handler(here: Standing) -> None:
    async with here.client() as client, beside(client):
        engine = client.ref(LENGTH).address
        before = await failed(client)
        with raw_home(here.folder) as home:
            home.open(engine, 5, "t.other.go", {"text": "x"})
            end = await home.ended(5)
            assert end.error is not None
            assert end.error[0] == Unsupported.code
        assert await failed(client) == before


async def failed(client: Client) -> dict[str, int]:
    """Counters of what the handler of LENGTH raised."""
    counters = (await inspect(client, LENGTH))["counters"]
    return {name: count for name, count in counters.items() if name.startswith("errors.engine")}
