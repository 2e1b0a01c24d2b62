"""Frames that are handed on: no copy is made on the way, each arrives whole, every lease comes
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import Client, Frame, NodeSpec
from tests.e2e.forwarding_engines import ALL, number_of, stamped
from tests.e2e.standing import Standing, standing
from tests.waiting import wait_until

MAKER, RELAY, SECOND, LEAF, COUNT = "f.maker.go", "f.relay.go", "f.second.go", "f.leaf.go", "f.count.go"
MIB = 1 << 20
SIZE = 300 << 10


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(engines=ALL)) as found:
        yield found


async def memory(client: Client, endpoint: str) -> dict[str, Any]:
    found: dict[str, Any] = await client.call(endpoint, {"do": "memory"}, timeout=10.0)
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
            value = await client.call(RELAY, {"do": "echo", "value": frame}, timeout=10.0)
            assert type(value) is Frame
            assert number_of(value.array) == number
            assert np.shares_memory(value.array, frame.array)
            del value, frame
        assert (await memory(client, RELAY))["passed"] == 0
        await wait_all_back(client)


async def test_frames_are_handed_on_in_requests_and_request_items(node: Standing) -> None:
    async with node.client() as client:
        for number in range(5):
            frames = [stamped(client.frames.new(SIZE, "u1"), number), np.zeros(SIZE, "u1")]
            request = {"do": "send", "to": LEAF, "frames": frames}
            answer = await client.call(RELAY, request, timeout=10.0)
            assert answer == {"numbers": [number, -1]}
        request = {"do": "feed", "to": COUNT, "by": [MAKER], "n": 20, "size": SIZE}
        async with client.stream(RELAY, request, timeout=20.0) as answers:
            assert [each async for each in answers] == list(range(20))
        del frames, request
        assert (await memory(client, RELAY))["allocated"] == 0
        await wait_all_back(client)
