"""References to actors in real processes: tell, ask, stream, and what happens when they die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest

from actors import ActorSpec, CallHomeError, Cluster, EngineSpec, NodeSpec, Ref, Settings
from actors.errors import (
    ActorDead,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    EngineError,
    FrameReleased,
    LocalProtocolError,
    Overloaded,
    PeerLost,
    RemoteProtocolError,
    Unsupported,
)
from actors.kernel.ref import read_message, write_message
from tests.e2e.standing import Standing, inspect, standing, wait_returned
from tests.kernel.players import (
    COUNTER,
    HERE,
    LOUDER,
    MORTAL,
    OTHER,
    Add,
    CountTo,
    Crash,
    Fail,
    Give,
    Go,
    Race,
    Relay,
    Seen,
    Unknown,
    Wait,
)
from tests.waiting import LONG, TICK, wait_until

DOUBLE = EngineSpec(endpoint="t.double.go", engine=HERE + "double", name="double")


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(actors=[COUNTER, LOUDER, OTHER], engines=[DOUBLE])) as found:
        yield found


async def total(ref: Ref) -> int:
    found: int = await ref.ask(Add(0), timeout=LONG)
    return found


async def seen(ref: Ref) -> list[str]:
    async with ref.stream(Seen(), timeout=LONG) as answers:
        return [line async for answer in answers for line in answer]


# -------------------------------------------------------------------------------- tell, ask, stream


async def test_tells_arrive_in_order_and_before_a_later_ask(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        before = await total(counter)
        for amount in range(1000):
            await counter.tell(Add(amount))
        assert await total(counter) == before + sum(range(1000))


async def test_messages_are_handled_one_at_a_time(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        before = await total(counter)
        answers = await asyncio.gather(*[counter.ask(Race(), timeout=LONG) for _ in range(100)])
        assert sorted(answers) == [before + number for number in range(1, 101)]


async def test_a_handler_that_yields_is_a_stream(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        async with counter.stream(CountTo(1000), timeout=LONG) as numbers:
            assert [number async for number in numbers] == list(range(1000))
        ended = (await seen(counter)).count("count ended")
        async with counter.stream(CountTo(100_000), timeout=LONG) as numbers:
            async for number in numbers:
                if number == 3:
                    break

        async def gone() -> bool:
            return (await seen(counter)).count("count ended") == ended + 1

        await wait_until(gone, what="the handler of a stream that was left has ended")


async def test_a_subclass_replaces_a_handler(node: Standing) -> None:
    async with node.client() as client:
        louder = client.ref("louder")
        assert await louder.ask(Add(2), timeout=LONG) == 20
        async with louder.stream(CountTo(2), timeout=LONG) as numbers:
            assert [number async for number in numbers] == [0, 1]


async def test_any_value_goes_both_ways(node: Standing) -> None:
    array = np.arange(100_000, dtype="f4")
    async with node.client() as client:
        counter = client.ref("counter")
        value = {"a": [1, (2, b"x")], "none": None}
        assert await counter.ask(Give(value), timeout=LONG) == value
        back = await counter.ask(Give(array), timeout=LONG)
        assert np.array_equal(back, array)
        frame = client.frames.new(1000, "u1")
        frame.array[:] = 5
        assert (await counter.ask(Give(frame), timeout=LONG)).array.sum() == 5000
        del back, frame
        await wait_returned(client)


async def test_b174_actors_call_each_other_and_endpoints(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        before = await total(client.ref("other"))
        assert await counter.ask(Relay("other", 7), timeout=LONG) == before + 7
        assert await counter.ask(Relay("t.double.go", 21), timeout=LONG) == 42


# ----------------------------------------------------------------------------------------- failures


async def test_what_a_handler_raises_reaches_the_asker(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        with pytest.raises(EngineError, match="boom foreign") as failed:
            await counter.ask(Fail("foreign"), timeout=LONG)
        assert failed.value.remote_type == "ValueError"
        assert "in fail" in failed.value.remote_traceback
        with pytest.raises(Unsupported, match="not with me"):
            await counter.ask(Fail("ours"), timeout=LONG)
        await total(counter)


async def test_a_failing_tell_is_counted_and_kills_nobody(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        before = (await inspect(counter))["counters"].get("errors.engine.ValueError", 0)
        await counter.tell(Fail("told"))
        await total(counter)
        counters = (await inspect(counter))["counters"]
        assert counters["errors.engine.ValueError"] == before + 1
        assert counter.address.pid == node.pids["counter"]


async def test_messages_that_do_not_fit_are_typed_errors(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        with pytest.raises(Unsupported, match=r"handles no 'Unknown'.*Add, CountTo"):
            await counter.ask(Unknown(), timeout=LONG)
        with pytest.raises(RemoteProtocolError, match="'amount' of Add is int, not str"):
            await counter.ask(Add("one"), timeout=LONG)  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="NamedTuple, not tuple"):
            await counter.ask((1,), timeout=LONG)
        with pytest.raises(EncodeError, match="object"):
            await counter.ask(Give(object()), timeout=LONG)
        with pytest.raises(EncodeError, match=r"Give.*object"):
            await counter.tell(Give([object()]))
        await total(counter)


async def test_what_a_tell_carries_is_copied(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        frame = client.frames.new(100_000, "u1")
        await counter.tell(Give({"frame": frame, "array": np.zeros(100_000)}))
        await total(counter)
        assert (await inspect(counter))["counters"]["memory.slots"] == 0
        with pytest.raises(FrameReleased):
            await counter.tell(Give(frame))
        del frame
        await wait_returned(client)


async def test_an_ask_that_runs_out_of_time_cancels_its_handler(node: Standing) -> None:
    async with node.client() as client:
        other = client.ref("other")
        first = (await seen(other)).count("waiting")
        limit = TICK
        while (begun := (await seen(other)).count("waiting")) == first:
            limit *= 2  # it was over before the handler had begun
            with pytest.raises(DeadlineExceeded):
                await other.ask(Wait(), timeout=limit)
        assert await total(other) >= 0  # the mailbox goes on
        assert (await seen(other)).count("wait cancelled") == begun
        task = asyncio.create_task(other.ask(Wait(), timeout=LONG))

        async def waits() -> bool:
            return (await seen(other)).count("waiting") == begun + 1

        await wait_until(waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await total(other) >= 0
        assert (await seen(other)).count("wait cancelled") == begun + 1


# ------------------------------------------------------------------------------------------- deaths


async def test_a_ref_survives_the_crash_of_its_actor() -> None:
    async with Cluster(NodeSpec(actors=[COUNTER])) as cluster, cluster.client() as client:
        counter = client.ref("counter")
        assert await counter.ask(Add(1), timeout=LONG) == 101
        first = counter.address
        with pytest.raises(PeerLost, match="exit code 3"):
            await counter.ask(Crash(), timeout=LONG)
        assert await answers(counter) == 100
        assert counter.address.pid != first.pid
        async with counter.stream(CountTo(3), timeout=LONG) as numbers:
            assert [number async for number in numbers] == [0, 1, 2]
        assert await cluster.ref("counter").ask(Add(1), timeout=LONG) == 101


async def answers(ref: Ref) -> int:
    """The total, once the actor is back."""
    found: list[int] = []

    async def asked() -> bool:
        with suppress(ConnectionLost):
            found.append(await total(ref))
        return bool(found)

    await wait_until(asked, what="the actor is back")
    return found[0]


async def test_the_dead_and_the_never_born_are_known_at_once() -> None:
    async with Cluster(NodeSpec(actors=[MORTAL])) as cluster, cluster.client() as client:
        await fails_at_once(client.ref("nobody"), "no actor 'nobody' is alive.*mortal")
        mortal = client.ref("mortal")
        with pytest.raises(PeerLost, match="exit code 3"):
            await mortal.ask(Crash(), timeout=LONG)

        async def dead() -> bool:
            try:
                await total(mortal)
            except ActorDead:
                return True
            except CallHomeError:
                return False
            return False

        await wait_until(dead)
        await fails_at_once(mortal, "no actor 'mortal' is alive")
        await fails_at_once(cluster.ref("mortal"), "no actor 'mortal' is alive")


async def fails_at_once(ref: Ref, text: str) -> None:
    """Asks, tells and streams of a dead actor raise ActorDead, and wait for no limit of theirs."""
    async with asyncio.timeout(LONG):
        with pytest.raises(ActorDead, match=text):
            await ref.ask(Add(1))
        with pytest.raises(ActorDead, match=text):
            await ref.tell(Add(1))
        with pytest.raises(ActorDead, match=text):
            async with ref.stream(CountTo(1)):
                pytest.fail("a stream of the dead was opened")


async def test_what_waits_in_a_mailbox_fails_with_its_actor() -> None:
    async with Cluster(NodeSpec(actors=[MORTAL])) as cluster, cluster.client() as client:
        mortal = client.ref("mortal")
        asks = [asyncio.create_task(mortal.ask(Wait(), timeout=LONG)) for _ in range(5)]
        await wait_until(lambda: waiting(mortal))
        async with mortal.stream(Go(), timeout=LONG) as go:
            assert [item async for item in go] == [True]
        assert await asyncio.gather(*asks) == ["went on"] * 5
        crash = asyncio.create_task(mortal.ask(Crash(), timeout=LONG))
        behind = [asyncio.create_task(mortal.ask(Add(1), timeout=LONG)) for _ in range(5)]
        for each in await asyncio.gather(crash, *behind, return_exceptions=True):
            assert isinstance(each, PeerLost)


async def waiting(ref: Ref) -> bool:
    return "waiting" in await seen(ref)


async def test_an_actor_in_the_callers_process_is_no_different() -> None:
    here = ActorSpec("here", actor=HERE + "Counter", place="here")
    async with Cluster(NodeSpec(actors=[here, COUNTER])) as cluster, cluster.client() as client:
        ref = client.ref("here")
        for _ in range(10):
            await ref.tell(Add(1))
        assert await ref.ask(Add(0), timeout=LONG) == 10
        with pytest.raises(EngineError, match="boom"):
            await ref.ask(Fail("foreign"), timeout=LONG)
        async with ref.stream(CountTo(300), timeout=LONG) as numbers:
            assert [number async for number in numbers] == list(range(300))
        assert await client.ref("counter").ask(Relay("here", 5), timeout=LONG) == 15
        assert await ref.ask(Relay("counter", 5), timeout=LONG) == 105
        with pytest.raises(EncodeError):
            await ref.ask(Give(object()), timeout=LONG)


# -------------------------------------------------------------------------------- bounded mailboxes


async def test_a_full_mailbox_refuses_asks_and_loses_no_tell() -> None:
    spec = NodeSpec(actors=[COUNTER, OTHER], settings=Settings.load(mailbox=4))
    async with Cluster(spec) as cluster, cluster.client() as client:
        counter = client.ref("counter")
        asks = [counter.ask(Add(1), timeout=LONG) for _ in range(12)]  # one batch: read in one go
        found = await asyncio.gather(*asks, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Overloaded)]
        done = [each for each in found if isinstance(each, int)]
        assert len(refused) + len(done) == 12
        assert len(done) >= 4
        assert refused
        assert "mailbox of counter is full" in str(refused[0])
        before = await total(counter)
        assert before == 100 + len(done)
        for _ in range(2000):
            await counter.tell(Add(1))
        assert await total(counter) == before + 2000


async def test_a_full_mailbox_whose_handler_asks_another_does_not_deadlock() -> None:
    spec = NodeSpec(actors=[COUNTER, OTHER], settings=Settings.load(mailbox=2))
    async with Cluster(spec) as cluster, cluster.client() as client:
        counter = client.ref("counter")
        for _ in range(50):
            await counter.tell(Relay("other", 1))

        async def relayed() -> bool:
            return await total(client.ref("other")) == 150

        await wait_until(relayed, what="50 messages went through")
        assert await total(counter) == 100


# --------------------------------------------------------------------------------- messages as data


class Typed(NamedTuple):
    number: int
    ratio: float
    flag: bool
    many: list[int]
    other: Any = None


def test_a_message_is_its_name_and_fields() -> None:
    assert write_message(Add(1, "x")) == ("Add", [1, "x"])
    assert read_message([1, "x"], Add) == Add(1, "x")
    assert read_message([1], Add) == Add(1)
    assert read_message([1, 2, True, [3]], Typed) == Typed(1, 2, True, [3])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "has 2 fields"),
        ([1, "", 3], "has 2 fields"),
        (["1"], "'amount' of Add is int, not str"),
        ([True], "'amount' of Add is int, not bool"),
        ([1, b""], "'note' of Add is str, not bytes"),
        (None, "without its fields"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: Any, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read_message(fields, Add)


@pytest.mark.parametrize("message", [None, (1, 2), "text", {"a": 1}])
def test_only_named_tuples_are_messages(message: Any) -> None:
    with pytest.raises(LocalProtocolError, match="a message is a NamedTuple"):
        write_message(message)


async def test_a_cancelled_wait_in_a_full_queue_is_cancelled(node: Standing) -> None:
    async with node.client() as client:
        stream = client.ref("other").stream(CountTo(10_000), timeout=LONG)
        async with stream:
            assert await anext(stream) == 0
        with pytest.raises(Cancelled):
            await anext(stream)
