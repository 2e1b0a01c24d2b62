"""Endpoints with a payload adapter: they read bytes, and give back shared memory that comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors import NodeSpec
from actors.errors import Unsupported
from tests.e2e.engines import LETTERS, MORE_LETTERS, SPELLED
from tests.e2e.standing import Standing, standing, wait_idle, wait_returned
from tests.e2e.watching import inspect
from tests.waiting import DEADLINE

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(engines=[LETTERS, MORE_LETTERS, SPELLED])) as found:
        yield found


@pytest.mark.parametrize("endpoint", ["t.letters.go", "t.letters.sync"])
async def test_a_request_in_shared_memory_is_refused_and_comes_back(
    node: Standing, endpoint: str
) -> None:
    async with node.client(arena_step="4 MiB", arena_limit="4 MiB") as client:
        for number in range(12):  # beyond what the arena holds
            big: list[Any] = [
                client.frames.new(MIB, "uint8"), bytes(MIB), {"in": np.zeros(MIB, "uint8")},
            ]  # fmt: skip
            with pytest.raises(Unsupported, match=rf"{endpoint} has a payload adapter.*no frames"):
                await client.call(endpoint, big[number % 3], timeout=DEADLINE)
            del big
            await wait_returned(client)
        await wait_idle(client)


async def test_the_same_for_an_item_of_a_stream_of_requests(node: Standing) -> None:
    async with node.client() as client:
        for kind in ("array", "frame"):
            big: Any = np.zeros(100 * KIB, "uint8")
            async with client.open("t.letters.both", timeout=DEADLINE) as stream:
                await stream.send(big if kind == "array" else client.frames.copy(big))
                with pytest.raises(Unsupported, match=r"t\.letters\.both has a payload adapter"):
                    await stream.recv()
            await wait_returned(client)
        await wait_idle(client)
        counters = (await inspect(client, "spelled"))["counters"]
        assert counters["errors.unsupported"] == 2


async def test_what_a_reader_without_our_memory_gets_in_line_is_refused_too(node: Standing) -> None:
    async with node.client() as client:
        memory, engine = client.runtime.memory, client.ref("spelled").address.incarnation
        memory.needs(engine)  # nothing so far; from here on it is a peer that is known
        memory.mark(engine, 1, False)
        async with client.open("t.letters.both", timeout=DEADLINE) as stream:
            await stream.send(np.zeros(100 * KIB, "uint8"))
            with pytest.raises(Unsupported, match="payload adapter"):
                await stream.recv()
        await wait_returned(client)
