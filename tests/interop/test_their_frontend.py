"""The HTTP frontend of Dynamo's wheel before our ingress: its requester of two-way streams.

Its Python client has no call for them. The frontend has: a WebSocket at ``/v1/realtime`` becomes a
two-way request to the worker of a model. The card that names our endpoint as one is written here;
it is nothing that callhome has.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from actors import Client, EngineSpec, NodeSpec, Settings
from tests.e2e.standing import Standing, inspect, standing, wait_idle
from tests.interop.engines import HERE
from tests.interop.websocket import WebSocket, connected
from tests.interop.wheel import Meeting, needs_wheel, program
from tests.ports import free_address
from tests.waiting import LONG, wait_until_sync

pytestmark = [needs_wheel, pytest.mark.timeout(300)]

ENDPOINT = "interop.realtime.converse"
MODEL = "callhome-realtime"
PATH = "/v1/realtime"


def write_card(folder: Path) -> Path:
    """Tell Dynamo that our endpoint serves a realtime model; the path of the card."""
    (record,) = (folder / "v1" / "instances").iterdir()
    instance = json.loads(record.read_text())["instance_id"]
    namespace, component, endpoint = ENDPOINT.split(".")
    card: dict[str, Any] = {
        "display_name": MODEL,
        "slug": MODEL,
        "model_info": None,
        "tokenizer": None,
        "context_length": 0,
        "kv_cache_block_size": 0,
        "migration_limit": 0,
        "model_type": "Realtime",
        "model_input": "Text",
        "worker_type": "aggregated",
        "needs": [],
        "runtime_config": {},
    }
    text = json.dumps(
        {
            "type": "Model",
            "namespace": namespace,
            "component": component,
            "endpoint": endpoint,
            "instance_id": instance,
            "card_json": card,
        }
    )
    cards = folder / "v1" / "mdc"
    cards.mkdir()
    draft = folder / "card"
    draft.write_text(text)
    return draft.rename(cards / record.name)


Frontend = tuple[Standing, int, Path]


@pytest.fixture(scope="module", params=["msgpack", "json"])
def frontend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Frontend]:
    """A node of ours, the frontend, and its port; they share a folder."""
    folder = tmp_path_factory.mktemp("records")
    spec = NodeSpec(
        engines=[EngineSpec(endpoint=ENDPOINT, engine=HERE + "Converse")],
        listen="127.0.0.1:0",
        directory=str(folder),
        settings=Settings.load(codec=request.param),
    )
    port = int(free_address().rpartition(":")[2])
    with standing(spec) as node:
        card = write_card(folder)
        with program("frontend", Meeting(str(folder)), request.param, str(port)):
            touch_until_listed(card, port)
            yield node, port, card


def touch_until_listed(card: Path, port: int) -> None:
    """Wait until the frontend serves our model."""

    def listed() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                return MODEL in answer.read().decode()
        except OSError:
            return False

    wait_until_sync(listed, LONG, "the frontend lists our model")


@asynccontextmanager
async def session(frontend: Frontend) -> AsyncIterator[tuple[Client, WebSocket]]:
    """A two-way stream through the frontend, its first event answered; afterwards none is open."""
    node, port, card = frontend
    os.utime(card)  # who reads the folder drops what is older than ten seconds
    async with node.client() as own:
        async with connected(port, PATH) as socket:
            created = await socket.receive()
            assert created is not None
            assert created["type"] == "session.created"
            update = {"type": "session.update", "session": {"type": "realtime", "model": MODEL}}
            await socket.send(update)
            assert (await heard(socket)) == "1:session.update:0"
            yield own, socket
        await wait_idle(own)


async def heard(socket: WebSocket) -> str:
    """The text of the next event, which must be one of our engine's."""
    message = await socket.receive()
    assert message is not None
    assert message["type"] == "response.output_text.delta", message
    return str(message["delta"])


def audio(size: int) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": "A" * size}


async def test_items_go_both_ways_while_the_stream_is_open(frontend: Frontend) -> None:
    async with session(frontend) as (_, socket):
        for number in range(2, 102):
            await socket.send(audio(number))
            assert await heard(socket) == f"{number}:input_audio_buffer.append:{number}"


async def test_items_may_run_ahead_of_the_answers(frontend: Frontend) -> None:
    async with session(frontend) as (_, socket):
        for _ in range(300):
            await socket.send(audio(100))
        for number in range(2, 302):
            assert await heard(socket) == f"{number}:input_audio_buffer.append:100"


async def test_a_large_item(frontend: Frontend) -> None:
    async with session(frontend) as (_, socket):
        await socket.send(audio(1 << 20))
        assert await heard(socket) == f"2:input_audio_buffer.append:{1 << 20}"


async def test_a_closed_session_ends_the_engine(frontend: Frontend) -> None:
    async with session(frontend) as (own, socket):
        found = await inspect(own.ref(ENDPOINT))
        assert found["in_flight"] == 1
        await socket.close()


async def test_a_cut_session_ends_the_engine(frontend: Frontend) -> None:
    async with session(frontend) as (own, _):
        assert (await inspect(own.ref(ENDPOINT)))["in_flight"] == 1


async def test_an_error_of_the_handler_reaches_the_frontend(frontend: Frontend) -> None:
    async with session(frontend) as (_, socket):
        await socket.send({"type": "input_audio_buffer.clear"})
        message = await socket.receive()
        assert message is None or message["type"] == "error"


async def test_many_sessions_at_once(frontend: Frontend) -> None:
    async def one() -> None:
        async with session(frontend) as (_, socket):
            await socket.send(audio(7))
            assert await heard(socket) == "2:input_audio_buffer.append:7"

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(one())
