"""Two nodes and what may happen between them: the end of one, a frozen router, a cut cable.

The ordinary streams of two nodes are in the other modules, where ``road`` is ``nodes``; deaths of
single processes are in ``tests.router.test_far_deaths``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from actors import Client, Cluster, EngineSpec, NodeSpec, ResponseStream, connect
from actors.errors import CallHomeError, ConnectionLost, NoWorkers
from tests.e2e.standing import cluster_on
from tests.e2e.watching import Trace, inspect, kill, wait_idle
from tests.ports import free_address
from tests.waiting import DEADLINE, LONG, require_root, wait_until, wait_until_sync

SLOW = "t.slow.go"
STREAMS = 50
#: Seconds for callers to hear of a death, and of a connection on which nothing comes any more: far
#: more than it takes, and far less than the streams would go on.
TOLD, SILENT, ENDLESS = DEADLINE, LONG, 100 * LONG


def node(trace: Trace, name: str = "a") -> NodeSpec:
    """A node whose engine writes a trace."""
    slow = EngineSpec(SLOW, "tests.e2e.cancel_engines:Slow", args={"trace": trace.path})
    return NodeSpec(name=name, engines=[slow])


async def begun(client: Client) -> list[ResponseStream]:
    """So many streams, two items of each taken, the rest to come much later."""
    streams = []
    for number in range(STREAMS):
        request = {"items": 2, "wait": ENDLESS, "tag": number}
        stream = await client.stream(SLOW, request).__aenter__()
        streams.append(stream)
    for stream in streams:
        assert [await anext(stream), await anext(stream)] == [0, 1]
    return streams


async def failures(streams: list[ResponseStream], within: float) -> list[CallHomeError]:
    """How all of them end, which is with an error and in time."""

    async def failure(stream: ResponseStream) -> CallHomeError:
        try:
            item = await anext(stream)
        except CallHomeError as error:
            return error
        raise AssertionError(f"{item!r} came out of a stream that was cut")

    async with asyncio.timeout(within):
        found = await asyncio.gather(*map(failure, streams))
    for stream in streams:
        await stream.aclose()
    return found


async def serves(client: Client) -> None:
    """Wait until the endpoint answers (again)."""

    async def answers() -> bool:
        try:
            return bool(await client.call(SLOW, {"wait": 0.0}, timeout=DEADLINE) == "late")
        except CallHomeError:
            return False

    await wait_until(answers, LONG, f"{SLOW} serves")


def pid_of(cluster: Cluster, node: int, name: str) -> int:
    return next(child.pid for child in cluster.nodes[node].children if child.name == name)


async def test_the_death_of_a_whole_node_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    far = node(trace, "b")
    door = free_address()
    async with Cluster(NodeSpec(name="a", peers=[door])) as near, near.client() as client:
        async with Cluster(replace(far, listen=door)) as cluster:
            await serves(client)
            streams = await begun(client)
            kill(cluster.nodes[0].address.pid)
            for error in await failures(streams, TOLD):
                assert isinstance(error, ConnectionLost), error
            await cluster.wait_ended()
        await wait_idle(client)
        with pytest.raises(NoWorkers):
            await client.call(SLOW, {"wait": 0.0})
        async with Cluster(replace(far, listen=door)):
            await serves(client)
    assert os.listdir(os.environ["CALLHOME_RUN"]) == []


async def test_a_frozen_router_leaves_the_engines_of_the_other_node(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    async with cluster_on(node(trace), "nodes") as cluster, cluster.client() as client:
        streams = await begun(client)
        router = pid_of(cluster, 0, "router")
        kill(router, signal.SIGSTOP)
        try:
            await trace.until("cancelled", STREAMS, within=SILENT)
        finally:
            kill(router, signal.SIGCONT)
        for error in await failures(streams, TOLD):
            assert isinstance(error, ConnectionLost), error
        await serves(client)
        await wait_idle(client, SLOW)


class Cable:
    """Another network of this machine, and the cable between it and ours."""

    def __init__(self) -> None:
        unique = secrets.token_hex(3)
        self.space, self.near, self._far = f"ch{unique}", f"chn{unique}", f"chf{unique}"
        # One of 16,384 nets of two: another process may lay a cable, too.
        third, fourth = secrets.randbelow(256), 4 * secrets.randbelow(64)
        self.here, self.there = (f"10.213.{third}.{fourth + each}" for each in (1, 2))

    def lay(self) -> None:
        ip("netns", "add", self.space)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self._far)
        ip("link", "set", self._far, "netns", self.space)
        ip("addr", "add", f"{self.here}/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        ip("-n", self.space, "addr", "add", f"{self.there}/30", "dev", self._far)
        ip("-n", self.space, "link", "set", self._far, "up")
        ip("-n", self.space, "link", "set", "lo", "up")

    def set(self, state: str) -> None:
        """Cut it ("down"), mend it ("up")."""
        ip("link", "set", self.near, state)

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self.near], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True)


@pytest.fixture
def cable() -> Iterator[Cable]:
    require_root("a network of its own")
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (iproute2)")
    laid = Cable()
    try:
        laid.lay()
    except subprocess.CalledProcessError as error:
        laid.remove()
        pytest.skip(f"no network of its own can be made here: {error.stderr!r}")
    yield laid
    laid.remove()


@contextmanager
def far_node(
    cable: Cable, folder: Path, trace: Trace, host: str = "", settled: str = ""
) -> Iterator[str]:
    """A node at the other end of the cable; the address at which it listens. ``settled`` are
    further lines of its spec.
    """
    spec, log = folder / "far.toml", folder / "log"
    spec.write_text(
        f'name = "b"\n{settled}[[engines]]\nendpoint = "{SLOW}"\n'
        f'engine = "tests.e2e.cancel_engines:Slow"\nargs = {{ trace = "{trace.path}" }}\n'
    )
    listen = f"{host or cable.there}:7400"
    command = ["ip", "netns", "exec", cable.space, sys.executable, "-m", "actors", "up", str(spec)]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--cluster", "far", "--listen", listen],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until_sync(lambda: "try, from another shell" in log.read_text(), LONG)
        yield listen
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
    finally:
        process.kill()
        process.wait()


async def test_a_cut_cable_ends_streams_on_both_sides(tmp_path: Path, cable: Cable) -> None:
    trace = Trace(tmp_path)
    with far_node(cable, tmp_path, trace) as listen:
        near = NodeSpec(name="a", peers=[listen])
        async with Cluster(near) as cluster, cluster.client() as client:
            await serves(client)
            streams = await begun(client)
            cable.set("down")
            for error in await failures(streams, SILENT):
                assert isinstance(error, ConnectionLost), error
            await trace.until("cancelled", STREAMS, within=SILENT)
            await wait_idle(client)
            async with connect("far") as far:
                await wait_idle(far, SLOW)
                assert (await inspect(far, "ingress"))["in_flight"] == 0
            cable.set("up")
            await serves(client)
            await wait_idle(client)
    assert os.listdir(os.environ["CALLHOME_RUN"]) == []
