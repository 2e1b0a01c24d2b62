"""Field reports of the Python API: errors, loops, references, limits, tells, forks."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors import ActorSpec, Client, Cluster, EngineSpec, NodeSpec, Ref
from actors.errors import (
    ActorDead,
    DeadlineExceeded,
    EngineError,
    LocalProtocolError,
    NoWorkers,
    Unsupported,
)
from actors.messages import Inspect
from tests.e2e.api_players import RAISED, Back, Fork, Given, Pause, Raise, Round, Through
from tests.e2e.standing import Standing, standing
from tests.kernel.players import Add
from tests.ports import free_address
from tests.waiting import DEADLINE, LONG, TICK, wait_until

HERE = "tests.e2e.api_players:"
ASK = "t.ask.refs"
ACTORS = [
    ActorSpec("a", HERE + "Player", args={"peer": Ref("b"), "deep": {"all": [Ref("c"), Ref("b")]}}),
    ActorSpec("b", HERE + "Player"),
    ActorSpec("c", HERE + "Player"),
    ActorSpec("mortal", HERE + "Player", restart="never"),
]
ENGINE = EngineSpec(ASK, HERE + "Asker", args={"peer": Ref("b")}, name="asker")


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(actors=ACTORS, engines=[ENGINE])) as found:
        yield found


def within(begun: float, limit: float = DEADLINE) -> None:
    took = time.monotonic() - begun
    assert took < limit, f"it took {took:.2f} s"


# ----------------------------------------------------------------------------------- B170: errors


@pytest.mark.parametrize("how", RAISED)
async def test_b170_any_exception_reaches_the_caller(node: Standing, how: str) -> None:
    names = {"odd": "Odd", "lock": "Locked", "mute": "Mute", "foreign": "only_here.Strange"}
    texts = {"odd": "seven", "lock": "holds a lock", "mute": "Mute", "foreign": "from nowhere"}
    async with node.client() as client:
        begun = time.monotonic()
        with pytest.raises(EngineError, match=texts[how]) as asked:
            await client.ref("a").ask(Raise(how), timeout=LONG)
        with pytest.raises(EngineError, match=texts[how]) as called:
            await client.call(ASK, {"raise": how}, timeout=LONG)
        within(begun)
        for error in (asked.value, called.value):
            assert error.remote_type.endswith(names[how])
            assert "Traceback" in error.remote_traceback
        assert isinstance(await client.call(ASK, {}, timeout=LONG), int)
        for name in ("a", "asker"):
            assert client.ref(name).address.pid == node.pids[name]


# ------------------------------------------------------------------------ B171: loops and threads


async def misused(client: Client, stream: Any) -> list[str]:
    """What uses of a client, a reference and a stream of another loop say."""
    uses: list[Callable[[], Any]] = [
        lambda: client.call(ASK, {}),
        lambda: client.ref("b").ask(Add(1)),
        lambda: client.ref("b").tell(Add(1)),
        lambda: anext(client.stream(ASK, {})),
        lambda: anext(stream),
        lambda: stream.aclose(),
        lambda: client.workers(ASK),
    ]
    found = []
    for use in uses:
        begun = time.monotonic()
        try:
            await use()
            found.append("worked")
        except LocalProtocolError as error:
            found.append(str(error))
        within(begun)
    for plain in (stream.stop, stream.kill, client.close, lambda: client.cancel("x")):
        with pytest.raises(LocalProtocolError, match="another event loop"):
            plain()
    return found


async def test_b171_another_loop_or_thread_is_told_so(node: Standing) -> None:
    async with node.client() as client:
        stream = client.stream(ASK, {"items": 1, "pause": 2 * LONG})
        async with stream:
            assert await anext(stream) == 0
            told = await asyncio.to_thread(asyncio.run, misused(client, stream))
            for text in told:
                assert "another event loop" in text
                assert "run_coroutine_threadsafe" in text
        loop = asyncio.get_running_loop()

        def threadsafe() -> Any:
            call = asyncio.run_coroutine_threadsafe(client.call(ASK, {}, timeout=LONG), loop)
            return call.result(LONG)

        assert isinstance(await asyncio.to_thread(threadsafe), int)


def test_b171_a_loop_that_has_ended_is_told_so_and_leaves_nothing(node: Standing) -> None:
    async def first() -> tuple[Client, Any]:
        client = node.client()
        await client.__aenter__()
        stream = client.stream(ASK, {"items": 1, "pause": 2 * LONG})
        await stream.__aenter__()
        assert await anext(stream) == 0
        return client, stream

    client, stream = asyncio.run(first())

    async def second() -> None:
        for number in range(2):
            begun = time.monotonic()
            with pytest.raises(LocalProtocolError, match=r"event loop, which has ended"):
                await (anext(stream) if number else client.call(ASK, {}))
            within(begun)

    asyncio.run(second())
    client.close()
    client.close()

    async def gone() -> None:
        async with node.client() as other:

            async def idle() -> bool:
                async with other.ref("asker").stream(Inspect(), timeout=LONG) as answers:
                    return [each["in_flight"] async for each in answers] == [0]

            await wait_until(idle, what="the engine was told that its caller has gone")

    asyncio.run(gone())


async def test_b36_many_threads_never_abort_the_process(node: Standing) -> None:
    async with node.client() as client:
        loop = asyncio.get_running_loop()
        right, wrong, other = [0] * 8, [0] * 8, [0] * 8

        def misuse(number: int) -> None:
            async def calls() -> None:
                for _ in range(500):
                    try:
                        await client.ref("b").ask(Add(0), timeout=LONG)
                        other[number] += 1
                    except LocalProtocolError:
                        wrong[number] += 1

            asyncio.run(calls())
            for _ in range(25):
                asked = client.ref("b").ask(Add(0), timeout=LONG)
                answer = asyncio.run_coroutine_threadsafe(asked, loop).result(LONG)
                right[number] += isinstance(answer, int)

        threads = [threading.Thread(target=misuse, args=(number,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            await asyncio.to_thread(each.join)
        assert (sum(right), sum(wrong), sum(other)) == (8 * 25, 8 * 500, 0)
        assert isinstance(await client.call(ASK, {}, timeout=LONG), int)


# ------------------------------------------------------------------------------ B173: references


async def test_b173_a_reference_works_where_it_arrives(node: Standing) -> None:
    async with node.client() as client:
        a, b, c = (client.ref(name) for name in "abc")
        before = await b.ask(Add(0), timeout=LONG)
        assert await a.ask(Through(b, 3), timeout=LONG) == before + 3
        nested = Through(b, 1, {"refs": [c, b]})
        assert await a.ask(nested, timeout=LONG) == [await c.ask(Add(0), timeout=LONG), before + 4]
        back = await a.ask(Back(b), timeout=LONG)
        assert [back[key].name for key in ("same", "own")] == ["b", "a"]
        assert await back["same"].ask(Add(1), timeout=LONG) == before + 5
        await a.tell(Through(b, 1))
        assert await a.ask(Through(b, 0), timeout=LONG) == before + 6


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_b173_engines_take_references(node: Standing, codec: str) -> None:
    async with node.client() as client:
        b = client.ref("b")
        before = await b.ask(Add(0), timeout=LONG)
        request = {"ref": b, "amount": 2}
        async with client.stream(ASK, request, timeout=LONG, codec=codec) as items:
            found = [item async for item in items]
        assert found[0] == found[2] == before + 2
        assert await found[1]["ref"].ask(Add(1), timeout=LONG) == before + 3


async def test_b173_references_are_arguments_of_specs(node: Standing) -> None:
    async with node.client() as client:
        b, c = [await client.ref(name).ask(Add(0), timeout=LONG) for name in "bc"]
        assert await client.ref("a").ask(Given(1), timeout=LONG) == [b + 1, c + 1, b + 2]


async def test_b173_a_reference_of_a_dead_actor_says_so(node: Standing) -> None:
    async with node.client() as client:
        begun = time.monotonic()
        with pytest.raises(ActorDead, match="no actor 'nobody' is alive"):
            await client.ref("a").ask(Through(client.ref("nobody"), 1), timeout=LONG)
        within(begun)


async def test_b173_references_in_the_launchers_process_and_not_beyond_the_node() -> None:
    door = free_address()
    here = ActorSpec("here", HERE + "Player", args={"peer": Ref("b"), "deep": {"all": []}},
                     place="here")  # fmt: skip
    near = NodeSpec(name="near", actors=[here, ActorSpec("b", HERE + "Player")], peers=[door])
    far = NodeSpec(
        name="far", actors=[ActorSpec("b", HERE + "Player")], engines=[ENGINE], listen=door
    )
    async with Cluster([near, far]) as cluster, cluster.client("near") as client:
        assert await client.ref("here").ask(Given(2), timeout=LONG) == [2]
        request = {"ref": cluster.ref("b", "near"), "amount": 5}
        with pytest.raises(Unsupported, match="reference to actor 'b' of another node"):
            await client.call(ASK, request, timeout=LONG)
        assert await cluster.ref("b", "far").ask(Add(0), timeout=LONG) == 0
        back = await cluster.ref("here").ask(Back(cluster.ref("b")), timeout=LONG)
        assert await back["same"].ask(Add(1), timeout=LONG) == 3


def test_b173_a_reference_is_neither_pickled_nor_copied_nor_used_unbound() -> None:
    ref = Ref("b")
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalProtocolError, match=r"Ref\('b'\) belongs to this process"):
            use(ref)
    with pytest.raises(LocalProtocolError, match="not bound to a node yet"):
        _ = ref.address
    assert repr(ref) == "Ref('b')"


# ------------------------------------------------------------------------------- B174: re-entrance


@pytest.mark.parametrize("names", [["a"], ["b", "a"], ["b", "c", "a"]])
async def test_b174_a_cycle_is_an_error_and_no_deadlock(node: Standing, names: list[str]) -> None:
    async with node.client() as client:
        begun = time.monotonic()
        with pytest.raises(LocalProtocolError, match="re-entrant"):
            await client.ref("a").ask(Round(names), timeout=LONG)
        within(begun)
        for name in "abc":
            assert isinstance(await client.ref(name).ask(Add(0), timeout=LONG), int)


# ------------------------------------------------------------------------------------ B176: limits


@pytest.mark.parametrize("limit", [0, -1, 0.0, -0.5, float("nan"), True, "1"])
async def test_b176_a_limit_that_is_none_is_refused(node: Standing, limit: Any) -> None:
    async with node.client() as client:
        a = client.ref("a")
        uses: list[Callable[[], Any]] = [
            lambda: client.call(ASK, {}, timeout=limit),
            lambda: a.ask(Add(1), timeout=limit),
            lambda: anext(a.stream(Add(1), timeout=limit)),
            lambda: anext(client.stream(ASK, {}, timeout=limit)),
            lambda: anext(client.stream(ASK, {}, gap_timeout=limit)),
            lambda: anext(client.stream(ASK, {}, first_item_timeout=limit)),
            lambda: client.open(ASK, timeout=limit).recv(),
        ]
        for use in uses:
            with pytest.raises(LocalProtocolError, match="seconds above 0, or None for none"):
                await use()


async def test_b176_slow_work_is_not_cut_and_nobody_is_told_soon(node: Standing) -> None:
    pause = 20 * TICK
    async with node.client(call_timeout=pause / 4, first_item_timeout=pause / 4) as client:
        slow, endless = {"pause": pause}, {"pause": 2 * LONG}
        calls = [
            client.call(ASK, slow, timeout=None),
            client.call(ASK, slow, timeout=float("inf")),
            client.ref("c").ask(Pause(pause), timeout=None),
            anext(client.stream(ASK, slow, timeout=None, first_item_timeout=None)),
        ]
        cut = [
            client.call(ASK, endless),
            client.ref("c").ask(Pause(2 * LONG)),
            anext(client.stream(ASK, endless)),
            anext(client.stream(ASK, endless, first_item_timeout=None, timeout=pause / 4)),
        ]
        whole = asyncio.gather(*calls)
        for each in await asyncio.gather(*cut, return_exceptions=True):
            assert isinstance(each, DeadlineExceeded), each
        assert len(await whole) == 4  # each of which took four times as long
        begun = time.monotonic()
        with pytest.raises(NoWorkers):
            await client.call("no.body.there", {}, timeout=None)
        within(begun)


# -------------------------------------------------------------------------------------- B177, B35


async def test_b177_what_is_told_is_handled_though_nobody_keeps_it(node: Standing) -> None:
    async with node.client() as client:
        before = await client.ref("c").ask(Add(0), timeout=LONG)
        for number in range(1000):
            await client.ref("c").tell(Add(1))
            if number % 10 == 0:
                gc.collect()
        assert await client.ref("c").ask(Add(0), timeout=LONG) == before + 1000


async def test_b35_a_forked_child_is_told_so_and_harms_nobody(node: Standing) -> None:
    async with node.client() as client:
        a = client.ref("a")
        async with a.stream(Fork(), timeout=LONG) as answers:
            told = (await anext(answers)).splitlines()
        assert [line.split(":")[0] for line in told] == ["ask", "tell", "call", "frame"]
        assert told.pop() == "frame: the arena is closed: its actor has stopped"
        for line in told:
            assert "LocalProtocolError" in line
            assert "of which this one is a fork" in line
        for _ in range(100):
            assert isinstance(await a.ask(Through(client.ref("b"), 1), timeout=LONG), int)
        assert a.address.pid == node.pids["a"]
