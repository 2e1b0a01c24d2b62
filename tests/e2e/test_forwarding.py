"""Frames that are handed on: no copy is made on the way, each arrives whole, every lease comes
back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import Client, Frame, NodeSpec, Settings
from actors.errors import CallHomeError, EngineError, PeerLost, StaleHandle
from tests.e2e.forwarding_engines import ALL, FOUR, number_of, stamped
from tests.e2e.standing import Standing, standing
from tests.waiting import DEADLINE, LONG, wait_until

MAKER, RELAY, SECOND = "f.maker.go", "f.relay.go", "f.second.go"
LEAF, COUNT = "f.leaf.go", "f.count.go"
MIB = 1 << 20
SIZE = 300 << 10


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(engines=ALL)) as found:
        yield found


async def memory(client: Client, endpoint: str) -> dict[str, Any]:
    found: dict[str, Any] = await client.call(endpoint, {"do": "memory"}, timeout=DEADLINE)
    return found


async def wait_all_back(client: Client) -> None:
    """Wait until nobody lends, borrows or holds anything for somebody else."""
    own = client.runtime.memory

    async def back() -> bool:
        client.runtime.links.send_releases()
        if own.statistics().slots or len(own.passing):
            return False
        if any(each.frames or each.expected for each in own.reading.borrowed()):
            return False
        told = [await memory(client, each) for each in (MAKER, RELAY, SECOND, LEAF)]
        return not any(
            each["slots"] or each["passed"] or each["borrowed"] or each["lent"] for each in told
        )

    await wait_until(back, what="every lease is back")


@pytest.mark.parametrize("by", [[MAKER], [SECOND, MAKER]])
async def test_frames_pass_through_actors_whole_and_without_a_copy(
    node: Standing, by: list[str]
) -> None:
    async with node.client() as client:
        numbers = []
        async with client.stream(RELAY, {"do": "pass", "by": by, "n": 40, "size": SIZE}) as items:
            async for item in items:
                assert type(item) is Frame
                numbers.append(number_of(item.array))
                del item
        assert numbers == list(range(40))
        for each in (RELAY, SECOND):
            assert (await memory(client, each))["allocated"] == 0
        await wait_all_back(client)


async def test_a_frame_can_be_handed_on_several_times_at_once(node: Standing) -> None:
    async with node.client() as client:
        seen: list[Any] = []
        request = {"do": "twice", "by": [MAKER], "n": 5, "size": SIZE}
        async with client.stream(RELAY, request) as one, client.stream(RELAY, request) as other:
            async for item in one:
                seen.append(item)
            async for item in other:
                seen.append(item)
        for first, second in zip(seen[::2], seen[1::2], strict=True):
            number = number_of(first)
            assert number >= 0
            assert number_of(second[0]) == number_of(second[1]["again"]) == number
            assert np.array_equal(second[2], first[1:])
        del seen, first, second, item
        await wait_all_back(client)


async def test_a_frame_that_goes_back_to_its_owner_is_not_copied(node: Standing) -> None:
    async with node.client() as client:
        for number in range(5):
            frame = stamped(client.frames.new(SIZE, "u1"), number)
            value = await client.call(RELAY, {"do": "echo", "value": frame}, timeout=DEADLINE)
            assert type(value) is Frame
            assert number_of(value.array) == number
            assert np.shares_memory(value.array, frame.array)
            del value, frame
        assert (await memory(client, RELAY))["passed"] == 0
        request = {"do": "return", "by": [MAKER], "n": 5, "size": SIZE}
        async with client.stream(RELAY, request) as answers:
            assert [each async for each in answers] == [[number, True] for number in range(5)]
        await wait_all_back(client)


async def test_frames_are_handed_on_in_requests_and_request_items(node: Standing) -> None:
    async with node.client() as client:
        for number in range(5):
            frames = [stamped(client.frames.new(SIZE, "u1"), number), np.zeros(SIZE, "u1")]
            sent = {"do": "send", "to": LEAF, "frames": frames}
            answer = await client.call(SECOND, sent, timeout=DEADLINE)
            assert answer == {"numbers": [number, -1]}
        request: dict[str, Any] = {"do": "feed", "to": COUNT, "by": [MAKER], "n": 20, "size": SIZE}
        async with client.stream(SECOND, request, timeout=LONG) as answers:
            assert [each async for each in answers] == list(range(20))
        del frames, sent
        assert (await memory(client, SECOND))["allocated"] == 0
        await wait_all_back(client)


async def test_b05_a_thousand_frames_through_two_hands_come_whole_and_all_go_back(
    node: Standing,
) -> None:
    async with node.client() as client:
        kept: list[Any] = []
        request = {"do": "pass", "by": [SECOND, MAKER], "n": 100, "size": SIZE}
        async with client.stream(RELAY, request, timeout=2 * LONG) as items:
            assert [number_of(each.array) async for each in items] == list(range(100))
        before = (await memory(client, RELAY))["anonymous"]
        request["n"] = 1000
        expected = 0
        async with client.stream(RELAY, request, timeout=2 * LONG) as items:
            async for item in items:
                assert number_of(item.array) == expected
                if expected < 4:
                    kept.append(item.array)  # its slot must not be used again
                expected += 1
                del item
        assert expected == 1000
        assert [number_of(each) for each in kept] == [0, 1, 2, 3]
        kept.clear()
        assert (await memory(client, RELAY))["anonymous"] < before + 8 * MIB
        await wait_all_back(client)


async def test_a_stream_that_is_left_gives_back_what_was_handed_on(node: Standing) -> None:
    async with node.client() as client:
        request = {"do": "pass", "by": [SECOND, MAKER], "n": 1000, "size": SIZE}
        for count in (0, 1, 7):
            async with client.stream(RELAY, request) as items:
                while count:
                    assert number_of((await items.__anext__()).array) >= 0
                    count -= 1
        frames = [stamped(client.frames.new(SIZE, "u1"), 1)]
        ask = {"do": "ask", "to": LEAF, "part": "hold", "frames": frames, "after": 0.2}
        assert await client.call(SECOND, ask, timeout=DEADLINE) == "left"
        frames = [stamped(client.frames.new(SIZE, "u1"), 1)]
        with pytest.raises(EngineError, match="no"):
            await client.call(SECOND, ask | {"part": "fail", "frames": frames}, timeout=DEADLINE)
        del frames, ask
        await wait_all_back(client)


async def next_pid(client: Client, endpoint: str, gone: int) -> None:
    """Wait until another process than ``gone`` serves ``endpoint``."""

    async def served() -> bool:
        try:
            pid: int = (await memory(client, endpoint))["pid"]
        except CallHomeError:
            return False
        return pid != gone

    await wait_until(served, timeout=LONG, what=f"{endpoint} is served again")


async def test_b02_b23_whoever_dies_or_stops_on_the_way_the_others_get_everything_back() -> None:
    settings = Settings.load(max_restarts=100)
    with standing(NodeSpec(engines=FOUR, settings=settings)) as mortal:
        async with mortal.client() as client:
            for who in (MAKER, SECOND, RELAY):
                await one_is_killed(client, who)
            await wait_all_back(client)
            await one_is_stopped(client, MAKER, 1.2)  # longer than anybody waits for an answer
            await one_is_stopped(client, RELAY, 0.3)
            await the_reader_is_stopped(client)
            await the_reader_is_killed(client)


async def one_is_killed(client: Client, who: str) -> None:
    """What has arrived stays whole, the stream ends in an error, and all leases come back."""
    pid = (await memory(client, who))["pid"]
    request = {"do": "pass", "by": [SECOND, MAKER], "n": 1000, "size": SIZE}
    seen: list[Any] = []
    error: CallHomeError | None = None
    try:
        async with client.stream(RELAY, request, timeout=LONG) as items:
            async for item in items:
                seen.append(item.array)
                del item
                if len(seen) == 20:
                    os.kill(pid, signal.SIGKILL)
                if len(seen) > 40:
                    seen[:20] = []
    except CallHomeError as failure:
        error = failure.with_traceback(None)
    assert isinstance(error, PeerLost | EngineError | StaleHandle), error
    numbers = [number_of(each) for each in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    seen.clear()
    error = None
    await next_pid(client, who, pid)


async def one_is_stopped(client: Client, who: str, seconds: float) -> None:
    """Across the hand-over; nothing is lost."""
    pid = (await memory(client, who))["pid"]
    request = {"do": "pass", "by": [MAKER], "n": 60, "size": SIZE}
    numbers = []
    async with client.stream(RELAY, request, timeout=LONG) as items:
        async for item in items:
            numbers.append(number_of(item.array))
            del item
            if len(numbers) == 10:
                os.kill(pid, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(seconds, os.kill, pid, signal.SIGCONT)
    assert numbers == list(range(60))
    await wait_all_back(client)


async def the_reader_is_stopped(client: Client) -> None:
    """Before it has seen the frame, which waits for it."""
    pid = (await memory(client, LEAF))["pid"]
    sent = {"do": "send", "to": LEAF, "frames": [stamped(client.frames.new(SIZE, "u1"), 3)]}
    os.kill(pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(1.2, os.kill, pid, signal.SIGCONT)
    assert await client.call(SECOND, sent, timeout=LONG) == {"numbers": [3]}
    del sent
    await wait_all_back(client)


async def the_reader_is_killed(client: Client) -> None:
    """While it looks at what it was handed."""
    pid = (await memory(client, LEAF))["pid"]
    frames = [stamped(client.frames.new(SIZE, "u1"), 1)]
    ask = {"do": "ask", "to": LEAF, "part": "hold", "frames": frames, "after": 120.0}
    call = asyncio.ensure_future(client.call(SECOND, ask, timeout=LONG))

    async def held() -> bool:
        return bool((await memory(client, LEAF))["borrowed"])

    await wait_until(held, what="the reader has the frame")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CallHomeError):
        await call
    del frames, ask, call
    await next_pid(client, LEAF, pid)
    await wait_all_back(client)


async def test_between_nodes_bytes_go_and_every_lease_comes_back() -> None:
    with standing(NodeSpec(engines=FOUR), "nodes") as far:
        async with far.client() as client:
            numbers = []
            request = {"do": "pass", "by": [MAKER], "n": 20, "size": SIZE}
            async with client.stream(RELAY, request, timeout=LONG) as items:
                async for item in items:
                    numbers.append(number_of(item.array))
                    # What came is in memory of the router here, and goes out through it again.
                    sent = {"do": "send", "to": LEAF, "frames": [item]}
                    answer = await client.call(SECOND, sent, timeout=DEADLINE)
                    assert answer == {"numbers": [numbers[-1]]}
                    del item, sent
            assert numbers == list(range(20))
            await wait_all_back(client)
