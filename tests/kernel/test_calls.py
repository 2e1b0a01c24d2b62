"""Callers of a node: what a closed client says, and what comes back when a caller goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actors import EngineSpec, NodeSpec
from actors.errors import LocalProtocolError
from tests.e2e.standing import Standing, standing
from tests.kernel.players import COUNTER, HERE, OTHER, Add
from tests.waiting import TICK

DOUBLE = EngineSpec(endpoint="t.double.go", engine=HERE + "double", name="double")


@pytest.fixture(scope="module")
def node() -> Iterator[Standing]:
    with standing(NodeSpec(actors=[COUNTER, OTHER], engines=[DOUBLE])) as found:
        yield found


async def test_a_closed_client_says_so_at_once(node: Standing) -> None:
    async with node.client() as client:
        counter = client.ref("counter")
        assert await client.call("t.double.go", 4, timeout=5.0) == 8
        frame = client.frames.new(100_000, "u1")
    async with asyncio.timeout(10 * TICK):
        with pytest.raises(LocalProtocolError, match="is closed"):
            await client.call("t.double.go", 4)
        with pytest.raises(LocalProtocolError, match="is closed"):
            await client.call("t.double.go", frame)
        with pytest.raises(LocalProtocolError, match="is closed"):
            await anext(client.stream("t.double.go", 4))
        with pytest.raises(LocalProtocolError, match="is closed"):
            await counter.ask(Add(1))
        with pytest.raises(LocalProtocolError, match="is closed"):
            await counter.tell(Add(1))
    assert client.runtime.home.streams == {}
