"""A client's life: unused, entered, closed; its name and its loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec
from actors.errors import LocalProtocolError, SpecError
from actors.messages import Inspect

ECHO = EngineSpec("test.echo.one", engine="tests.cluster.workers:Echo")


async def _call(client: Client) -> Any:
    return await client.call("test.echo.one", 1, timeout=60.0)


USES: dict[str, Callable[[Client], Any]] = {
    "stream": lambda client: client.stream("test.echo.one", 1),
    "named stream": lambda client: client.stream("a.b.c", request_id="x", codec="json"),
    "open": lambda client: client.open("test.echo.one"),
    "frames": lambda client: client.frames.new(3, "u1"),
    "ref": lambda client: client.ref("router"),
    "records": lambda client: client.records(),
    "cancel": lambda client: client.cancel("some id"),
}


@pytest.mark.parametrize("use", USES)
def test_a_client_before_its_block_says_what_to_do(use: str) -> None:
    with pytest.raises(LocalProtocolError, match="inside its block"):
        USES[use](Client(run="/nowhere"))


async def test_a_call_before_the_block_says_what_to_do() -> None:
    client = Client(run="/nowhere")
    with pytest.raises(LocalProtocolError, match="inside its block"):
        await _call(client)
    with pytest.raises(LocalProtocolError, match="inside its block"):
        await client.call("a.b.c", timeout=None, request_id="x", codec="json")
    client.close()


@pytest.mark.parametrize("name", ["", ".x", "../../../x", "a/b", "a\0b", "x" * 81, "\u00e9", 5])
def test_a_name_that_cannot_be_a_socket_is_refused(name: Any) -> None:
    with pytest.raises(SpecError, match=r"Client\.name: .*1 to 80 letters"):
        Client(run="/nowhere", name=name)


async def test_a_client_is_used_on_the_loop_that_entered_it() -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster, cluster.client(name="named") as client:
        assert [file for file in os.listdir(cluster.nodes[0].folder) if file.startswith("named.")]

        async def elsewhere() -> None:
            with pytest.raises(LocalProtocolError, match="another event loop"):
                await _call(client)
            with pytest.raises(LocalProtocolError, match="another event loop"):
                await client.ref("router").tell(Inspect())
            with pytest.raises(LocalProtocolError, match="another event loop"):
                async with client.stream("test.echo.one", 1):
                    pass

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await _call(client) == 1
