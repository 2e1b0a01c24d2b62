"""A client outside any node: it calls as any other does, fails with words, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors import Client, Cluster, EngineSpec, Frame, NodeSpec, Settings, connect
from actors.errors import (
    ActorDead,
    CallBackFailed,
    CallHomeError,
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    NoWorkers,
    RemoteProtocolError,
    SpecError,
)
from tests.clock import Clock
from tests.clock import clock as clock
from tests.cluster.test_launcher import ECHO
from tests.cluster.workers import Total
from tests.ports import free_address
from tests.waiting import LONG, TICK, wait_until

EXAMPLES = os.path.abspath("examples/engines.py")
CHAT = EngineSpec("demo.chat.converse", f"{EXAMPLES}:Chat")
HALVE = EngineSpec("demo.halve.generate", f"{EXAMPLES}:Halve")

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def folders() -> list[str]:
    return [each for each in os.listdir(os.environ["CALLHOME_RUN"]) if "outside" in each]


def outside(address: str, **settings: Any) -> Client:
    return connect(f"tcp://{address}", settings=Settings.load(**settings))


async def refused(address: str, kind: type[CallHomeError], **settings: Any) -> str:
    """The words with which a client cannot be entered; it leaves no folder."""
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(LONG), outside(address, **settings):
            pytest.fail("it was entered")
    assert folders() == []
    return str(caught.value)


async def test_it_calls_streams_converses_and_hands_over_frames() -> None:
    door = free_address()
    spec = NodeSpec(engines=[ECHO, CHAT, HALVE], listen=door)
    async with Cluster(spec), outside(door) as client:
        assert await client.call("test.echo.one", {"a": [1, None]}) == {"a": [1, None]}
        async with client.open("demo.chat.converse") as chat:
            await chat.send("hello")
            assert await chat.recv() == "you said hello"
            await chat.end()
            assert [line async for line in chat] == ["goodbye"]
        image = client.frames.new((1024, 1024), "uint8")
        image.array[:] = 8
        async with client.stream("demo.halve.generate", image) as frames:
            halves = [frame async for frame in frames]
        assert [type(each) for each in halves] == [Frame]
        with halves[0] as half:
            assert (half.array == 4).all()
        engines = [each.endpoint for each in client.records() if each.kind == "engine"]
        assert sorted(engines) == ["demo.chat.converse", "demo.halve.generate", "test.echo.one"]
        with pytest.raises(NoWorkers, match=r"did you mean 'test\.echo\.one'"):
            await client.call("test.eco.one", 1)
        with pytest.raises(ActorDead):
            await client.ref("counter").ask(Total())
        assert len(folders()) == 1
        (folder,) = folders()
        assert os.stat(os.path.join(os.environ["CALLHOME_RUN"], folder)).st_mode & 0o777 == 0o700
    assert folders() == []


async def test_it_hears_of_the_end_of_the_node() -> None:
    door = free_address()
    async with Cluster(NodeSpec(engines=[ECHO], listen=door)):
        client = await outside(door).__aenter__()
        assert await client.call("test.echo.one", 1) == 1
    with pytest.raises(CallHomeError):
        await client.call("test.echo.one", 1, timeout=LONG)
    await client.__aexit__(None, None, None)
    assert folders() == []
    with pytest.raises(LocalProtocolError):
        await client.__aenter__()


@pytest.mark.parametrize(
    "address",
    [
        "tcp://",
        "tcp://h",
        "tcp://h:0",
        "tcp://:7",
        "tcp://h:7/x",
        "tcp://h:65536",
        "tcp://0.0.0.0:7",
        "http://h:7",
    ],
)
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(SpecError, match=r"^connect:? "):
        connect(address)
    with pytest.raises(SpecError, match="leave out"):
        connect("tcp://h:7", node="a")


async def test_nobody_listens() -> None:
    door = free_address()
    words = await refused(door, ConnectionLost)
    assert words.startswith(f"nobody listens at {door} (Connection refused)")
    assert "callhome ps" in words


async def test_b176_a_call_to_a_dead_host_fails_within_the_limit_for_connections(
    clock: Clock,
) -> None:
    """A listener with a full queue answers nothing, as a host that is not there."""
    with socket.socket() as dead, contextlib.ExitStack() as stack:
        dead.bind(("127.0.0.1", 0))
        dead.listen(0)
        for _ in range(3):
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(dead.getsockname())
        door = f"127.0.0.1:{dead.getsockname()[1]}"
        entering = asyncio.create_task(refused(door, CallHomeError, connect_timeout=LONG / 2))
        await wait_until(folders, what="its router is there")
        for _ in range(2):  # the first time it may not have begun to wait
            clock.turn(LONG / 8)
            await asyncio.sleep(5 * TICK)
            assert not entering.done()
        clock.turn(LONG / 2)
        words = await entering
        assert door in words
        assert f"{LONG / 2:g} s" in words
    assert Settings.load().connect_timeout == 5.0  # for whoever sets none


async def test_a_name_that_nobody_knows() -> None:
    words = await refused("nohost.invalid:17", ConnectionLost)
    assert words.startswith("the name 'nohost.invalid' cannot be resolved (")
    assert words.count("nohost") == 1


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """Somebody who listens; the ``host:port``."""
    async with asyncio.TaskGroup() as group:
        ends = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks = group.create_task(talk(reader, writer))
            await ends.wait()
            talks.cancel()
            await asyncio.wait({talks})
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield "{}:{}".format(*server.sockets[0].getsockname())
        finally:
            ends.set()
            server.close()
            await server.wait_closed()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 20)
    await asyncio.Event().wait()


async def acknowledging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the request and never calls home."""
    await reader.read(1)
    writer.write(bytes(4))
    await asyncio.Event().wait()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(os.urandom(1 << 16))


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def a_web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def a_worker_of_dynamo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It knows no such path."""
    await reader.read(1)
    words = b"Server unavailable: endpoint callhome/records is not served"
    writer.write(len(words).to_bytes(4, "big") + words)
    await asyncio.Event().wait()


async def a_secure_shell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("talk", "kind", "says"),
    [
        (silent, DeadlineExceeded, "nothing of callhome answers at {} within 1.5 s"),
        (acknowledging, CallBackFailed, "{} has taken the request and has not called back to 127."),
    ],
)
@pytest.mark.parametrize("patience", [1.5, 10 * LONG])
async def test_whoever_says_nothing_there_is_no_node(
    talk: Talk, kind: type[CallHomeError], says: str, patience: float
) -> None:
    """Told with its cause and the next step, whichever limit runs out first."""
    limits = {"connect_timeout": 1.5, "dial_in_timeout": patience, "ack_timeout": patience}
    async with talking(talk) as address:
        check_words(await refused(address, kind, **limits), says.format(address))


def check_words(words: str, says: str) -> None:
    """What is told of somebody who is no node."""
    assert says in words
    assert "is this the listen of a callhome node" in words
    assert "callhome.records" not in words


@pytest.mark.parametrize(
    ("talk", "kind", "says"),
    [
        (garbage, RemoteProtocolError, "{} does not answer as a node of callhome: it answers with"),
        (closing, ConnectionLost, "listens at {} has ended the connection without an answer"),
        (a_web_server, RemoteProtocolError, "as a node of callhome: it speaks HTTP"),
        (a_secure_shell, RemoteProtocolError, "as a node of callhome: it speaks SSH"),
        (a_worker_of_dynamo, RemoteProtocolError, "it said 'Server unavailable: endpoint callhome"),
    ],
)
async def test_whoever_says_something_else_there_is_no_node(
    talk: Talk, kind: type[CallHomeError], says: str
) -> None:
    """Told as soon as it is known: no limit has to run out."""
    names = ("connect_timeout", "dial_in_timeout", "ack_timeout")
    async with talking(talk) as address:
        words = await refused(address, kind, **dict.fromkeys(names, 10 * LONG))
        check_words(words, says.format(address))


async def test_a_node_that_cannot_reach_back_is_named() -> None:
    door = free_address()
    async with Cluster(NodeSpec(engines=[ECHO], listen=door)):
        words = await refused(
            door, CallBackFailed, call_home_advertise="127.0.0.9", connect_timeout=2.0
        )
    assert "back to 127.0.0.9:" in words
    assert "call_home_advertise" in words


async def test_a_wrong_setting_is_told_as_one() -> None:
    words = await refused(free_address(), SpecError, call_home_host="192.0.2.7")
    assert words.startswith("call_home_host: 192.0.2.7 cannot be bound: Cannot assign")


KILLED = """
import asyncio, sys
from actors import connect

async def main():
    async with connect(f"tcp://{sys.argv[1]}"):
        print("in", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def killed(door: str) -> str:
    """The folder that a client leaves which is killed."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, door, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    assert await program.stdout.readline() == b"in\n"
    (folder,) = folders()
    program.kill()
    await program.wait()
    assert folders() == [folder]
    return folder


async def test_who_comes_next_removes_what_killed_clients_have_left() -> None:
    door = free_address()
    async with Cluster(NodeSpec(engines=[ECHO], listen=door)):
        left = await killed(door)
        async with outside(door), outside(door) as client:
            assert left not in folders()
            assert len(folders()) == 2  # those who live keep theirs
            assert await client.call("test.echo.one", 1) == 1
        left = await killed(door)
        told: list[str] = []
        async with Cluster(NodeSpec(name="b"), progress=told.append):
            assert folders() == []
        assert any("another that was killed: removed" in line and left in line for line in told)
    assert folders() == []


async def test_an_error_in_the_block_comes_through() -> None:
    door = free_address()
    async with Cluster(NodeSpec(engines=[ECHO], listen=door)):
        with pytest.raises(ZeroDivisionError):
            async with outside(door):
                raise ZeroDivisionError
    assert folders() == []
