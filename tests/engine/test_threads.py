"""Generators in threads: order, how far ahead, closing, failures, what is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors.engine.threads import SyncItems, Threads
from tests.waiting import DEADLINE, LONG, TICK, wait_until
from transport.context import Context
from transport.payload import Encoded, encode_payload
from transport.wire.codec import decode

THREADS = Threads("tested")
"""Its threads are daemons that wait for the next generator; one set of them serves all tests."""


@pytest.fixture(scope="module", autouse=True)
def started_threads() -> None:
    """Start as many threads as the tests need at once, so that none appears within a test."""

    async def run() -> None:
        gate = threading.Event()

        def wait() -> Iterator[int]:
            gate.wait(LONG)
            yield 1

        made = [items(wait) for _ in range(4)]
        asked = [asyncio.create_task(anext(each)) for each in made]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*asked)
        for each in made:
            await each.aclose()

    asyncio.run(run())


def items(
    make: Callable[[], Iterator[Any]],
    context: Context | None = None,
    dropped: list[Any] | None = None,
) -> SyncItems:
    return SyncItems(
        make,
        context or Context("test"),
        THREADS,
        lambda item: encode_payload(item),
        "msgpack",
        (dropped if dropped is not None else []).append,
    )


def value(encoded: Encoded) -> Any:
    return decode(encoded.data)


async def test_items_come_in_order_from_a_thread() -> None:
    def numbers() -> Iterator[Any]:
        for number in range(1000):
            yield [number, threading.current_thread() is threading.main_thread()]

    found = [value(each) async for each in items(numbers)]
    assert found == [[number, False] for number in range(1000)]


async def test_an_item_is_encoded_before_the_generator_is_resumed() -> None:
    def mutating() -> Iterator[Any]:
        item = {"n": 0, "more": bytearray(1)}
        for number in range(200):
            item["n"] = number
            item["more"][0] = number  # type: ignore[index]
            yield item

    source = items(mutating)
    await anext(source)
    await asyncio.sleep(TICK / 2)  # let it run as far ahead as it can
    encoded = [each async for each in source]
    assert [decode(each.data, restore=lambda o: o.data) for each in encoded] == [
        {"n": number, "more": bytes([number])} for number in range(1, 200)
    ]


async def test_a_generator_is_not_far_ahead_of_its_reader() -> None:
    made: list[int] = []

    def endless() -> Iterator[int]:
        for number in range(10**9):
            made.append(number)
            yield number

    source = items(endless)
    assert value(await anext(source)) == 0
    await wait_until(lambda: len(made) >= 64)
    await asyncio.sleep(TICK / 2)
    assert len(made) <= 67
    for number in range(1, 500):
        assert value(await anext(source)) == number
    await source.aclose()


async def test_a_generator_of_large_items_is_not_many_bytes_ahead() -> None:
    made: list[int] = []

    def endless() -> Iterator[bytes]:
        for number in range(10**9):
            made.append(number)
            yield bytes(400_000)

    source = items(endless)
    for number in range(20):
        await anext(source)
        await asyncio.sleep(TICK / 10)
        assert len(made) <= number + 1 + 3 + 1  # 1 MiB, and one that waits for room
    await source.aclose()


async def test_closing_runs_finally_in_the_thread_and_waits_for_it() -> None:
    ended: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append(threading.current_thread().name)

    source = items(endless)
    await anext(source)
    await source.aclose()
    assert len(ended) == 1
    assert ended[0].startswith("tested sync")
    await source.aclose()  # once more changes nothing
    assert len(ended) == 1


async def test_what_was_ready_is_dropped_at_the_close() -> None:
    dropped: list[Any] = []

    def numbers() -> Iterator[int]:
        yield from range(1000)

    source = items(numbers, dropped=dropped)
    first = await anext(source)
    second = await anext(source)
    await source.aclose()
    assert value(first) == 0
    assert dropped[0] is second  # its taker may not have got round to sending it
    assert [value(each) for each in dropped] == list(range(1, len(dropped) + 1))


async def test_a_generator_that_was_never_asked_never_runs() -> None:
    ran: list[int] = []

    def never() -> Iterator[int]:
        ran.append(1)
        yield 1

    source = items(never)
    await source.aclose()
    assert ran == []


async def test_a_failure_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("boom")

    source = items(failing)
    assert [value(await anext(source)), value(await anext(source))] == [1, 2]
    with pytest.raises(ValueError, match="boom"):
        await anext(source)
    with pytest.raises(StopAsyncIteration):
        await anext(source)
    await source.aclose()


async def test_a_failure_of_the_first_step_is_no_hang() -> None:
    def make() -> Iterator[int]:
        raise ValueError("no generator at all")

    with pytest.raises(ValueError, match="no generator"):
        await asyncio.wait_for(anext(items(make)), DEADLINE)


async def test_an_item_that_cannot_be_encoded_fails_in_its_place() -> None:
    from transport.errors import EncodeError

    closed: list[bool] = []

    def bad() -> Iterator[Any]:
        try:
            yield 1
            yield object()
            yield 3
        finally:
            closed.append(True)

    source = items(bad)
    assert value(await anext(source)) == 1
    with pytest.raises(EncodeError, match="object"):
        await anext(source)
    await source.aclose()
    assert closed == [True]


async def test_a_killed_context_ends_a_generator_that_waits_for_room() -> None:
    context = Context("killed")

    def endless() -> Iterator[int]:
        while True:
            yield 1

    source = items(endless, context)
    await anext(source)
    context.kill("not wanted")
    await asyncio.wait_for(source.aclose(), DEADLINE)


async def test_a_place_stays_taken_until_its_thread_returns() -> None:
    gate = threading.Event()

    def stuck() -> Iterator[int]:
        yield 1
        gate.wait(LONG)
        yield 2

    source = items(stuck)
    await anext(source)
    closing = asyncio.create_task(source.aclose())
    await asyncio.sleep(0)
    closing.cancel()  # a second cancel must not free the place either
    done, _ = await asyncio.wait([closing], timeout=TICK)
    assert not done
    gate.set()
    await asyncio.wait_for(closing, DEADLINE)


async def test_generators_run_beside_each_other() -> None:
    gate = threading.Event()

    def slow() -> Iterator[int]:
        gate.wait(LONG)
        yield 1

    def quick() -> Iterator[int]:
        yield 2

    slow_items = items(slow)
    waiting = asyncio.create_task(anext(slow_items))
    await asyncio.sleep(0)
    assert [value(each) async for each in items(quick)] == [2]
    assert not waiting.done()
    gate.set()
    assert value(await waiting) == 1
    await slow_items.aclose()
